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

// A guard may hold for one table and not for the other.
func TestTablesCountEachAlone(t *testing.T) {
	pool := migrated(t)
	require.NoError(t, warehouse.Pick(t.Context(), pool, "p-1", batch("a", "b", "x")))
	require.NoError(t, warehouse.Award(t.Context(), pool, "p-1", batch("a", "a", "c", "y", "z")))
	a, err := audit.Tables(t.Context(), pool, sent("a", "b", "c"))
	require.NoError(t, err)
	require.Equal(t, lane.Counts{Expected: 3, Once: 2, Lost: 1, Unexpected: 1}, a.PickTasks)
	require.Equal(t, lane.Counts{Expected: 3, Once: 1, Lost: 1, Duplicated: 1, Unexpected: 2}, a.LoyaltyPoints)
	require.Equal(t, lane.Counts{Expected: 3, Duplicated: 1, Lost: 2, Unexpected: 3}, a.Rows)
}

// task is the effect of an event on an order.
func task(id, orderID string, sequence int64) warehouse.Effect {
	return warehouse.Effect{EventID: id, Event: order.Event{OrderID: orderID, Sequence: sequence}, CreatedAt: time.Now()}
}

func TestTablesOrder(t *testing.T) {
	for _, c := range []struct {
		name  string
		tasks []warehouse.Effect
		want  lane.Counts
	}{
		{"nothing", nil, lane.Counts{}},
		{"as they were sent, orders mixed, one lost",
			[]warehouse.Effect{task("a1", "A", 1), task("b1", "B", 1), task("a3", "A", 3), task("b2", "B", 2)},
			lane.Counts{Expected: 4, Once: 4}},
		{"a duplicate that comes later is none of it",
			[]warehouse.Effect{task("a1", "A", 1), task("a2", "A", 2), task("a1", "A", 1)},
			lane.Counts{Expected: 2, Once: 2}},
		{"first effects behind that of a later event",
			[]warehouse.Effect{task("a3", "A", 3), task("b1", "B", 1), task("a1", "A", 1), task("a2", "A", 2), task("a2", "A", 2)},
			lane.Counts{Expected: 4, Once: 2, Reordered: 2}},
		{"strangers overtake nobody",
			[]warehouse.Effect{task("x9", "A", 9), task("a1", "A", 1)},
			lane.Counts{Expected: 1, Once: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			pool := migrated(t)
			for _, one := range c.tasks { // a transaction each
				require.NoError(t, warehouse.Pick(t.Context(), pool, "p-1", []warehouse.Effect{one}))
			}
			// What has no task is not expected here, and points have no order.
			require.NoError(t, warehouse.Award(t.Context(), pool, "p-1", batch("b2", "a2")))
			a, err := audit.Tables(t.Context(), pool, sent("a1", "a2", "a3", "a4", "b1", "b2"))
			require.NoError(t, err)
			require.Equal(t, c.want, a.Order)
		})
	}
}

// Ids are taken when a row is written and say nothing of the commit: where the
// server tells when that was, it decides.
func TestTablesOrderIsThatOfTheCommits(t *testing.T) {
	pool, ctx := migrated(t), t.Context()
	late, err := pool.Begin(ctx)
	require.NoError(t, err)
	defer late.Rollback(ctx)
	// The order's row is left alone, or the second writer would wait for the first.
	const insert = `INSERT INTO pick_tasks (event_id, order_id, sequence, attempt, event_created_at) VALUES ($1, 'A', $2, 'p-1', now())`
	_, err = late.Exec(ctx, insert, "a1", 1)
	require.NoError(t, err)
	_, err = pool.Exec(ctx, insert, "a2", 2)
	require.NoError(t, err)
	require.NoError(t, late.Commit(ctx))

	a, err := audit.Tables(ctx, pool, sent("a1", "a2"))
	require.NoError(t, err)
	want := lane.Counts{Expected: 2, Once: 2}
	if a.CommitTimes {
		want = lane.Counts{Expected: 2, Once: 1, Reordered: 1}
	}
	require.Equal(t, want, a.Order)
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
		{EventID: "a", Attempt: "eos-0-1", Where: "pick_tasks", Position: "1", Key: "ord_a", Sequence: 1},
		{EventID: "a", Attempt: "eos-0-2", Where: "pick_tasks", Position: "2", Key: "ord_a", Sequence: 1},
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
	require.Less(t, latency.P50, longest(start), "longer than all of this took")
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
