package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/pginbox"
	"github.com/delivered-twice/delivered-twice/internal/warehouse"
)

// InboxPipelineName is the program's name, and the role under which another
// program can be it.
const InboxPipelineName = "inbox-pipeline"

const (
	guardInbox = "inbox"

	publishNothing = "none"
	publishDirect  = "direct"

	handlerWarehouse = "warehouse"
	handlerLoyalty   = "loyalty"
)

// purgeEvery is how often rows that are old enough are looked for.
const purgeEvery = time.Minute

type inboxPipeline struct {
	member
	guard             string
	publish           string
	handlers          []string
	eventKey          string
	batchSize         int
	purgeAfter        time.Duration
	redeliveryHorizon time.Duration
}

// InboxPipeline runs the Kafka-in, Postgres pipeline and returns its exit code.
func InboxPipeline(args []string) int {
	var p inboxPipeline
	cmd := &cobra.Command{
		Use:   InboxPipelineName + " [flags]",
		Short: "Consume OrderPaid events and do their work in Postgres, dedupe row and work in one transaction",
		Long: `inbox-pipeline consumes OrderPaid events and creates pick tasks (handler warehouse)
and awards points (handler loyalty) in Postgres.

With --guard=inbox the event's id goes first into an inbox table, in the same
transaction as the work: an event that comes again finds its row, and is done.
With --publish=direct the warehouse handler also produces a pick request to Kafka
from inside that transaction, which does not cover it.

Several instances share the partitions; each needs an --instance of its own.
SIGTERM finishes the batch in hand and ends it.`,
		Args: NoArgs,
		RunE: untilStopped(p.run),
	}
	p.flags(cmd, InboxPipelineName, "orders.picked")
	f := cmd.Flags()
	f.StringVar(&p.guard, "guard", guardInbox, "what keeps an event from being done twice: inbox")
	f.StringVar(&p.publish, "publish", publishNothing, "what the warehouse handler produces to Kafka: none or direct")
	f.StringSliceVar(&p.handlers, "handlers", []string{handlerWarehouse, handlerLoyalty}, "handlers to run, each with its own inbox rows")
	f.StringVar(&p.eventKey, "event-key", string(pginbox.TextKeys), fmt.Sprintf("how ids are kept: %q as received, or %q for 16 bytes of their SHA-256", pginbox.TextKeys, pginbox.HashKeys))
	f.IntVar(&p.batchSize, "batch-size", 1_000, "events in one Postgres transaction, at most")
	f.DurationVar(&p.purgeAfter, "purge-after", 7*24*time.Hour, "age at which inbox rows are removed")
	f.DurationVar(&p.redeliveryHorizon, "redelivery-horizon", 72*time.Hour, "how long after its first delivery an event may still come again; --purge-after must not be shorter")
	return Run(cmd, args)
}

