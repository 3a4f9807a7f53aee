package sandbox

import (
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/endpoint"
)

func TestGivenServicesAreUsedAndLeftAlone(t *testing.T) {
	theirs, err := shared()
	require.NoError(t, err)
	s, err := Start(t.Context(), Options{Brokers: theirs.Brokers, DatabaseURL: theirs.DatabaseURL})
	require.NoError(t, err)
	require.Equal(t, theirs.Brokers, s.Brokers)
	require.Equal(t, theirs.DatabaseURL, s.DatabaseURL)
	require.Equal(t, "kfake (by its cluster id)", s.KafkaVersion)
	require.Equal(t, theirs.PostgresVersion, s.PostgresVersion)
	require.NoError(t, s.Close())
	_, err = endpoint.Kafka(t.Context(), theirs.Brokers)
	require.NoError(t, err)
	_, err = endpoint.Postgres(t.Context(), theirs.DatabaseURL)
	require.NoError(t, err)
}

// silentPort is an address that accepts connections and never says anything.
func silentPort(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, listener.Close()) })
	return listener.Addr().String()
}

func TestKafkaThatCannotBeReached(t *testing.T) {
	t.Parallel()
	services, err := shared()
	require.NoError(t, err)
	postgres, err := url.Parse(services.DatabaseURL)
	require.NoError(t, err)
	for name, address := range map[string]string{
		"nobody listens":        closedPort(t),
		"it never answers":      silentPort(t),
		"it is a PostgreSQL":    postgres.Host,
		"the name is not known": "kafka.invalid:9092",
		"it is no address":      "127.0.0.1:port",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			_, err := Start(t.Context(), Options{Brokers: []string{address}, DatabaseURL: services.DatabaseURL})
			require.ErrorContains(t, err, address)
			require.NotContains(t, err.Error(), "\n")
			require.Less(t, time.Since(began), 15*time.Second)
		})
	}
}

const secret = "s3cr3t-p4ss"

func TestPostgresThatCannotBeReached(t *testing.T) {
	t.Parallel()
	services, err := shared()
	require.NoError(t, err)
	u, err := url.Parse(services.DatabaseURL)
	require.NoError(t, err)
	host, port := u.Hostname(), u.Port()
	closed, silent := closedPort(t), silentPort(t)
	const wrongPassword = "password authentication failed"
	for name, test := range map[string]struct{ address, at, want string }{
		"nobody listens":                  {"postgres://u:" + secret + "@" + closed + "/d", closed, "refused"},
		"two addresses, nobody listens":   {"postgres://u:" + secret + "@" + closed + "," + closed + "/d", closed, "refused"},
		"it never answers":                {"postgres://u:" + secret + "@" + silent + "/d", silent, "timeout"},
		"it is a Kafka":                   {"postgres://u:" + secret + "@" + services.Brokers[0] + "/d", services.Brokers[0], ""},
		"wrong password, URL":             {"postgres://postgres:" + secret + "@" + u.Host + "/postgres", u.Host, wrongPassword},
		"wrong password, URL with TLS":    {"postgresql://postgres:" + secret + "@" + u.Host + "/postgres?sslmode=prefer", u.Host, wrongPassword},
		"wrong password, in the query":    {"postgres://" + u.Host + "/postgres?user=postgres&password=" + secret, u.Host, wrongPassword},
		"wrong password, percent-encoded": {"postgres://postgres:" + url.QueryEscape(secret+"@/#") + "@" + u.Host + "/postgres", u.Host, wrongPassword},
		"wrong password, key=value":       {fmt.Sprintf("host=%s port=%s user=postgres password=%s dbname=postgres", host, port, secret), u.Host, wrongPassword},
		"wrong password, quoted":          {fmt.Sprintf(`host=%s port=%s user=postgres password='%s \' x' dbname=postgres`, host, port, secret), u.Host, wrongPassword},
		"no such database":                {strings.Replace(services.DatabaseURL, "/postgres?", "/nowhere?", 1), u.Host, `"nowhere" does not exist`},
		"slash in the password":           {"postgres://u:1/" + secret + "@" + u.Host + "/postgres", "", "not readable"},
		"hash in the password":            {"postgres://u:1#" + secret + "@" + u.Host + "/postgres", "", "not readable"},
		"question mark in the password":   {"postgres://u:1?" + secret + "@" + u.Host + "/postgres", "", "not readable"},
		"port is no number":               {"postgres://u:" + secret + "@127.0.0.1:port/d", "", "not readable"},
		"unquoted space in the password":  {"host=127.0.0.1 user=u password=a " + secret + " dbname=d", "", "not readable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			_, err := Start(t.Context(), Options{Brokers: services.Brokers, DatabaseURL: test.address})
			require.ErrorContains(t, err, test.at)
			require.ErrorContains(t, err, test.want)
			require.NotContains(t, err.Error(), secret)
			require.NotContains(t, err.Error(), passwordOf(t, services.DatabaseURL))
			require.NotContains(t, fmt.Sprintf("%+v", err), secret)
			require.NotContains(t, err.Error(), "\n")
			require.NotContains(t, endpoint.Redact(test.address), secret)
			require.Less(t, time.Since(began), 15*time.Second)
		})
	}
}
