package shortcut

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/pginbox"
)

// delivery brings events to the handlers.
type delivery struct {
	shortcut *Shortcut
	log      *slog.Logger

	events []pginbox.Event // to be done, as far as is known, in their order
	// alone says that they are given to the handlers one by one, because all together
	// have failed.
	alone    bool
	attempts map[attempted]int // failures of an event alone

	outages  *backoff.ExponentialBackOff // pauses after an outage
	failures *backoff.ExponentialBackOff // pauses after events have failed alone
}

// attempted is one delivery of an event, and a handler that has failed with it.
type attempted struct {
	record  *kgo.Record
	handler string
}

func newDelivery(s *Shortcut, events []pginbox.Event) *delivery {
	return &delivery{
		shortcut: s,
		log:      s.options.Logger,
		events:   events,
		attempts: make(map[attempted]int),
		outages:  newBackoff(s.options.RetryBackoff),
		failures: newBackoff(s.options.RetryBackoff),
	}
}

// newBackoff returns pauses that start at about first, double, and end at a
// hundredfold.
func newBackoff(first time.Duration) *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.Multiplier, b.MaxInterval = first, 2, 100*first
	return b
}

// run returns nil when every event is done, left out by the guard, or a dead letter.
func (d *delivery) run(ctx context.Context) (err error) {
	d.events, err = d.shortcut.guard.before(ctx, d)
	for err == nil && len(d.events) > 0 {
		err = d.waitOut(ctx, func() error { return d.transaction(ctx) })
		var failed *failure
		if !errors.As(err, &failed) {
			break
		}
		err = d.again(ctx, failed)
	}
	if err != nil {
		d.shortcut.guard.abandon(d.events)
	}
	return err
}

// again prepares another attempt after events have failed.
func (d *delivery) again(ctx context.Context, failed *failure) error {
	if !d.alone {
		d.alone = true
		d.log.Info("events failed together; they are tried one by one", "events", len(d.events), "cause", failed.err)
		return nil
	}
	return sleep(ctx, d.failures.NextBackOff())
}

// waitOut calls do again for as long as it returns an [outage], and ctx lasts.
func (d *delivery) waitOut(ctx context.Context, do func() error) error {
	for {
		err := do()
		var broken *outage
		if !errors.As(err, &broken) {
			d.outages.Reset()
			return err
		}
		pause := d.outages.NextBackOff()
		if ctx.Err() == nil {
			d.log.Warn("a delivery failed through no fault of its events; it is tried again", "events", len(d.events), "after", pause, "cause", err)
		}
		if stopped := sleep(ctx, pause); stopped != nil {
			return fmt.Errorf("%w, the last attempt: %w", stopped, broken.err)
		}
	}
}

// sleep returns early, with the context's error, when ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	return ctx.Err()
}

// transaction is one attempt at the events.
//
// Where the answer to COMMIT is lost, the attempt has failed as far as anybody knows,
// and the next one does the work again. Only a guard that asks the database itself
// finds out.
func (d *delivery) transaction(ctx context.Context) error {
	tx, err := d.shortcut.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return statementError("begin a transaction", err)
	}
	defer func() { _ = tx.Rollback(ctx) }() // after a commit this does nothing
	if err := d.pass(ctx, pginbox.Begun, "", d.events); err != nil {
		return err
	}
	fresh, err := d.shortcut.guard.inside(ctx, tx, d)
	if err != nil || len(fresh) == 0 {
		return err
	}
	if err := d.work(ctx, tx, fresh); err != nil {
		return err
	}
	if err := d.commit(ctx, tx); err != nil {
		return err
	}
	if err := d.pass(ctx, pginbox.Committed, "", fresh); err != nil {
		return err
	}
	d.shortcut.guard.after(fresh)
	return nil
}

func (d *delivery) commit(ctx context.Context, tx pgx.Tx) error {
	err := tx.Commit(ctx)
	if !d.alone && (refused(err) || errors.Is(err, pgx.ErrTxCommitRollback)) {
		return &failure{fmt.Errorf("commit: %w", err)} // a deferred constraint, for example
	}
	return statementError("commit", err)
}

// work gives the events to every handler. If some have failed alone and are to be
// tried again, all are, in another transaction, so that the batch stays one.
func (d *delivery) work(ctx context.Context, tx pgx.Tx, events []pginbox.Event) error {
	var again *failure
	for _, h := range d.shortcut.options.Handlers {
		var err error
		if d.alone {
			err = d.oneByOne(ctx, tx, h, events)
		} else {
			err = handlerError(ctx, tx.Conn(), call(ctx, tx, h, events))
		}
		if err != nil && (!d.alone || !errors.As(err, &again)) {
			return err
		}
		if err := d.pass(ctx, pginbox.Worked, h.Name, events); err != nil {
			return err
		}
	}
	if again != nil {
		return again
	}
	return nil
}

// oneByOne gives every event to a handler alone, under a savepoint, and stores as a
// dead letter what has failed often enough. It returns a [failure] if something is to
// be tried again.
func (d *delivery) oneByOne(ctx context.Context, tx pgx.Tx, h pginbox.Handler, events []pginbox.Event) error {
	var again *failure
	for _, e := range events {
		err := pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error {
			return call(ctx, savepoint, h, []pginbox.Event{e})
		})
		err = handlerError(ctx, tx.Conn(), err)
		var failed *failure
		if !errors.As(err, &failed) {
			if err != nil {
				return err
			}
			continue
		}
		d.attempts[attempted{e.Record, h.Name}]++
		attempts := d.attempts[attempted{e.Record, h.Name}]
		d.log.Warn("an event failed", "handler", h.Name, "event", e.ID, "attempt", attempts, "cause", failed.err)
		if attempts < d.shortcut.options.MaxAttempts && !pginbox.IsPermanent(failed.err) {
			again = failed
			continue
		}
		if err := d.bury(ctx, tx, h.Name, e, failed.err, attempts); err != nil {
			return err
		}
	}
	if again != nil {
		return again
	}
	return nil
}

// call gives events to a handler. A panic of its own is an error.
func call(ctx context.Context, tx pgx.Tx, h pginbox.Handler, events []pginbox.Event) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
		}
	}()
	return h.Handle(ctx, tx, events)
}

// pass calls the hook, where there is one.
func (d *delivery) pass(ctx context.Context, step pginbox.Step, handler string, events []pginbox.Event) error {
	if d.shortcut.options.Hook == nil {
		return nil
	}
	err := d.shortcut.options.Hook(ctx, pginbox.Passage{Step: step, Handler: handler, Events: events})
	if err != nil {
		return &outage{fmt.Errorf("step %s: %w", step, err)}
	}
	return nil
}
