package pginbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// delivery brings events to one handler.
type delivery struct {
	inbox   *Inbox
	handler Handler
	log     *slog.Logger

	pending []item // in their order; not known to be done or dead
	// together is how many events the handler may get without a savepoint around
	// them. It shrinks with every failure, until each event is alone.
	together int
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

func newDelivery(in *Inbox, h Handler, items []item) *delivery {
	d := &delivery{
		inbox:    in,
		handler:  h,
		log:      in.options.Logger.With("handler", h.Name),
		pending:  items,
		together: len(items),
		attempts: make(map[string]int),
		verdicts: make(map[string]verdict),
		outages:  newBackoff(in.options.RetryBackoff),
		failures: newBackoff(in.options.RetryBackoff),
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
		again, err := d.transaction(ctx)
		if err == nil && len(again) == 0 {
			return nil
		}
		var (
			failed *failure
			broken *outage
			pause  time.Duration
		)
		switch {
		case err == nil:
			d.pending = again
			d.outages.Reset()
			pause = d.failures.NextBackOff()
		case errors.As(err, &broken):
			pause = d.outages.NextBackOff()
			if ctx.Err() == nil {
				d.log.Warn("a delivery failed through no fault of its events; it is tried again", "events", len(d.pending), "after", pause, "cause", err)
			}
		case errors.As(err, &failed):
			if failed.again {
				pause = d.failures.NextBackOff()
			}
		default:
			return err
		}
		if stopped := sleep(ctx, pause); stopped != nil {
			if err == nil {
				return fmt.Errorf("%w, and %d events still fail", stopped, len(again))
			}
			return fmt.Errorf("%w, the last attempt: %w", stopped, err)
		}
	}
}

// transaction is one attempt at all pending events: it inserts their ids first, does
// the work of those whose ids were not there, and commits both. It returns the
// events that failed and are to be tried again; the others are then done, or dead.
func (d *delivery) transaction(ctx context.Context) (again []item, err error) {
	if err := d.inbox.prepare(ctx); err != nil {
		return nil, err
	}
	tx, fresh, err := d.insert(ctx)
	defer func() { _ = tx.Rollback(ctx) }() // after a commit this does nothing
	if err != nil {
		return nil, err
	}
	if err := d.pass(ctx, Inserted, fresh); err != nil {
		return nil, err
	}
	if len(fresh) == 0 {
		return nil, nil // every event was done before
	}

	sound := d.sound(fresh)
	whole := len(sound) <= d.together
	failed := make(map[string]bool)
	if whole {
		err = d.call(ctx, tx, sound)
	} else {
		err = d.isolate(ctx, tx, sound, failed)
	}
	var settled []item
	if err == nil {
		settled, again, err = d.settle(ctx, tx, fresh, failed)
	}
	if err == nil {
		err = d.pass(ctx, Worked, settled)
	}
	if err == nil {
		err = commit(ctx, tx)
	}
	if f := (*failure)(nil); errors.As(err, &f) {
		if !whole || len(sound) == 0 {
			// Each part has passed, deferred constraints included, and the whole was
			// refused: there is nobody to blame.
			return nil, f.err
		}
		d.blame(sound, f)
	}
	if err != nil {
		return nil, err
	}
	d.reportDead(settled)
	return again, d.pass(ctx, Committed, settled)
}

// sound returns the events that no verdict is known of.
func (d *delivery) sound(items []item) []item {
	if len(d.verdicts) == 0 {
		return items
	}
	var sound []item
	for _, it := range items {
		if _, dead := d.verdicts[it.key]; !dead {
			sound = append(sound, it)
		}
	}
	return sound
}

// blame takes in that the handler failed with these events. Several are tried in
// smaller parts from now on; for a single one, this was an attempt.
func (d *delivery) blame(items []item, f *failure) {
	if len(items) > 1 {
		d.together = min(d.together, (len(items)+1)/2)
		d.log.Info("a batch failed; its events are tried in smaller parts", "events", len(items), "cause", f.err)
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
