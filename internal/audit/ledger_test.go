package audit_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/audit"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

// accepted is a line in the ledger.
type accepted struct{ object, event, attempt string }

func newLedger(t *testing.T, lines ...accepted) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), sandboxtest.Database(t))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	_, err = pool.Exec(t.Context(), `CREATE TABLE ledger (
		id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, object text NOT NULL, object_id text NOT NULL, client_id text NOT NULL,
		idem_key text, event_id text, attempt text, accepted_at timestamptz NOT NULL DEFAULT clock_timestamp())`)
	require.NoError(t, err)
	for _, l := range lines {
		_, err := pool.Exec(t.Context(), `INSERT INTO ledger (object, object_id, client_id, event_id, attempt)
			VALUES ($1, 'x', 'client', nullif($2, ''), nullif($3, ''))`, l.object, l.event, l.attempt)
		require.NoError(t, err)
	}
	return pool
}

func TestLedgerCounts(t *testing.T) {
	charge := func(event string) accepted { return accepted{"charge", event, "p-1"} }
	email := func(event string) accepted { return accepted{"email", event, "p-1"} }
	for _, c := range []struct {
		name  string
		lines []accepted
		want  lane.Counts
	}{
		{"nothing", nil, lane.Counts{Expected: 2, Lost: 2}},
		{"each once", []accepted{charge("a"), charge("b")}, lane.Counts{Expected: 2, Once: 2}},
		{"one twice, one never", []accepted{charge("a"), charge("a"), charge("a")}, lane.Counts{Expected: 2, Duplicated: 1, Lost: 1}},
		{"an email is no charge", []accepted{charge("a"), email("a"), email("b")}, lane.Counts{Expected: 2, Once: 1, Lost: 1}},
		{"what nobody sent, and what says nothing", []accepted{charge("a"), charge("b"), charge("x"), charge("")},
			lane.Counts{Expected: 2, Once: 2, Unexpected: 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := audit.Ledger(t.Context(), newLedger(t, c.lines...), sent("a", "b"))
			require.NoError(t, err)
			require.Equal(t, c.want, a.Charges)
			require.Len(t, a.Unexpected, c.want.Unexpected)
		})
	}
}

func TestLedgerTellsWhichAttemptWasCharged(t *testing.T) {
	start := time.Now()
	a, err := audit.Ledger(t.Context(), newLedger(t, accepted{"charge", "a", "eos-0.1"}, accepted{"email", "a", ""}, accepted{"charge", "a", ""}), sent("a"))
	require.NoError(t, err)
	for i, e := range a.Effects {
		require.WithinRange(t, e.At, start.Add(-time.Second), time.Now().Add(time.Second))
		a.Effects[i].At = time.Time{}
	}
	require.Equal(t, []audit.Effect{
		{EventID: "a", Attempt: "eos-0.1", Where: "http", Position: "1"},
		{EventID: "a", Where: "http", Position: "3"},
	}, a.Effects)
}

func TestLedgerWaitsForAnOpenTransaction(t *testing.T) {
	pool, ctx := newLedger(t), t.Context()
	tx, err := pool.Begin(ctx)
	require.NoError(t, err)
	defer tx.Rollback(ctx)
	_, err = tx.Exec(ctx, `INSERT INTO ledger (object, object_id, client_id, event_id) VALUES ('charge', 'x', 'client', 'a')`)
	require.NoError(t, err)

	short, cancelShort := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancelShort()
	_, err = audit.Ledger(short, pool, sent("a"))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "a transaction that has written to it is still open")

	seen, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	committed := make(chan error, 1)
	go func() {
		for waiting := 0; waiting == 0 && seen.Err() == nil; {
			// Where it ends early, the assertions on the result tell.
			_ = pool.QueryRow(seen, `SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'ledger'::regclass`).Scan(&waiting)
		}
		committed <- tx.Commit(ctx)
	}()
	a, err := audit.Ledger(seen, pool, sent("a"))
	cancel()
	require.NoError(t, <-committed)
	require.NoError(t, err)
	require.Equal(t, lane.Counts{Expected: 1, Once: 1}, a.Charges)
}
