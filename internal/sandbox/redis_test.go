package sandbox

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestEmbeddedRedis(t *testing.T) {
	s, err := StartRedis(t.Context(), Options{})
	require.NoError(t, err)
	options, err := redis.ParseURL(s.RedisURL)
	require.NoError(t, err)
	client := redis.NewClient(options)
	defer func() { require.NoError(t, client.Close()) }()
	for _, want := range []bool{true, false} {
		fresh, err := client.SetNX(t.Context(), "evt_9f3k", "seen", time.Minute).Result()
		require.NoError(t, err)
		require.Equal(t, want, fresh)
	}
	require.NoError(t, client.PExpire(t.Context(), "evt_9f3k", 300*time.Millisecond).Err())
	require.Eventually(t, func() bool { return client.Exists(t.Context(), "evt_9f3k").Val() == 0 }, patience, interval, "keys do not expire")
	require.NoError(t, s.Close())
	require.False(t, listens(options.Addr))
	require.NoError(t, s.Close())
}

func TestGivenRedisIsUsedAndLeftAlone(t *testing.T) {
	theirs := miniredis.RunT(t)
	theirs.RequireAuth(secret)
	s, err := StartRedis(t.Context(), Options{RedisURL: "redis://:" + secret + "@" + theirs.Addr() + "/0"})
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.True(t, listens(theirs.Addr()))
}

func TestRedisThatCannotBeReached(t *testing.T) {
	theirs := miniredis.RunT(t)
	theirs.RequireAuth("another")
	closed := closedPort(t)
	for name, test := range map[string]struct{ address, want string }{
		"nobody listens":        {"redis://:" + secret + "@" + closed, closed},
		"it never answers":      {"redis://:" + secret + "@" + silentPort(t), "no answer"},
		"wrong password":        {"redis://:" + secret + "@" + theirs.Addr(), theirs.Addr()},
		"slash in the password": {"redis://:1/" + secret + "@" + theirs.Addr(), ""},
		"wrong escape":          {"redis://:%zz" + secret + "@" + theirs.Addr(), "not readable"},
		"no scheme":             {secret + "@" + theirs.Addr(), "not readable"},
		"no database":           {"redis://:" + secret + "@" + theirs.Addr() + "/" + secret, "not readable"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := StartRedis(t.Context(), Options{RedisURL: test.address})
			require.ErrorContains(t, err, test.want)
			require.NotContains(t, err.Error(), secret)
			require.NotContains(t, err.Error(), "\n")
		})
	}
}
