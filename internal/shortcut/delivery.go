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

// delivery brings events to one handler.
type delivery struct {
	shortcut *Shortcut
	handler  pginbox.Handler
	log      *slog.Logger

	events []pginbox.Event // to be done, as far as is known, in their order
	// alone says that they are given to the handler one by one, because all together
	// have failed.
	alone    bool
	attempts map[*kgo.Record]int // failures of an event alone

	outages  *backoff.ExponentialBackOff // pauses after an outage
	failures *backoff.ExponentialBackOff // pauses after events have failed alone
}

func newDelivery(s *Shortcut, h pginbox.Handler, events []pginbox.Event) *delivery {
	return &delivery{
		shortcut: s,
		handler:  h,
		log:      s.options.Logger.With("handler", h.Name),
		events:   events,
		attempts: make(map[*kgo.Record]int),
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
		d.shortcut.guard.abandon(d.handler.Name, d.events)
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
	if err := d.pass(ctx, pginbox.Begun, d.events); err != nil {
		return err
	}
	fresh, err := d.shortcut.guard.inside(ctx, tx, d)
	if err != nil || len(fresh) == 0 {
		return err
	}
	if d.alone {
		err = d.workOneByOne(ctx, tx, fresh)
	} else {
		err = handlerError(ctx, tx.Conn(), d.call(ctx, tx, fresh))
	}
	if err != nil {
		return err
	}
	if err := d.pass(ctx, pginbox.Worked, fresh); err != nil {
		return err
	}
	if err := d.commit(ctx, tx); err != nil {
		return err
	}
	if err := d.pass(ctx, pginbox.Committed, fresh); err != nil {
		return err
	}
	d.shortcut.guard.after(d.handler.Name, fresh)
	return nil
}

func (d *delivery) commit(ctx context.Context, tx pgx.Tx) error {
	err := tx.Commit(ctx)
	if !d.alone && (refused(err) || errors.Is(err, pgx.ErrTxCommitRollback)) {
		return &failure{fmt.Errorf("commit: %w", err)} // a deferred constraint, for example
	}
	return statementError("commit", err)
}

// workOneByOne gives every event to the handler alone, under a savepoint, and stores
// as a dead letter what has failed often enough. If some are to be tried again, all
// are, in another transaction, so that the batch stays one.
func (d *delivery) workOneByOne(ctx context.Context, tx pgx.Tx, events []pginbox.Event) error {
	var again *failure
	for _, e := range events {
		err := pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error {
			return d.call(ctx, savepoint, []pginbox.Event{e})
		})
		err = handlerError(ctx, tx.Conn(), err)
		var failed *failure
		if !errors.As(err, &failed) {
			if err != nil {
				return err
			}
			continue
		}
		d.attempts[e.Record]++
		attempts := d.attempts[e.Record]
		d.log.Warn("an event failed", "event", e.ID, "attempt", attempts, "cause", failed.err)
		if attempts < d.shortcut.options.MaxAttempts {
			again = failed
			continue
		}
		if err := d.bury(ctx, tx, e, failed.err, attempts); err != nil {
			return err
		}
	}
	if again != nil {
		return again
	}
	return nil
}

// call gives events to the handler. A panic of its own is an error.
func (d *delivery) call(ctx context.Context, tx pgx.Tx, events []pginbox.Event) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
		}
	}()
	return d.handler.Handle(ctx, tx, events)
}

// pass calls the hook, where there is one.
func (d *delivery) pass(ctx context.Context, step pginbox.Step, events []pginbox.Event) error {
	if d.shortcut.options.Hook == nil {
		return nil
	}
	err := d.shortcut.options.Hook(ctx, pginbox.Passage{Step: step, Handler: d.handler.Name, Events: events})
	if err != nil {
		return &outage{fmt.Errorf("step %s: %w", step, err)}
	}
	return nil
}
