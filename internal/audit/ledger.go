package audit

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/delivered-twice/delivered-twice/internal/lane"
)

// LedgerAudit is what a third party has accepted.
type LedgerAudit struct {
	// Charges are the events by how often they were charged for.
	Charges lane.Counts
	// Effects are all charges, in the order of their ids in the ledger. Each has the
	// time at which it was accepted.
	Effects []Effect
	// Unexpected are the charges for events that nobody sent, and those that name no
	// event.
	Unexpected []Effect
}

// Ledger audits the charges in the ledger of a third party, which is in the pool's
// search_path. It first waits until no transaction that has written to it is open. A
// request that has not got that far is not waited for: the third party must have been
// told to end, or be known to have nothing in hand.
func Ledger(ctx context.Context, pool *pgxpool.Pool, expected Expected) (LedgerAudit, error) {
	a, err := ledger(ctx, pool, expected)
	if err != nil {
		return LedgerAudit{}, fmt.Errorf("audit the ledger of charges: %w", err)
	}
	return a, nil
}

func ledger(ctx context.Context, pool *pgxpool.Pool, expected Expected) (a LedgerAudit, err error) {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return a, err
	}
	// Nothing is written here; this releases the lock.
	defer tx.Rollback(context.WithoutCancel(ctx))

	// As in [Tables]: it is had when the last writer has ended.
	if _, err := tx.Exec(ctx, `LOCK TABLE ledger IN SHARE MODE`); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("a transaction that has written to it is still open: %w", err)
		}
		return a, err
	}
	found, err := tx.Query(ctx, `SELECT id, coalesce(event_id, ''), coalesce(attempt, ''), accepted_at FROM ledger WHERE object = 'charge' ORDER BY id`)
	if err != nil {
		return a, err
	}
	a.Effects, err = pgx.CollectRows(found, func(row pgx.CollectableRow) (Effect, error) {
		e := Effect{Where: string(lane.HTTP)}
		var id int64
		err := row.Scan(&id, &e.EventID, &e.Attempt, &e.At)
		e.Position = strconv.FormatInt(id, 10)
		return e, err
	})
	if err != nil {
		return a, err
	}
	charged := newTally(expected)
	for _, e := range a.Effects {
		charged.add(e)
	}
	a.Unexpected = charged.unexpected
	a.Charges = charged.counts(func(id string) lane.Outcome { return outcome(charged.found[id]) })
	return a, nil
}
