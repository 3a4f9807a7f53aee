package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/delivered-twice/delivered-twice/internal/outbox"
	"github.com/delivered-twice/delivered-twice/internal/pginbox"
	"github.com/delivered-twice/delivered-twice/internal/shortcut"
	"github.com/delivered-twice/delivered-twice/internal/trace"
	"github.com/delivered-twice/delivered-twice/internal/webhook"
)

// InboxPipelineName is the program's name, and the role under which another
// program can be it.
const InboxPipelineName = "inbox-pipeline"

const (
	sourceGroup      = "group"
	sourceShareGroup = "share-group"
	sourceWebhook    = "webhook"

	publishNothing = "none"
	publishDirect  = "direct"
	publishOutbox  = "outbox"

	handlerWarehouse = "warehouse"
	handlerLoyalty   = "loyalty"
)

// Flags that only some guards have a use for.
const (
	flagEventKey          = "event-key"
	flagPurgeAfter        = "purge-after"
	flagRedeliveryHorizon = "redelivery-horizon"
	flagRedisURL          = "redis-url"
	flagRedisTTL          = "redis-ttl"
	flagHandlers          = "handlers"
	flagWorkers           = "workers"
)

// Flags that only some ways to publish have a use for.
const (
	flagRelay           = "relay"
	flagOutboxRetention = "outbox-retention"
)

type inboxPipeline struct {
	member
	calls             caller
	guard             string
	source            string
	asyncCommit       bool
	ackAfterFlush     bool
	retryTopic        string
	publish           string
	relay             string
	outboxRetention   time.Duration
	handlers          []string
	eventKey          string
	batchSize         int
	purgeAfter        time.Duration
	redeliveryHorizon time.Duration
	redisURL          string
	redisTTL          time.Duration
	webhookFlags
}

// InboxPipeline runs the Kafka-in, Postgres pipeline and returns its exit code.
func InboxPipeline(args []string) int {
	var p inboxPipeline
	cmd := &cobra.Command{
		Use:   InboxPipelineName + " [flags]",
		Short: "Consume OrderPaid events and do their work in Postgres, dedupe row and work in one transaction",
		Long: `inbox-pipeline consumes OrderPaid events and creates pick tasks (handler warehouse)
and awards points (handler loyalty) in Postgres.

What keeps an event that comes again from being done again is --guard:
  inbox          its id goes first into an inbox table, in the transaction of the work
  offsets        how far each partition is done is stored in the transaction of the work
  inbox+offsets  both
and the shortcuts:
  ack-first      it is acknowledged before it is done
  none           nothing
  shape          nothing, but pick tasks are written under a natural key
  memory         a set of ids in the process
  select-first   a SELECT for its id before the work, and an INSERT
  redis          its id is claimed with SETNX in Redis before the work

Events are records of a topic or, with --source=webhook, requests that a provider
posts and signs; there is no Kafka then, and WEBHOOK_SECRET must be set.

With --publish=direct the warehouse handler also produces a pick request to Kafka
from inside the transaction, which does not cover it. With --publish=outbox it writes
the request into an outbox table, in the transaction, and a relay produces it from
there: in this process, elsewhere, or here and nothing else (--relay).

With --call=payments a handler named payment charges for every event through the API
at PAYMENTS_URL, with the key in PAYMENTS_KEY, from inside its transaction, which does
not cover that either. With --idempotency-key it sends the event's id along, by which
the API knows a charge that is asked for again.

Several instances share the partitions; each needs an --instance of its own. With
--workers=N an instance is N members of the group.
SIGTERM finishes the batch in hand and ends it.`,
		Args: NoArgs,
	}
	cmd.RunE = untilStopped(func(ctx context.Context) error {
		if err := p.check(cmd.Flags().Changed); err != nil {
			return err
		}
		return p.run(ctx)
	})
	Manual{
		Environment: []Variable{
			KafkaBrokers, DatabaseURL,
			{"REDIS_URL", "Redis of --guard=redis, where --redis-url is not given: redis://user:password@host:6379/0"},
			{WebhookSecretVariable, "with --source=webhook: the secret that requests are signed with, or several with commas between"},
			paymentsURL, paymentsKey, failpointVariable, traceVariable,
		},
		OK: stoppedAsTold,
	}.Of(cmd)
	p.flags(cmd, InboxPipelineName, "orders.picked")
	f := cmd.Flags()
	f.StringVar(&p.guard, "guard", guardInbox, "what keeps an event from being done twice: "+strings.Join(guards(), ", "))
	f.StringVar(&p.source, "source", sourceGroup, fmt.Sprintf("where events come from: the topic, as to a member of a consumer %s or of a %s (KIP-932), or a %s", sourceGroup, sourceShareGroup, sourceWebhook))
	f.StringVar(&p.listen, flagListen, WebhookListen, "with --source=webhook: host:port to listen on; port 0 is any, and the first line on stdout says which")
	f.StringVar(&p.signature, flagSignature, string(webhook.Stripe), "with --source=webhook: how requests are signed, with a secret from WEBHOOK_SECRET: "+schemes())
	f.DurationVar(&p.answerWithin, flagAnswerWithin, 5*time.Second, "with --source=webhook: time after which a request whose event is not done is answered with 503; shorter than the sender waits")
	f.StringVar(&p.retryTopic, "retry-topic", "", "with --source=share-group: where the broker moves a record that was delivered too often, to come again from there (needs dead-letter queues, KIP-1191; none: the broker drops it)")
	f.BoolVar(&p.asyncCommit, "async-commit", false, "commit with synchronous_commit=off: a crash of Postgres takes the last commits back")
	f.BoolVar(&p.ackAfterFlush, "ack-after-flush", false, "with --async-commit: acknowledge only what is on Postgres' disk")
	p.calls.flags(f)
	f.StringSliceVar(&p.handlers, flagHandlers, []string{handlerWarehouse, handlerLoyalty}, "handlers to run, each with marks of its own; with --call=payments also payment")
	f.StringVar(&p.publish, "publish", publishNothing, "how the warehouse handler publishes pick requests: none, direct or outbox")
	f.StringVar(&p.relay, flagRelay, relayInside, fmt.Sprintf("where the relay of --publish=outbox is: %s this process, %s, or this process is the relay and %s that", relayInside, relayElsewhere, relayOnly))
	f.DurationVar(&p.outboxRetention, flagOutboxRetention, 24*time.Hour, "age at which published rows of the outbox are removed")
	f.StringVar(&p.eventKey, flagEventKey, string(pginbox.TextKeys), fmt.Sprintf("how the inbox keeps ids: %q as received, or %q for 16 bytes of their SHA-256", pginbox.TextKeys, pginbox.HashKeys))
	f.IntVar(&p.batchSize, "batch-size", 1_000, "events in one Postgres transaction, at most")
	f.IntVar(&p.workers, flagWorkers, 1, "members of the group that this process is, with partitions and transactions of their own; from the second on they are named <instance>.1, <instance>.2 …")
	f.DurationVar(&p.purgeAfter, flagPurgeAfter, 7*24*time.Hour, "age at which inbox rows are removed, within an hour")
	f.DurationVar(&p.redeliveryHorizon, flagRedeliveryHorizon, 72*time.Hour, "how long after its first delivery an event may still come again; --purge-after must not be shorter")
	f.StringVar(&p.redisURL, flagRedisURL, "", "Redis of --guard=redis, redis://user:password@host:6379/0 (default $REDIS_URL)")
	f.DurationVar(&p.redisTTL, flagRedisTTL, shortcut.RedisTTL, "age at which a key of --guard=redis expires")
	return Run(cmd, args)
}

