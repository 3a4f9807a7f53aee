package pginbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// isolate does the work part by part, each under a savepoint, so that one that fails
// takes nothing of the others with it; what fails is halved, and its halves come next.
// The events that failed alone are added to failed. Where order is kept, the first of
// them that is to be tried again ends it: whatever comes later has to wait.
//
// Savepoints and not transactions of their own, so that the batch stays one: whatever
// else is to be atomic with it needs only to be in the same transaction.
func (d *delivery) isolate(ctx context.Context, tx pgx.Tx, failed map[string]bool) error {
	for i := 0; i < len(d.parts); {
		part := d.parts[i]
		err := d.attempt(ctx, tx, part)
		if err == nil {
			i++
			continue
		}
		var f *failure
		if !errors.As(err, &f) {
			return err
		}
		d.blame(i, f)
		if len(part) == 1 {
			failed[part[0].key] = true
			i++
		}
		if _, err := tx.Exec(ctx, rollbackToSavepoint); err != nil {
			// The handler has left the connection in a state that no savepoint helps
			// out of. A new transaction does.
			return &outage{fmt.Errorf("roll back to savepoint after %w: %w", f.err, err)}
		}
		if f.again && d.ordered() {
			return nil
		}
	}
	return nil
}

const (
	setSavepoint        = `SAVEPOINT pginbox_part`
	rollbackToSavepoint = `ROLLBACK TO SAVEPOINT pginbox_part; RELEASE SAVEPOINT pginbox_part`
	releaseSavepoint    = `RELEASE SAVEPOINT pginbox_part`
	// rehearseCommit checks the deferred constraints now, while it is still known
	// whose they are, and undoes that, so that they are deferred for the next part.
	rehearseCommit = `SAVEPOINT pginbox_rehearsal; SET CONSTRAINTS ALL IMMEDIATE; ROLLBACK TO SAVEPOINT pginbox_rehearsal`
)

// attempt calls the handler under a savepoint, which it leaves in place on a failure.
func (d *delivery) attempt(ctx context.Context, tx pgx.Tx, items []item) error {
	if _, err := tx.Exec(ctx, setSavepoint); err != nil {
		return statementError("set a savepoint", err)
	}
	if err := d.call(ctx, tx, items); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, rehearseCommit+`; `+releaseSavepoint)
	if refused(err) {
		return &failure{err: err}
	}
	return statementError("release a savepoint", err)
}

// settle stores the dead letters among the pending events, and takes back what is
// remembered of those that are to be tried again: those that failed and, where order
// is kept, all that come later.
func (d *delivery) settle(ctx context.Context, tx pgx.Tx, failed map[string]bool) (settled, again []item, err error) {
	for _, it := range d.pending {
		v, dead := d.verdicts[it.key]
		if late := d.ordered() && len(again) > 0; late || failed[it.key] && !dead {
			again = append(again, it)
			continue
		}
		if dead {
			if err := d.bury(ctx, tx, it, v); err != nil {
				return nil, nil, err
			}
		}
		settled = append(settled, it)
	}
	if len(again) == 0 {
		return settled, nil, nil
	}
	if d.inbox.options.Remember.ids() {
		if _, err := tx.Exec(ctx, d.inbox.ledger.remove(), d.handler.Name, d.inbox.ledger.encode(keysOf(again))); err != nil {
			return nil, nil, statementError("take back event ids", err)
		}
	}
	return settled, again, d.holdBack(ctx, tx, again)
}
