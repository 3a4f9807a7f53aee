package cli

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/delivered-twice/delivered-twice/internal/endpoint"
	"github.com/delivered-twice/delivered-twice/internal/failpoint"
	"github.com/delivered-twice/delivered-twice/internal/kafkatx"
	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/pginbox"
	"github.com/delivered-twice/delivered-twice/internal/trace"
	"github.com/delivered-twice/delivered-twice/internal/twophase"
	"github.com/delivered-twice/delivered-twice/internal/warehouse"
)

// EOSPipelineName is the program's name, and the role under which another program
// can be it.
const EOSPipelineName = "eos-pipeline"

// What an eos-pipeline touches from inside its transactions.
const (
	touchNothing  = "none"
	touchPostgres = "postgres"
	touchInbox    = "inbox"
)

type eosPipeline struct {
	member
	calls                 caller
	deadLetters           string
	guarantee             string
	touch                 string
	transactionsInFlight  int
	commitInterval        time.Duration
	maxTransactionRecords int
	transactionTimeout    time.Duration
}

// EOSPipeline runs the Kafka-in, Kafka-out pipeline and returns its exit code.
func EOSPipeline(args []string) int {
	var p eosPipeline
	cmd := &cobra.Command{
		Use:   EOSPipelineName + " [flags]",
		Short: "Consume OrderPaid events and produce pick requests, offsets and output in one Kafka transaction",
		Long: `eos-pipeline consumes OrderPaid events and produces one pick request for each.

With --guarantee=exactly-once the input offsets and the output become visible in
one Kafka transaction. With --touch=postgres it also creates pick tasks and awards
points in Postgres from inside that transaction, which does not cover them. With
--touch=inbox it does so through an inbox, which commits first: an event that comes
again, because its Kafka transaction was aborted, is only produced again.

With --call=payments it also charges for each event through the API at PAYMENTS_URL,
with the key in PAYMENTS_KEY, from inside the Kafka transaction, which does not cover
that. With --idempotency-key it sends the event's id along, by which the API knows a
charge that is asked for again.

With --guarantee=two-phase --touch=postgres the work in Postgres and the Kafka
transaction commit together, unless every member is down for longer than the
transaction timeout.

Several instances share the partitions; each needs an --instance of its own.
SIGTERM finishes what is open and ends it.`,
		Args: NoArgs,
		RunE: untilStopped(p.run),
	}
	Manual{
		Environment: []Variable{KafkaBrokers, DatabaseURL, paymentsURL, paymentsKey, failpointVariable, traceVariable},
		OK:          stoppedAsTold,
	}.Of(cmd)
	p.flags(cmd, EOSPipelineName, "orders.picked")
	f := cmd.Flags()
	f.StringVar(&p.guarantee, "guarantee", string(kafkatx.ExactlyOnce), fmt.Sprintf("one of %v", guarantees()))
	f.StringVar(&p.touch, "touch", touchNothing, "what the handler touches from inside the transaction: none, postgres, or inbox for Postgres through an inbox")
	p.calls.flags(f)
	f.StringVar(&p.deadLetters, "dead-letters", "orders.dead-letters", "topic of events that could not be handled")
	f.IntVar(&p.transactionsInFlight, "transactions-in-flight", 0, fmt.Sprintf("so many transactions may be under way at the same time, from 1 to %d (default %d; 1 with --guarantee=%s, which takes no more)", kafkatx.MaxTransactionsInFlight, kafkatx.DefaultTransactionsInFlight, guaranteeTwoPhase))
	f.DurationVar(&p.commitInterval, "commit-interval", 100*time.Millisecond, "a transaction ends so long after it began; 0: after every poll")
	f.IntVar(&p.maxTransactionRecords, "max-transaction-records", 10_000, "a transaction ends with so many input records")
	f.DurationVar(&p.transactionTimeout, "transaction-timeout", 10*time.Second, "the broker aborts a transaction that is open for longer")
	return Run(cmd, args)
}

