package pginbox_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/pginbox"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

func TestMigrateByManyAtOnceAndAgain(t *testing.T) {
	databaseURL := sandboxtest.Database(t)
	errs := make([]error, 8)
	var processes sync.WaitGroup
	for i := range errs {
		processes.Go(func() { errs[i] = pginbox.Migrate(t.Context(), databaseURL) })
	}
	processes.Wait()
	require.NoError(t, errors.Join(errs...))
	require.NoError(t, pginbox.Migrate(t.Context(), databaseURL))

	pool, err := pgxpool.New(t.Context(), databaseURL)
	require.NoError(t, err)
	defer pool.Close()
	rows, err := pool.Query(t.Context(), `SELECT tablename::text FROM pg_tables WHERE schemaname = current_schema() ORDER BY 1`)
	require.NoError(t, err)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Equal(t, []string{"dead_letters", "inbox_handlers", "pginbox_versions", "processed_keys", "processed_messages", "stored_offsets"}, tables)
}

func TestMigrateNeedsASchema(t *testing.T) {
	err := pginbox.Migrate(t.Context(), withSearchPath(t, sandboxtest.Database(t), "nowhere"))
	require.ErrorContains(t, err, "names no schema that exists: create the schema first")
}

func TestMigrateTellsNoPassword(t *testing.T) {
	for _, databaseURL := range []string{"postgres://u:s3cret@127.0.0.1:1/db", "postgres://u:s3cret@127.0.0.1:port/db"} {
		err := pginbox.Migrate(t.Context(), databaseURL)
		require.ErrorContains(t, err, "pginbox: migrate")
		require.NotContains(t, err.Error(), "s3cret")
	}
}

// A process that waits for another to finish its migration ends with its context.
func TestAMigrationThatWaits(t *testing.T) {
	databaseURL := sandboxtest.Database(t)
	holder, err := pgx.Connect(t.Context(), databaseURL)
	require.NoError(t, err)
	_, err = holder.Exec(t.Context(), `SELECT pg_advisory_lock(hashtextextended('pginbox_versions ' || current_schema(), 0))`)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, pginbox.Migrate(ctx, databaseURL), context.DeadlineExceeded)
	require.NoError(t, holder.Close(t.Context()))
	require.NoError(t, pginbox.Migrate(t.Context(), databaseURL))
}

func withSearchPath(t *testing.T, databaseURL, schema string) string {
	t.Helper()
	if !strings.Contains(databaseURL, "://") {
		return databaseURL + " search_path=" + schema
	}
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	query := u.Query()
	query.Set("search_path", schema)
	u.RawQuery = query.Encode()
	return u.String()
}