// run consumes until ctx ends. The flags have been checked.
func (p *inboxPipeline) run(ctx context.Context) error {
	pass, err := p.passStep()
	if err != nil {
		return err
	}
	if !p.consumes() {
		return p.runRelayOnly(ctx, pass)
	}
	hook := hookOf(pass)
	pool, err := p.prepare(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	defer p.calls.close()
	handlers, closeProducer, err := p.chosenHandlers()
	if err != nil {
		return err
	}
	defer closeProducer()
	guards := make([]openGuard, p.workers)
	consumers := make([]consumer, p.workers)
	for w := range p.workers {
		// A guard each: one that stores offsets is one owner of partitions.
		if guards[w], err = p.openGuard(ctx, pool, handlers, hook); err != nil {
			return err
		}
		defer guards[w].close()
		if consumers[w], err = p.consumer(w, guards[w], pool, hook); err != nil {
			return err
		}
	}
	all, ctx := errgroup.WithContext(ctx)
	// The others outlive the consumers, so that the relay publishes what they leave.
	others, stopOthers := context.WithCancel(context.WithoutCancel(ctx))
	all.Go(func() error {
		guards[0].purge(others)
		return nil
	})
	if p.hasRelay() {
		all.Go(func() error { return p.runRelay(others, pool, pass) })
	}
	all.Go(func() error {
		defer stopOthers()
		workers, ctx := errgroup.WithContext(ctx)
		for _, c := range consumers {
			workers.Go(func() error { return c.Run(ctx) })
		}
		return workers.Wait()
	})
	return all.Wait()
}

// passStep is called whenever a handler, or all together (""), pass a step with events.
type passStep func(step, handler string, ids []string) error

// passStep returns what happens at every step: it is traced, and then a planned mishap
// strikes.
func (p *inboxPipeline) passStep() (passStep, error) {
	planned, err := plannedFailpoint(p.steps())
	if err != nil {
		return nil, err
	}
	writer, err := trace.FromEnv(p.attempt)
	if err != nil {
		return nil, Usage(err)
	}
	return func(step, handler string, ids []string) error {
		if err := writer.Pass(step, handler, ids); err != nil {
			return err
		}
		return errors.Join(planned.Pass(step), planned.Pass(stepOf(pginbox.Step(step), handler)))
	}, nil
}

func hookOf(pass passStep) pginbox.Hook {
	return func(_ context.Context, passage pginbox.Passage) error {
		return pass(string(passage.Step), passage.Handler, idsOf(passage.Events))
	}
}

func idsOf(events []pginbox.Event) []string {
	ids := make([]string, len(events))
	for i, e := range events {
		ids[i] = e.ID
	}
	return ids
}

// stepOf names the passing of a step by one handler, such as worked@warehouse.
func stepOf(step pginbox.Step, handler string) string { return string(step) + "@" + handler }

// steps are the names at which a failpoint may strike: a step, whoever passes it,
// or a step of one handler.
func (p *inboxPipeline) steps() []string {
	steps, byHandlers := pginbox.Steps(), []pginbox.Step{pginbox.Begun, pginbox.Inserted, pginbox.Worked, pginbox.Committed}
	if p.shortcut() {
		steps, byHandlers = shortcut.Steps(shortcut.Guard(p.guard)), []pginbox.Step{pginbox.Worked}
	}
	if p.source == sourceWebhook {
		steps = webhookSteps(steps)
	}
	var names []string
	if p.hasRelay() {
		for _, step := range outbox.Steps() {
			names = append(names, string(step))
		}
	}
	if !p.consumes() {
		return names
	}
	for _, step := range steps {
		names = append(names, string(step))
	}
	for _, step := range byHandlers {
		for _, handler := range p.handlers {
			names = append(names, stepOf(step, handler))
		}
	}
	return names
}
