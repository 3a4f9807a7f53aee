package endpoint_test

import (
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/endpoint"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

// closedPort is an address where nobody listens.
func closedPort(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	return listener.Addr().String()
}

func TestReachable(t *testing.T) {
	require.NoError(t, endpoint.CheckKafka(t.Context(), sandboxtest.Brokers(t)))
	require.NoError(t, endpoint.CheckPostgres(t.Context(), sandboxtest.Database(t)))
}

func TestUnreachableNamesTheAddress(t *testing.T) {
	at := closedPort(t)
	require.ErrorContains(t, endpoint.CheckKafka(t.Context(), []string{at}), at)
	require.ErrorContains(t, endpoint.CheckPostgres(t.Context(), "postgres://u:sesame@"+at+"/db"), at)
}

func TestThePasswordIsNeverTold(t *testing.T) {
	const wrong = "sesame-%41"
	at := closedPort(t)
	right, err := url.Parse(sandboxtest.Database(t))
	require.NoError(t, err)
	right.User = url.UserPassword(right.User.Username(), wrong)
	config, err := pgx.ParseConfig(right.String())
	require.NoError(t, err)

	for name, address := range map[string]string{
		"nobody listens":              "postgres://u:sesame@" + at + "/db",
		"key=value":                   "user=u password=sesame host=127.0.0.1 dbname=db port=" + at[strings.LastIndex(at, ":")+1:],
		"a port that is none":         "postgres://u:sesame@127.0.0.1:port/db",
		"a password with a delimiter": "postgres://u:ses/ame@127.0.0.1:1/db",
		"a lone percent sign":         "postgres://u:sesame%@127.0.0.1:1/db",
		"key=value, cut off":          "user=u password='sesame",
	} {
		t.Run(name, func(t *testing.T) {
			err := endpoint.CheckPostgres(t.Context(), address)
			require.Error(t, err)
			require.NotContains(t, err.Error(), "sesame")
			require.NotContains(t, err.Error(), "ses/ame")
			require.NotContains(t, err.Error(), "\n")
			require.NotContains(t, endpoint.Redacted(address), "ses")
		})
	}
	t.Run("the wrong password", func(t *testing.T) {
		err := endpoint.CheckPostgres(t.Context(), right.String())
		require.ErrorContains(t, err, config.Host)
		require.ErrorContains(t, err, "28P01")
		require.NotContains(t, err.Error(), wrong)
	})
}
