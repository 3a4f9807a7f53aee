package pginbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
)

// delivery brings events to one handler.
type delivery struct {
	inbox   *Inbox
	handler Handler
	log     *slog.Logger

	// Where offsets are remembered: what this owner has claimed, what the batch covers
	// of it, and the offsets that the transaction in hand moves.
	claims   *claims
	covered  []stretch
	advances []advance

	// expectsFresh says that no id of the pending events is expected to be there.
	expectsFresh bool

	pending []item // not known to be done or dead, in their order
	// parts are the pending events again, in the groups in which the handler gets
	// them: at first one, and whatever fails is halved. They outlive a transaction
	// that is lost, so that what was learned about the events is not lost with it.
	parts    [][]item
	attempts map[string]int     // failures of an event alone, by key
	verdicts map[string]verdict // the events that are to become dead letters, by key

	outages  *backoff.ExponentialBackOff // pauses after an outage
	failures *backoff.ExponentialBackOff // pauses after events have failed alone
}

// verdict is why an event is to become a dead letter.
type verdict struct {
	cause    error
	attempts int
}

func newDelivery(in *Inbox, h Handler, items []item, held *claims, covered []stretch) *delivery {
	d := &delivery{
		inbox:        in,
		handler:      h,
		log:          in.options.Logger.With("handler", h.Name),
		claims:       held,
		covered:      covered,
		expectsFresh: in.expectsFresh(),
		pending:      items,
		parts:        [][]item{items},
		attempts:     make(map[string]int),
		verdicts:     make(map[string]verdict),
		outages:      newBackoff(in.options.RetryBackoff),
		failures:     newBackoff(in.options.RetryBackoff),
	}
	for _, it := range items {
		if it.unfit != nil {
			d.verdicts[it.key] = verdict{cause: it.unfit}
		}
	}
	return d
}

// run returns nil when every event is done or a dead letter.
func (d *delivery) run(ctx context.Context) error {
	for {
		err := d.transaction(ctx)
		if err == nil && len(d.pending) == 0 {
			return nil
		}
		var (
			failed *failure
			broken *outage
			pause  time.Duration
		)
		switch {
		case err == nil: // and some events failed
			d.outages.Reset()
			pause = d.failures.NextBackOff()
		case errors.As(err, &broken):
			pause = d.outages.NextBackOff()
			if ctx.Err() == nil {
				d.log.Warn("a delivery failed through no fault of its events; it is tried again", "events", len(d.pending), "after", pause, "cause", err)
			}
		case errors.Is(err, errAhead), errors.Is(err, errKnown): // the next attempt knows
		case errors.As(err, &failed):
			if failed.again {
				pause = d.failures.NextBackOff()
			} // else the next attempt differs from this one
		default:
			return err
		}
		if stopped := sleep(ctx, pause); stopped != nil {
			if err == nil {
				return fmt.Errorf("%w, and %d events still fail", stopped, len(d.pending))
			}
			return fmt.Errorf("%w, the last attempt: %w", stopped, err)
		}
	}
}

// transaction is one attempt at the pending events: it first stores what is to be
// remembered of them, does the work of those that were not done before, and commits
// both. Pending are then only those that failed and are to be tried again.
func (d *delivery) transaction(ctx context.Context) error {
	if err := d.inbox.prepare(ctx); err != nil {
		return err
	}
	if err := d.plan(); err != nil {
		return err
	}
	tx, err := d.begin(ctx)
	defer func() { _ = tx.Rollback(ctx) }() // after a commit this does nothing
	if err != nil {
		return err
	}
	if err := d.pass(ctx, Inserted, d.pending); err != nil {
		return err
	}
	if len(d.pending) == 0 && !d.moves() {
		return nil // every event was done before, and is remembered
	}
	settled, again, err := d.work(ctx, tx)
	if err != nil {
		return err
	}
	for _, it := range settled {
		if v, dead := d.verdicts[it.key]; dead {
			d.logDead(it, v)
		}
	}
	if err := d.pass(ctx, Committed, settled); err != nil {
		return err
	}
	d.learnCommitted()
	d.pending = again
	if d.ordered() {
		d.parts = d.parts[d.partsBefore(again):]
	} else {
		d.parts = slices.Collect(slices.Chunk(again, 1))
	}
	return nil
}

// ordered says that no event may be done before one that comes earlier.
func (d *delivery) ordered() bool { return d.inbox.options.Remember.offsets() }

// partsBefore returns how many parts come before the one that begins with the first
// of the events.
func (d *delivery) partsBefore(items []item) int {
	if len(items) == 0 {
		return len(d.parts)
	}
	return slices.IndexFunc(d.parts, func(part []item) bool { return part[0].key == items[0].key })
}

// work does the work of the pending events and commits it. It returns the events that
// are done or dead by that, and those that failed and are to be tried again.
func (d *delivery) work(ctx context.Context, tx pgx.Tx) (settled, again []item, err error) {
	failed := make(map[string]bool)
	whole := len(d.parts) == 1
	if whole {
		err = d.call(ctx, tx, d.parts[0])
	} else {
		err = d.isolate(ctx, tx, failed)
	}
	if err == nil {
		settled, again, err = d.settle(ctx, tx, failed)
	}
	if err == nil {
		err = d.pass(ctx, Worked, settled)
	}
	if err == nil {
		err = commit(ctx, tx)
	}
	if f := (*failure)(nil); errors.As(err, &f) {
		if !whole {
			// Each part has passed, deferred constraints included, and yet COMMIT was
			// refused: there is nobody to blame.
			return nil, nil, f.err
		}
		d.blame(0, f)
	}
	return settled, again, err
}

// blame takes in that the handler failed with a part. Several events are halved; for
// a single one this was an attempt.
func (d *delivery) blame(part int, f *failure) {
	items := d.parts[part]
	if len(items) > 1 {
		half := (len(items) + 1) / 2
		d.parts = slices.Replace(d.parts, part, part+1, items[:half], items[half:])
		d.log.Info("events failed together; they are tried in two parts", "events", len(items), "cause", f.err)
		return
	}
	it := items[0]
	d.attempts[it.key]++
	attempts := d.attempts[it.key]
	f.again = attempts < d.inbox.options.MaxAttempts && !errors.Is(f.err, errPermanent)
	if !f.again {
		d.verdicts[it.key] = verdict{f.err, attempts}
	}
	d.log.Warn("an event failed", "event", it.ID, "attempt", attempts, "again", f.again, "cause", f.err)
}

func (d *delivery) pass(ctx context.Context, step Step, items []item) error {
	if d.inbox.options.Hook == nil {
		return nil
	}
	return d.inbox.options.Hook.pass(ctx, Passage{Step: step, Handler: d.handler.Name, Events: eventsOf(items)})
}