func (p *eosPipeline) run(ctx context.Context) error {
	if err := p.complete(); err != nil {
		return err
	}
	if !slices.Contains(guarantees(), p.guarantee) {
		return Usage(fmt.Errorf("--guarantee is %q, must be one of %v", p.guarantee, guarantees()))
	}
	guarantee := kafkatx.Guarantee(p.guarantee)
	if p.twoPhase() {
		guarantee = kafkatx.ExactlyOnce
	}
	if touches := []string{touchNothing, touchPostgres, touchInbox}; !slices.Contains(touches, p.touch) {
		return Usage(fmt.Errorf("--touch is %q, must be one of %v", p.touch, touches))
	}
	switch {
	case p.commitInterval < 0:
		return Usage(fmt.Errorf("--commit-interval is %v, must not be negative", p.commitInterval))
	case p.maxTransactionRecords < 1:
		return Usage(fmt.Errorf("--max-transaction-records is %d, must be at least 1", p.maxTransactionRecords))
	}
	if err := inMilliseconds("transaction-timeout", p.transactionTimeout); err != nil {
		return err
	}
	if err := p.calls.check(p.logger()); err != nil {
		return err
	}
	defer p.calls.close()
	if err := p.checkTwoPhase(); err != nil {
		return err
	}
	planned, err := plannedFailpoint(p.steps(guarantee))
	if err != nil {
		return err
	}
	passings, err := trace.FromEnv(p.attempt)
	if err != nil {
		return Usage(err)
	}
	config := kafkatx.Config{
		Client:                p.client(),
		Group:                 p.group,
		Instance:              p.instance,
		Input:                 p.input,
		Output:                p.output,
		DeadLetters:           p.deadLetters,
		Handler:               kafkatx.Each(p.pick),
		Guarantee:             guarantee,
		TransactionsInFlight:  p.transactionsInFlight,
		CommitInterval:        p.commitInterval,
		MaxTransactionRecords: p.maxTransactionRecords,
		MaxAttempts:           p.maxAttempts,
		TransactionTimeout:    p.transactionTimeout,
		SessionTimeout:        p.sessionTimeout,
		Logger:                p.logger(),
		Hook: func(_ context.Context, passage kafkatx.Passage) error {
			if passings != nil {
				ids := make([]string, len(passage.Records))
				for i, r := range passage.Records {
					ids[i] = order.ID(r)
				}
				if err := passings.Pass(string(passage.Step), "", ids); err != nil {
					return err
				}
			}
			return planned.Pass(string(passage.Step))
		},
	}
	watch := func(context.Context) {}
	if p.touch != touchNothing {
		idle := time.Duration(0)
		if p.touch == touchInbox {
			idle = p.inboxIdle()
		}
		pool, err := p.pool(ctx, idle)
		if err != nil {
			return err
		}
		defer pool.Close()
		switch {
		case p.twoPhase():
			coordinator, leave, err := p.coordinator(pool, config.Hook)
			if err != nil {
				return err
			}
			defer leave()
			config.Participant, watch = coordinator, coordinator.Watch
		case p.touch == touchInbox:
			config.Handler, err = p.throughInbox(pool, config.Handler, planned, passings)
		default:
			config.Handler = p.touching(pool, config.Handler)
		}
		if err != nil {
			return Usage(err)
		}
	}
	if p.calls.payments() {
		config.Handler = p.charging(config.Handler)
	}
	engine, err := kafkatx.New(config)
	if err != nil {
		return Usage(err)
	}
	// At the same time: a process that was killed is to be back soon.
	checks, checking := errgroup.WithContext(ctx)
	checks.Go(func() error { return p.checkKafka(checking, p.output, p.deadLetters) })
	checks.Go(func() error { return p.calls.ping(checking) })
	if p.touch != touchNothing {
		checks.Go(func() error { return p.migrate(checking) })
	}
	if err := checks.Wait(); err != nil {
		return err
	}
	watching, stop := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	watcher.Go(func() { watch(watching) })
	defer watcher.Wait()
	defer stop()
	return engine.Run(ctx)
}

// steps are the names at which a failpoint may strike: those of the engine, and with
// an inbox those of its handlers, such as committed@warehouse.
func (p *eosPipeline) steps(g kafkatx.Guarantee) []string {
	passed := kafkatx.Steps(g)
	if p.twoPhase() {
		passed = twophase.Steps()
	}
	var steps []string
	for _, step := range passed {
		steps = append(steps, string(step))
	}
	if p.touch != touchInbox {
		return steps
	}
	for _, step := range []pginbox.Step{pginbox.Begun, pginbox.Inserted, pginbox.Worked, pginbox.Committed} {
		steps = append(steps, stepOf(step, handlerWarehouse), stepOf(step, handlerLoyalty))
	}
	return steps
}

