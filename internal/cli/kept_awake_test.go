package cli

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

// A transaction says now and then that it is not idle, while something else takes its
// time, and can be used afterwards. When it is lost, the rest is not waited for.
func TestKeptAwake(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), sandboxtest.Database(t))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	session := tx.Conn().PgConn().PID()

	err = keptAwake(t.Context(), tx, time.Millisecond, func(ctx context.Context) error {
		var since, now time.Time
		const idleSince = `SELECT state_change FROM pg_stat_activity WHERE pid = $1`
		if err := pool.QueryRow(ctx, idleSince, session).Scan(&since); err != nil {
			return err
		}
		for now = since; now.Equal(since); {
			if err := pool.QueryRow(ctx, idleSince, session).Scan(&now); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT 1")
	require.NoError(t, err)

	err = keptAwake(t.Context(), tx, time.Millisecond, func(ctx context.Context) error {
		if _, err := pool.Exec(ctx, `SELECT pg_terminate_backend($1)`, session); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	})
	require.ErrorContains(t, err, "the transaction was lost")
}