func (p *inboxPipeline) run(ctx context.Context) error {
	if err := p.complete(); err != nil {
		return err
	}
	switch {
	case p.guard != guardInbox:
		return Usage(fmt.Errorf("--guard is %q, must be %s", p.guard, guardInbox))
	case p.publish != publishNothing && p.publish != publishDirect:
		return Usage(fmt.Errorf("--publish is %q, must be %s or %s", p.publish, publishNothing, publishDirect))
	case p.batchSize < 1:
		return Usage(fmt.Errorf("--batch-size is %d, must be at least 1", p.batchSize))
	}
	planned, err := plannedFailpoint(p.steps())
	if err != nil {
		return err
	}
	purge := pginbox.PurgePolicy{Window: p.purgeAfter, RedeliveryHorizon: p.redeliveryHorizon}
	if err := purge.Validate(); err != nil {
		return Usage(err)
	}

	var topics []string
	if p.publish == publishDirect {
		topics = append(topics, p.output)
	}
	if err := p.checkKafka(ctx, topics...); err != nil {
		return err
	}
	pool, err := p.openWarehouse(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := pginbox.Migrate(ctx, p.databaseURL); err != nil {
		return err
	}
	handlers, closeProducer, err := p.chosenHandlers()
	if err != nil {
		return err
	}
	defer closeProducer()

	traced, err := tracing[pginbox.Step](&p.member, func(e pginbox.Event) string { return e.ID })
	if err != nil {
		return err
	}
	hook := func(_ context.Context, passage pginbox.Passage) error {
		return errors.Join(traced(passage.Step, passage.Handler, passage.Events), planned.Pass(string(passage.Step)), planned.Pass(stepOf(passage.Step, passage.Handler)))
	}
	inbox, err := pginbox.New(pool, pginbox.Options{
		Handlers:    handlers,
		Keys:        pginbox.Keys(p.eventKey),
		MaxAttempts: p.maxAttempts,
		Hook:        hook,
		Logger:      p.logger(),
	})
	if err != nil {
		return Usage(err)
	}
	consumer, err := pginbox.NewConsumer(pginbox.ConsumerOptions{
		Client:         p.client(),
		Group:          p.group,
		Topics:         []string{p.input},
		InstanceID:     p.instance,
		SessionTimeout: p.sessionTimeout,
		BatchSize:      p.batchSize,
		Identify:       order.ID,
		Process:        inbox.Process,
		Hook:           hook,
		Logger:         p.logger(),
	})
	if err != nil {
		return Usage(err)
	}
	both, ctx := errgroup.WithContext(ctx)
	purging, stopPurging := context.WithCancel(ctx)
	both.Go(func() error { return p.purgeNowAndThen(purging, inbox, purge) })
	both.Go(func() error {
		defer stopPurging()
		return consumer.Run(ctx)
	})
	return both.Wait()
}

// stepOf names the passing of a step by one handler, such as worked@warehouse.
func stepOf(step pginbox.Step, handler string) string { return string(step) + "@" + handler }

// steps are the names at which a failpoint may strike: a step, whoever passes it,
// or a step of one handler.
func (p *inboxPipeline) steps() []string {
	var steps []string
	for _, step := range pginbox.Steps() {
		steps = append(steps, string(step))
	}
	for _, step := range []pginbox.Step{pginbox.Begun, pginbox.Inserted, pginbox.Worked, pginbox.Committed} {
		for _, handler := range p.handlers {
			steps = append(steps, stepOf(step, handler))
		}
	}
	return steps
}

// purgeNowAndThen removes old inbox rows until ctx ends. A purge that fails is
// tried again later: until then the table is only larger than it need be.
func (p *inboxPipeline) purgeNowAndThen(ctx context.Context, inbox *pginbox.Inbox, policy pginbox.PurgePolicy) error {
	tick := time.NewTicker(purgeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			removed, err := inbox.Purge(ctx, policy)
			if err != nil && ctx.Err() == nil {
				p.logger().Warn("purging the inbox failed; it is tried again later", "cause", err)
			} else if removed > 0 {
				p.logger().Info("purged the inbox", "rows", removed, "older than", policy.Window)
			}
		}
	}
}

// chosenHandlers returns the handlers that --handlers names, and what closes them.
func (p *inboxPipeline) chosenHandlers() (handlers []pginbox.Handler, closeProducer func(), err error) {
	var producer *kgo.Client
	closeProducer = func() {}
	for _, name := range p.handlers {
		h := pginbox.Handler{Name: name}
		switch name {
		case handlerWarehouse:
			if p.publish == publishDirect && producer == nil {
				if producer, err = kgo.NewClient(append(p.client(), kgo.ProducerLinger(0))...); err != nil {
					return nil, nil, err
				}
				closeProducer = producer.Close
			}
			h.Handle = p.pick(producer)
		case handlerLoyalty:
			h.Handle = p.award
		default:
			closeProducer()
			return nil, nil, Usage(fmt.Errorf("--handlers has %q, must be of %s and %s", name, handlerWarehouse, handlerLoyalty))
		}
		handlers = append(handlers, h)
	}
	if p.publish == publishDirect && producer == nil {
		return nil, nil, Usage(fmt.Errorf("--publish=%s is done by the handler %s, which --handlers leaves out", publishDirect, handlerWarehouse))
	}
	return handlers, closeProducer, nil
}

// pick does the warehouse's work. Where there is a producer, it also sends the pick
// requests, and waits until the broker has them, from inside the transaction: what
// many believe the inbox covers, and it doesn't.
func (p *inboxPipeline) pick(producer *kgo.Client) func(context.Context, pgx.Tx, []pginbox.Event) error {
	return func(ctx context.Context, tx pgx.Tx, events []pginbox.Event) error {
		effects, err := effectsOf(events)
		if err != nil {
			return err
		}
		if err := warehouse.Pick(ctx, tx, p.attempt, effects); err != nil || producer == nil {
			return err
		}
		requests := make([]*kgo.Record, len(events))
		for i, e := range events {
			requests[i] = order.Pick(p.output, e.Record, e.ID, effects[i].Event, p.attempt)
		}
		return producer.ProduceSync(ctx, requests...).FirstErr()
	}
}

func (p *inboxPipeline) award(ctx context.Context, tx pgx.Tx, events []pginbox.Event) error {
	effects, err := effectsOf(events)
	if err != nil {
		return err
	}
	return warehouse.Award(ctx, tx, p.attempt, effects)
}

func effectsOf(events []pginbox.Event) ([]warehouse.Effect, error) {
	effects := make([]warehouse.Effect, len(events))
	for i, e := range events {
		effect, err := warehouse.FromRecord(e.Record)
		if errors.Is(err, order.ErrMalformed) {
			err = pginbox.Permanent(err)
		}
		if err != nil {
			return nil, err
		}
		effects[i] = effect
	}
	return effects, nil
}
