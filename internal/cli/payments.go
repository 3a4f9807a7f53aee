package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/pflag"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/delivered-twice/delivered-twice/internal/kafkatx"
	"github.com/delivered-twice/delivered-twice/internal/payments"
	"github.com/delivered-twice/delivered-twice/internal/pginbox"
	"github.com/delivered-twice/delivered-twice/internal/warehouse"
)

const (
	callNothing  = "none"
	callPayments = "payments"

	flagIdempotencyKey = "idempotency-key"

	handlerPayment = "payment"
)

// caller is the part of a pipeline that calls a third party.
type caller struct {
	call           string
	idempotencyKey bool
	client         *payments.Client // with --call=payments
}

func (c *caller) flags(f *pflag.FlagSet) {
	f.StringVar(&c.call, "call", callNothing, "what is called for every event: none, or payments for the API at $PAYMENTS_URL with the key in $PAYMENTS_KEY")
	f.BoolVar(&c.idempotencyKey, flagIdempotencyKey, false, "with --call=payments: send the event's id along as Idempotency-Key")
}

func (c *caller) payments() bool { return c.call == callPayments }

// check refuses flags that mean nothing, and makes the client. Address and key come by
// the environment alone: arguments are for everybody on the machine to see.
func (c *caller) check(log *slog.Logger) (err error) {
	switch {
	case c.call != callNothing && c.call != callPayments:
		return Usage(fmt.Errorf("--call is %q, must be %s or %s", c.call, callNothing, callPayments))
	case !c.payments() && c.idempotencyKey:
		return Usage(fmt.Errorf("--%s needs --call=%s: without a call there is nothing to send it with", flagIdempotencyKey, callPayments))
	case !c.payments():
		return nil
	}
	o := payments.ClientOptions{URL: os.Getenv("PAYMENTS_URL"), Key: os.Getenv("PAYMENTS_KEY"), Logger: log}
	switch {
	case o.URL == "":
		return Usage(fmt.Errorf("no payments API for --call=%s: set PAYMENTS_URL", callPayments))
	case o.Key == "":
		return Usage(fmt.Errorf("no key of the payments API for --call=%s: set PAYMENTS_KEY", callPayments))
	}
	if c.client, err = payments.NewClient(o); err != nil {
		return Usage(fmt.Errorf("PAYMENTS_URL and PAYMENTS_KEY: %w", err))
	}
	return nil
}

// ping refuses to start without the API, as without any other service. It asks more
// than once: an API that loses answers now and then is what the client is made for.
func (c *caller) ping(ctx context.Context) error {
	if !c.payments() {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, firstAnswer)
	defer cancel()
	if err := c.client.Ping(asking); err != nil {
		return fmt.Errorf("the payments API cannot be used: %w; check PAYMENTS_URL, PAYMENTS_KEY, and that it is up", err)
	}
	return nil
}

func (c *caller) close() {
	if c.client != nil {
		c.client.Close()
	}
}

// charge charges for every event. An error is nobody's fault, and then nothing is known
// of any of them; else refused has for each event nil, or why it is at fault.
func (c *caller) charge(ctx context.Context, attempt string, effects []warehouse.Effect) (refused []error, err error) {
	charges := make([]payments.ChargeParams, len(effects))
	for i, e := range effects {
		charges[i] = payments.ChargeParams{
			Amount:      e.Event.AmountMinor,
			Currency:    e.Event.Currency,
			Description: fmt.Sprintf("order %s, payment %d", e.Event.OrderID, e.Event.Sequence),
			Metadata:    map[string]string{"event_id": e.EventID, "attempt": attempt},
		}
		if c.idempotencyKey {
			charges[i].IdempotencyKey = payments.Key(e.EventID, handlerPayment)
		}
	}
	refused = c.client.ChargeAll(ctx, charges)
	for i, err := range refused {
		var fault *payments.RequestError
		if err != nil && !errors.As(err, &fault) {
			return nil, err
		}
		if err != nil {
			refused[i] = fmt.Errorf("event %s: %w", effects[i].EventID, err)
		}
	}
	return refused, nil
}

// charge is the handler named payment. Whatever makes its transaction roll back, another
// event of the batch included, makes it charge again.
func (p *inboxPipeline) charge(ctx context.Context, tx pgx.Tx, events []pginbox.Event) error {
	effects, err := effectsOf(events) // all of them, before the first is charged for
	if err != nil {
		return err
	}
	if err := p.calls.client.Ready(ctx); err != nil {
		return pginbox.Unavailable(err)
	}
	var refused []error
	err = keptAwake(ctx, tx, p.inboxIdle()/3, func(ctx context.Context) (err error) {
		refused, err = p.calls.charge(ctx, p.attempt, effects)
		return err
	})
	if err != nil {
		return pginbox.Unavailable(err)
	}
	for _, err := range refused {
		if err != nil {
			return pginbox.Permanent(err)
		}
	}
	return nil
}

// keptAwake does something that takes its time outside Postgres, and meanwhile has tx
// say now and then that it is not idle: Postgres ends a session that is idle in a
// transaction for as long as the group bears a silent member. A process that stands
// still says nothing, and that is whom the timeout is for. When the session is lost
// all the same, there is nothing left to do it for.
func keptAwake(ctx context.Context, tx pgx.Tx, every time.Duration, do func(context.Context) error) error {
	both, working := errgroup.WithContext(ctx)
	done := make(chan struct{})
	both.Go(func() error {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return nil
			case <-tick.C:
				if err := tx.Conn().Ping(ctx); err != nil {
					return fmt.Errorf("the transaction was lost while the payments API was called: %w", err)
				}
			}
		}
	})
	both.Go(func() error {
		defer close(done)
		return do(working)
	})
	return both.Wait()
}

// charging also charges for every event, last of all, since that can't be taken back:
// what is no event never gets to it, nor what Postgres refuses. While the API is away,
// nothing is touched in Postgres either.
func (p *eosPipeline) charging(handler kafkatx.Handler) kafkatx.Handler {
	return func(ctx context.Context, batch []*kgo.Record) ([]*kgo.Record, error) {
		if err := p.calls.client.Ready(ctx); err != nil {
			return nil, kafkatx.Unavailable(err)
		}
		out, err := handler(ctx, batch)
		if err != nil {
			return nil, err
		}
		effects := make([]warehouse.Effect, len(batch))
		for i, in := range batch {
			if effects[i], err = warehouse.FromRecord(in); err != nil {
				return nil, kafkatx.RecordErrors{{Record: in, Err: kafkatx.Permanent(err)}}
			}
		}
		refused, err := p.calls.charge(ctx, p.attempt, effects)
		if err != nil {
			return nil, kafkatx.Unavailable(err)
		}
		var failed kafkatx.RecordErrors
		for i, err := range refused {
			if err != nil {
				failed = append(failed, kafkatx.RecordError{Record: batch[i], Err: kafkatx.Permanent(err)})
			}
		}
		if len(failed) > 0 {
			return nil, failed
		}
		return out, nil
	}
}
