package audit_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/audit"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
	"github.com/delivered-twice/delivered-twice/internal/warehouse"
)

func migrated(t *testing.T) *pgxpool.Pool {
	t.Helper()
	url := sandboxtest.Database(t)
	require.NoError(t, warehouse.Migrate(t.Context(), url))
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func batch(ids ...string) (effects []warehouse.Effect) {
	for _, id := range ids {
		effects = append(effects, warehouse.Effect{
			EventID: id, Event: order.Event{OrderID: "ord_" + id, Customer: "cus_001", Sequence: 1}, CreatedAt: time.Now(),
		})
	}
	return effects
}

func TestTablesCounts(t *testing.T) {
	for _, c := range []struct {
		name            string
		picked, awarded []string
		sent            []string
		want            lane.Counts
	}{
		{"nothing", nil, nil, []string{"a", "b"}, lane.Counts{Expected: 2, Lost: 2}},
		{"both once", []string{"a", "b"}, []string{"a", "b"}, []string{"a", "b"}, lane.Counts{Expected: 2, Once: 2}},
		{"either missing is lost", []string{"a", "c"}, []string{"b", "c"}, []string{"a", "b", "c"},
			lane.Counts{Expected: 3, Lost: 2, Once: 1}},
		{"either twice is duplicated", []string{"a", "a", "b"}, []string{"a", "b", "b"}, []string{"a", "b"},
			lane.Counts{Expected: 2, Duplicated: 2}},
		{"lost is worse than duplicated", []string{"a", "a"}, nil, []string{"a"}, lane.Counts{Expected: 1, Lost: 1}},
		{"what nobody sent", []string{"a", "x"}, []string{"a", "x", "y"}, []string{"a"},
			lane.Counts{Expected: 1, Once: 1, Unexpected: 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			pool := migrated(t)
			require.NoError(t, warehouse.Pick(t.Context(), pool, "p-1", batch(c.picked...)))
			require.NoError(t, warehouse.Award(t.Context(), pool, "p-1", batch(c.awarded...)))
			a, err := audit.Tables(t.Context(), pool, sent(c.sent...))
			require.NoError(t, err)
			require.Equal(t, c.want, a.Rows)
			require.Len(t, a.Unexpected, c.want.Unexpected)
			require.Len(t, a.Effects, len(c.picked)+len(c.awarded))
		})
	}
}

func TestTablesTellWhichAttemptDidWhat(t *testing.T) {
	pool := migrated(t)
	require.NoError(t, warehouse.Pick(t.Context(), pool, "eos-0-1", batch("a")))
	require.NoError(t, warehouse.Pick(t.Context(), pool, "eos-0-2", batch("a")))
	require.NoError(t, warehouse.Award(t.Context(), pool, "eos-0-2", batch("a")))
	a, err := audit.Tables(t.Context(), pool, sent("a"))
	require.NoError(t, err)
	for i := range a.Effects {
		a.Effects[i].At = time.Time{}
	}
	require.Equal(t, []audit.Effect{
		{EventID: "a", Attempt: "eos-0-1", Where: "pick_tasks", Position: "1"},
		{EventID: "a", Attempt: "eos-0-2", Where: "pick_tasks", Position: "2"},
		{EventID: "a", Attempt: "eos-0-2", Where: "loyalty_points", Position: "1"},
	}, a.Effects)
}

// Whether there is a latency is the server's to say; both answers are right, but
// only the one that fits.
func TestTablesTakeTheTimeOfTheCommitWhereItIsKept(t *testing.T) {
	pool, ctx := migrated(t), t.Context()
	var tracked string
	require.NoError(t, pool.QueryRow(ctx, `SHOW track_commit_timestamp`).Scan(&tracked))

	start := time.Now()
	tx, err := pool.Begin(ctx)
	require.NoError(t, err)
	savepoint, err := tx.Begin(ctx)
	require.NoError(t, err)
	require.NoError(t, warehouse.Pick(ctx, savepoint, "p-1", batch("a")))
	require.NoError(t, savepoint.Commit(ctx))
	_, err = tx.Exec(ctx, `SELECT pg_sleep(0.05)`) // done, but not yet to be seen
	require.NoError(t, err)
	require.NoError(t, tx.Commit(ctx))

	a, err := audit.Tables(ctx, pool, sent("a"))
	require.NoError(t, err)
	require.Equal(t, tracked == "on", a.CommitTimes)
	latency := audit.Latencies(map[string]time.Time{"a": start}, a.Effects)
	if !a.CommitTimes {
		require.Nil(t, latency)
		return
	}
	require.GreaterOrEqual(t, latency.P50, 50.0)
	require.Less(t, latency.P50, 10_000.0)
}

func TestTablesWaitForAnOpenTransaction(t *testing.T) {
	pool, ctx := migrated(t), t.Context()
	tx, err := pool.Begin(ctx)
	require.NoError(t, err)
	require.NoError(t, warehouse.Pick(ctx, tx, "p-1", batch("a")))
	require.NoError(t, warehouse.Award(ctx, tx, "p-1", batch("a")))
	defer tx.Rollback(ctx)

	short, cancelShort := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancelShort()
	_, err = audit.Tables(short, pool, sent("a"))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "a transaction that has written to them is still open")

	seen, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	committed := make(chan error, 1)
	go func() {
		for waiting := 0; waiting == 0 && seen.Err() == nil; {
			// Where it ends early, the assertions on the result tell.
			_ = pool.QueryRow(seen, `SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'pick_tasks'::regclass`).Scan(&waiting)
		}
		committed <- tx.Commit(ctx)
	}()
	a, err := audit.Tables(seen, pool, sent("a"))
	cancel()
	require.NoError(t, <-committed)
	require.NoError(t, err)
	require.Equal(t, lane.Counts{Expected: 1, Once: 1}, a.Rows)
}

func TestDeadLetterRows(t *testing.T) {
	pool, ctx := migrated(t), t.Context()
	n, err := audit.DeadLetterRows(ctx, pool)
	require.NoError(t, err)
	require.Zero(t, n)
	_, err = pool.Exec(ctx, `CREATE TABLE dead_letters (event_id text); INSERT INTO dead_letters VALUES ('a'), ('b')`)
	require.NoError(t, err)
	n, err = audit.DeadLetterRows(ctx, pool)
	require.NoError(t, err)
	require.Equal(t, 2, n)
}
