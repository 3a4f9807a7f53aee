package pginbox

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// insert begins a transaction and inserts the ids of all pending events, in one
// round trip. Pending are then only the fresh events, whose ids were not there; the
// others are done.
//
// Where another transaction has inserted one of the ids and not ended yet, INSERT
// waits for it (PostgreSQL manual, "Index Uniqueness Checks"): if it commits, the
// event is done, and if it rolls back, the event is ours. This is why the insert
// comes first. A SELECT would not wait, and both would do the work.
//
// The transaction is never nil, and must be rolled back even after an error.
func (d *delivery) insert(ctx context.Context) (pgx.Tx, error) {
	// In ascending order, so that two workers with the same ids take them in the same
	// order and wait for each other instead of deadlocking. The order is that of the
	// bytes: every program that inserts into these tables must use the same.
	keys := keysOf(d.pending)
	slices.Sort(keys)

	var batch pgx.Batch
	batch.BeginTx(pgx.TxOptions{IsoLevel: d.inbox.options.Isolation})
	batch.Queue(d.inbox.ledger.insert(), d.handler.Name, d.inbox.ledger.encode(keys))
	results := d.inbox.pool.SendBatch(ctx, &batch)
	inserted, err := d.inserted(ctx, results)
	if closeErr := results.Close(); err == nil {
		err = statementError("insert event ids", closeErr)
	}
	if err == nil {
		d.keep(inserted)
	}
	return results.Tx(), err
}

func (d *delivery) inserted(ctx context.Context, results pgx.BatchResults) ([]string, error) {
	if _, err := results.Exec(); err != nil {
		return nil, statementError("begin a transaction", err)
	}
	if err := d.pass(ctx, Begun, d.pending); err != nil {
		return nil, err
	}
	rows, err := results.Query()
	if err != nil {
		return nil, statementError("insert event ids", err)
	}
	keys, err := d.inbox.ledger.collect(rows)
	return keys, statementError("insert event ids", err)
}

// keep drops all pending events but those with the keys, and takes those that are to
// become dead letters out of the parts, because the handler is not to get them.
func (d *delivery) keep(keys []string) {
	if len(keys) == len(d.pending) && len(d.verdicts) == 0 {
		return
	}
	fresh := make(map[string]bool, len(keys))
	for _, key := range keys {
		fresh[key] = true
	}
	d.pending = filter(d.pending, func(it item) bool { return fresh[it.key] })
	var parts [][]item
	for _, part := range d.parts {
		part = filter(part, func(it item) bool {
			_, dead := d.verdicts[it.key]
			return fresh[it.key] && !dead
		})
		if len(part) > 0 {
			parts = append(parts, part)
		}
	}
	d.parts = parts
}

func filter(items []item, keep func(item) bool) []item {
	var kept []item
	for _, it := range items {
		if keep(it) {
			kept = append(kept, it)
		}
	}
	return kept
}

func keysOf(items []item) []string {
	keys := make([]string, len(items))
	for i, it := range items {
		keys[i] = it.key
	}
	return keys
}

// commit makes inbox rows and work durable at once.
//
// If the connection is lost on the way, nobody knows whether the transaction was
// committed. That needs no case of its own: the next attempt inserts the ids first,
// and so finds out.
func commit(ctx context.Context, tx pgx.Tx) error {
	err := tx.Commit(ctx)
	if err == nil {
		return nil
	}
	wrapped := fmt.Errorf("commit: %w", err)
	if refused(err) || errors.Is(err, pgx.ErrTxCommitRollback) {
		return &failure{err: wrapped} // a deferred constraint, for example
	}
	return &outage{wrapped}
}