// pick turns an event into a pick request.
func (p *eosPipeline) pick(_ context.Context, in *kgo.Record) ([]*kgo.Record, error) {
	e, err := order.Decode(in.Value)
	if err != nil {
		return nil, kafkatx.Permanent(err)
	}
	return []*kgo.Record{order.Pick(p.output, in, order.ID(in), e, p.attempt)}, nil
}

// touching does the work in Postgres, too, in a transaction of its own for every
// batch: what many believe a Kafka transaction covers, and it doesn't.
func (p *eosPipeline) touching(pool *pgxpool.Pool, handler kafkatx.Handler) kafkatx.Handler {
	return func(ctx context.Context, batch []*kgo.Record) ([]*kgo.Record, error) {
		out, err := handler(ctx, batch) // first, so that what is no event never gets to Postgres
		if err != nil {
			return nil, err
		}
		effects := make([]warehouse.Effect, len(batch))
		for i, in := range batch {
			if effects[i], err = warehouse.FromRecord(in); err != nil {
				return nil, kafkatx.RecordErrors{{Record: in, Err: kafkatx.Permanent(err)}}
			}
		}
		err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := warehouse.Pick(ctx, tx, p.attempt, effects); err != nil {
				return err
			}
			return warehouse.Award(ctx, tx, p.attempt, effects)
		})
		if err != nil && pginbox.Transient(err) {
			return nil, kafkatx.Unavailable(err)
		}
		return out, err
	}
}

// throughInbox does the work in Postgres through an inbox, which has committed it
// before the Kafka transaction ends. When that one is aborted, the events come again,
// find their rows, and are only produced again. An event that Postgres refuses becomes
// a dead letter of the inbox; its pick request is sent all the same.
func (p *eosPipeline) throughInbox(pool *pgxpool.Pool, handler kafkatx.Handler, planned *failpoint.Failpoint, passings *trace.Writer) (kafkatx.Handler, error) {
	inbox, err := pginbox.New(pool, pginbox.Options{
		Handlers: []pginbox.Handler{
			{Name: handlerWarehouse, Handle: p.work(warehouse.Pick)},
			{Name: handlerLoyalty, Handle: p.work(warehouse.Award)},
		},
		MaxAttempts: p.maxAttempts,
		Logger:      p.logger(),
		Hook: func(_ context.Context, passage pginbox.Passage) error {
			ids := make([]string, len(passage.Events))
			for i, e := range passage.Events {
				ids[i] = e.ID
			}
			if err := passings.Pass(string(passage.Step), passage.Handler, ids); err != nil {
				return err
			}
			return planned.Pass(stepOf(passage.Step, passage.Handler))
		},
	})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, batch []*kgo.Record) ([]*kgo.Record, error) {
		out, err := handler(ctx, batch) // first, so that what is no event never gets to Postgres
		if err != nil {
			return nil, err
		}
		events := make([]pginbox.Event, len(batch))
		for i, in := range batch {
			events[i] = pginbox.Event{ID: order.ID(in), Record: in}
		}
		if err := inbox.Process(ctx, events); err != nil {
			return nil, kafkatx.Unavailable(err) // of events at fault it makes dead letters
		}
		return out, nil
	}, nil
}

// work makes a handler of an inbox of a function of the warehouse.
func (p *eosPipeline) work(do func(context.Context, warehouse.DB, string, []warehouse.Effect) error) func(context.Context, pgx.Tx, []pginbox.Event) error {
	return func(ctx context.Context, tx pgx.Tx, events []pginbox.Event) error {
		effects, err := effectsOf(events)
		if err != nil {
			return err
		}
		return do(ctx, tx, p.attempt, effects)
	}
}

// migrate brings the tables up to date that the pipeline touches.
func (p *eosPipeline) migrate(ctx context.Context) error {
	if err := p.migrateWarehouse(ctx); err != nil {
		return err
	}
	switch {
	case p.twoPhase():
		return twophase.Migrate(ctx, p.databaseURL)
	case p.touch == touchInbox:
		return pginbox.Migrate(ctx, p.databaseURL)
	}
	return nil
}

// migrateWarehouse checks that Postgres is there and brings the example's tables up to
// date.
func (m *member) migrateWarehouse(ctx context.Context) error {
	if _, err := endpoint.Postgres(ctx, m.databaseURL); err != nil {
		return err
	}
	return warehouse.Migrate(ctx, m.databaseURL)
}
