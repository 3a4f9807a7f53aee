package pginbox_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/pginbox"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

func TestUpToDate(t *testing.T) {
	url := sandboxtest.Database(t)
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	upToDate := func() bool {
		done, err := pginbox.UpToDate(t.Context(), pool)
		require.NoError(t, err)
		return done
	}
	require.False(t, upToDate())
	require.NoError(t, pginbox.Migrate(t.Context(), url))
	require.True(t, upToDate())
	_, err = pool.Exec(t.Context(), `DELETE FROM pginbox_versions WHERE version_id = 1`)
	require.NoError(t, err)
	require.False(t, upToDate(), "a migration is missing")
}
