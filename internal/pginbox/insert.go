package pginbox

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// errKnown says that an id was there already.
var errKnown = errors.New("an event was delivered before")

// carefulBatches is how many batches are expected to have ids that are there, after
// one had. What comes again seldom comes alone.
const carefulBatches = 16

// expectsFresh says whether all ids of a batch are expected not to be there.
func (in *Inbox) expectsFresh() bool {
	if in.careful.Load() <= 0 {
		return true
	}
	in.careful.Add(-1)
	return false
}

// copiedRows is from how many ids on COPY is faster than INSERT: it takes three more round
// trips, and puts rows into the table by the page and not one by one (measured with 5,000
// ids: a fifth less of the server's time, and a quarter less of write-ahead log).
const copiedRows = 500

// begin begins a transaction, advances the stored offsets and inserts the ids of all
// pending events, in one round trip unless they are many. Pending are then only the
// fresh events, whose ids were not there; the others are done.
//
// Nearly all events are fresh, and for those ON CONFLICT costs the server half as much
// again as a plain INSERT: it looks the id up before it inserts it, and writes the row
// to the write-ahead log twice, as a speculative insertion and as its confirmation. So
// a batch is tried plainly first, or copied, which knows no ON CONFLICT at all. If an id
// is there, that fails (errKnown), and the next transaction leaves out what is there.
//
// The stored offsets come first: who has lost a partition learns it before it waits
// for anybody's ids.
//
// Where another transaction has inserted one of the ids and not ended yet, either
// INSERT waits for it (PostgreSQL manual, "Index Uniqueness Checks"): if it commits,
// the event is done, and if it rolls back, the event is ours. This is why the insert
// comes first. A SELECT would not wait, and both would do the work.
//
// The transaction is never nil, and must be rolled back even after an error.
func (d *delivery) begin(ctx context.Context) (pgx.Tx, error) {
	o := d.inbox.options
	var batch pgx.Batch
	batch.BeginTx(pgx.TxOptions{IsoLevel: o.Isolation})
	if o.AsynchronousCommit {
		batch.Queue(`SET LOCAL synchronous_commit = off`)
	}
	if o.Remember.offsets() {
		d.queueAdvance(&batch)
	}
	copied := o.Remember.ids() && d.expectsFresh && len(d.pending) >= copiedRows
	queued := o.Remember.ids() && !copied
	if queued {
		insert := d.inbox.ledger.insertMissing()
		if d.expectsFresh {
			insert = d.inbox.ledger.insert()
		}
		batch.Queue(insert, d.handler.Name, d.inbox.ledger.encode(inOrder(d.pending)))
	}
	results := d.inbox.pool.SendBatch(ctx, &batch)
	err := d.begun(ctx, results, queued)
	if closeErr := results.Close(); err == nil {
		err = statementError("remember events", closeErr)
	}
	if copied && err == nil {
		err = d.copyIDs(ctx, results.Tx())
	}
	return results.Tx(), err
}

// begun reads the results of begin, with those of an insert where one was queued.
func (d *delivery) begun(ctx context.Context, results pgx.BatchResults, inserts bool) error {
	o := d.inbox.options
	if _, err := results.Exec(); err != nil {
		return statementError("begin a transaction", err)
	}
	if err := d.pass(ctx, Begun, d.pending); err != nil {
		return err
	}
	if o.AsynchronousCommit {
		if _, err := results.Exec(); err != nil {
			return statementError("begin a transaction", err)
		}
	}
	if o.Remember.offsets() {
		if err := d.advanced(results); err != nil {
			return err
		}
	}
	if inserts {
		if err := d.inserted(results); err != nil {
			return err
		}
	}
	d.setAside()
	return nil
}

// inserted reads which ids were inserted.
func (d *delivery) inserted(results pgx.BatchResults) error {
	if d.expectsFresh {
		_, err := results.Exec()
		return d.insertError(err)
	}
	rows, err := results.Query()
	if err != nil {
		return statementError("insert event ids", err)
	}
	keys, err := d.inbox.ledger.collect(rows)
	if err != nil {
		return statementError("insert event ids", err)
	}
	d.keep(keys)
	return nil
}

// copyIDs inserts the ids of all pending events by COPY.
func (d *delivery) copyIDs(ctx context.Context, tx pgx.Tx) error {
	ledger, keys := d.inbox.ledger, inOrder(d.pending)
	_, err := tx.CopyFrom(ctx, pgx.Identifier{ledger.table()}, ledger.columns(), pgx.CopyFromSlice(len(keys), func(i int) ([]any, error) {
		return ledger.row(d.handler.Name, keys[i]), nil
	}))
	return d.insertError(err)
}

// insertError takes in that an id was there that was expected not to be.
func (d *delivery) insertError(err error) error {
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.Code == uniqueViolation {
		d.expectsFresh = false
		d.inbox.careful.Store(carefulBatches)
		return errKnown
	}
	return statementError("insert event ids", err)
}

// uniqueViolation is an SQLSTATE (PostgreSQL manual, appendix A).
const uniqueViolation = "23505"

// keep drops all pending events but those with the keys.
func (d *delivery) keep(keys []string) {
	if len(keys) == len(d.pending) {
		return
	}
	fresh := make(map[string]bool, len(keys))
	for _, key := range keys {
		fresh[key] = true
	}
	d.retain(func(it item) bool { return fresh[it.key] })
}

// retain drops the pending events that are not wanted.
func (d *delivery) retain(wanted func(item) bool) {
	if !slices.ContainsFunc(d.pending, func(it item) bool { return !wanted(it) }) {
		return
	}
	d.pending = filter(d.pending, wanted)
	d.filterParts(wanted)
}

// setAside takes the events that are to become dead letters out of the parts, because
// the handler is not to get them.
func (d *delivery) setAside() {
	if len(d.verdicts) > 0 {
		d.filterParts(func(it item) bool {
			_, dead := d.verdicts[it.key]
			return !dead
		})
	}
}

func (d *delivery) filterParts(wanted func(item) bool) {
	var parts [][]item
	for _, part := range d.parts {
		if part = filter(part, wanted); len(part) > 0 {
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

// inOrder returns the keys of the events in ascending order, so that two workers with the
// same ids take them in the same order and wait for each other instead of deadlocking. The
// order is that of the bytes: every program that inserts into these tables must use the
// same.
func inOrder(items []item) []string {
	keys := keysOf(items)
	slices.Sort(keys)
	return keys
}

func keysOf(items []item) []string {
	keys := make([]string, len(items))
	for i, it := range items {
		keys[i] = it.key
	}
	return keys
}

// commit makes work and what is remembered of it durable at once.
//
// If the connection is lost on the way, nobody knows whether the transaction was
// committed. That needs no case of its own: the next attempt begins with what is
// remembered, and so finds out.
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
