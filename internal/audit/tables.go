package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/warehouse"
)

// TableAudit is what the handlers' tables hold.
type TableAudit struct {
	// Rows are the events by the worse of their two effects, a pick task and
	// points: lost where either is missing, else duplicated where either is there
	// more than one time.
	Rows lane.Counts
	// PickTasks and LoyaltyPoints are the events by their rows in one table alone.
	PickTasks     lane.Counts
	LoyaltyPoints lane.Counts
	// Order are the events that have a pick task, by whether the first task of each
	// was committed before those of all later events of its order. Where the server
	// keeps no time of commits, the order of the ids stands in for that of the
	// commits: a transaction that writes early and commits late is then taken for an
	// early one.
	Order lane.Counts
	// Effects are all rows, by table, then by id.
	Effects []Effect
	// Unexpected are the rows of events that nobody sent.
	Unexpected []Effect
	// CommitTimes says that the server keeps the time of each commit. Where it
	// does not (track_commit_timestamp is off, which is its default), the effects
	// have no time and a latency cannot be had: the time at which a row was
	// written is not the time at which anybody could see it.
	CommitTimes bool
}

// Tables audits pick_tasks and loyalty_points in the pool's search_path. It first
// waits until no transaction that has written to them is open: a client may be
// dead for a while before the server notices, and its commit may still be under
// way.
func Tables(ctx context.Context, pool *pgxpool.Pool, expected Expected) (TableAudit, error) {
	a, err := tables(ctx, pool, expected)
	if err != nil {
		return TableAudit{}, fmt.Errorf("audit tables %s and %s: %w", warehouse.PickTasks, warehouse.LoyaltyPoints, err)
	}
	return a, nil
}

func tables(ctx context.Context, pool *pgxpool.Pool, expected Expected) (a TableAudit, err error) {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return a, err
	}
	// Nothing is written here; this releases the lock.
	defer tx.Rollback(context.WithoutCancel(ctx))

	// SHARE conflicts with the ROW EXCLUSIVE lock that every writer holds until
	// it commits or aborts (PostgreSQL manual, 13.3.1), so it is had when the last
	// of them has ended, and keeps new ones out while both tables are read.
	if _, err := tx.Exec(ctx, `LOCK TABLE `+warehouse.PickTasks+`, `+warehouse.LoyaltyPoints+` IN SHARE MODE`); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("a transaction that has written to them is still open: %w", err)
		}
		return a, err
	}
	var tracked string
	if err := tx.QueryRow(ctx, `SHOW track_commit_timestamp`).Scan(&tracked); err != nil {
		return a, err
	}
	a.CommitTimes = tracked == "on"

	tasks, err := rows(ctx, tx, warehouse.PickTasks, `order_id, sequence`, a.CommitTimes)
	if err != nil {
		return a, err
	}
	points, err := rows(ctx, tx, warehouse.LoyaltyPoints, `'', 0`, a.CommitTimes)
	if err != nil {
		return a, err
	}
	picked, awarded := newTally(expected), newTally(expected)
	for _, e := range tasks {
		picked.add(e)
	}
	for _, e := range points {
		awarded.add(e)
	}
	a.Effects = slices.Concat(tasks, points)
	a.Unexpected = slices.Concat(picked.unexpected, awarded.unexpected)
	a.PickTasks = picked.counts(func(id string) lane.Outcome { return outcome(picked.found[id]) })
	a.LoyaltyPoints = awarded.counts(func(id string) lane.Outcome { return outcome(awarded.found[id]) })
	a.Order = inOrder(expected, tasks)
	a.Rows = picked.counts(func(id string) lane.Outcome {
		if picked.found[id] == 0 || awarded.found[id] == 0 {
			return lane.Lost
		}
		return outcome(max(picked.found[id], awarded.found[id]))
	})
	a.Rows.Unexpected = len(a.Unexpected)
	return a, nil
}

// rows reads a table of effects. What it has of key and sequence is two SQL
// expressions.
func rows(ctx context.Context, tx pgx.Tx, table, keyAndSequence string, commitTimes bool) ([]Effect, error) {
	at := `NULL::timestamptz`
	if commitTimes {
		// It works for the ids of subtransactions too, which are what rows
		// written behind a savepoint carry.
		at = `pg_xact_commit_timestamp(xmin)`
	}
	found, err := tx.Query(ctx, `SELECT id, event_id, attempt, `+at+`, `+keyAndSequence+` FROM `+table+` ORDER BY id`)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", table, err)
	}
	effects, err := pgx.CollectRows(found, func(row pgx.CollectableRow) (Effect, error) {
		e := Effect{Where: table}
		var id int64
		var at *time.Time
		if err := row.Scan(&id, &e.EventID, &e.Attempt, &at, &e.Key, &e.Sequence); err != nil {
			return Effect{}, err
		}
		e.Position = strconv.FormatInt(id, 10)
		if at != nil {
			e.At = *at
		}
		return e, nil
	})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", table, err)
	}
	return effects, nil
}

// undefinedTable is the SQLSTATE of a table that is not there (PostgreSQL manual,
// appendix A).
const undefinedTable = "42P01"

// DeadLetterRows counts the rows of dead_letters in the pool's search_path; where
// there is no such table there are none. An event whose handler gave up is lost in
// its scope all the same: this number is to be told beside it.
func DeadLetterRows(ctx context.Context, pool *pgxpool.Pool) (int, error) {
	var n int
	err := pool.QueryRow(ctx, `SELECT count(*) FROM dead_letters`).Scan(&n)
	var answered *pgconn.PgError
	if errors.As(err, &answered) && answered.Code == undefinedTable {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("count dead letters: %w", err)
	}
	return n, nil
}
