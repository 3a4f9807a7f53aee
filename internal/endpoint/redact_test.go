package endpoint

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

const secret = "s3cr3t-p4ss"

func TestRedact(t *testing.T) {
	for address, want := range map[string]string{
		"postgres://u:" + secret + "@h:1234/d":                              "postgres://u@h:1234/d",
		"postgres://u:" + secret + "@h:1234/d?sslmode=disable":              "postgres://u@h:1234/d",
		"postgres://u:a@" + secret + "@h:1234/d?sslmode=disable":            "(unreadable database address)",
		"postgres://u:" + secret + "@h1:1,h2:2/d?sslmode=disable":           "postgres://u@h1:1,h2:2/d",
		"postgres://u@h:1234/d?password=" + secret:                          "postgres://u@h:1234/d",
		"host=h port=1234 user=u password=" + secret + " dbname=d":          "postgres://u@h:1234/d",
		"host=h port=1234 user=u password='a " + secret + "' dbname=d":      "postgres://u@h:1234/d",
		"postgres://u:1/" + secret + "@h:1234/d":                            "(unreadable database address)",
		"postgres://u:" + secret + "/x@h:1234/d":                            "(unreadable database address)",
		"postgres://u:%zz" + secret + "@h:1234/d":                           "(unreadable database address)",
		"host=h port=1234 user=u password=a " + secret + " dbname=d":        "(unreadable database address)",
		"postgres://u:" + secret + "@h:1234/d?sslmode=" + secret + "-wrong": "(unreadable database address)",
	} {
		require.Equal(t, want, Redact(address), address)
	}
}

// What is shown of an address still names the same place.
func TestRedactedAddressIsAnAddress(t *testing.T) {
	config, err := pgx.ParseConfig(Redact("host=h port=1234 user=u password=" + secret + " dbname=d"))
	require.NoError(t, err)
	require.Equal(t, []any{"h", uint16(1234), "u", "d"}, []any{config.Host, config.Port, config.User, config.Database})
}
