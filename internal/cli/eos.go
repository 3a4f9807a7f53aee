package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/endpoint"
	"github.com/delivered-twice/delivered-twice/internal/kafkatx"
	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/pginbox"
	"github.com/delivered-twice/delivered-twice/internal/trace"
	"github.com/delivered-twice/delivered-twice/internal/warehouse"
)

// EOSPipelineName is the program's name, and the role under which another program
// can be it.
const EOSPipelineName = "eos-pipeline"

// What an eos-pipeline touches from inside its transactions.
const (
	touchNothing  = "none"
	touchPostgres = "postgres"
)

type eosPipeline struct {
	member
	deadLetters           string
	guarantee             string
	touch                 string
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
points in Postgres from inside that transaction, which does not cover them.

Several instances share the partitions; each needs an --instance of its own.
SIGTERM finishes what is open and ends it.`,
		Args: NoArgs,
		RunE: untilStopped(p.run),
	}
	p.flags(cmd, EOSPipelineName, "orders.picked")
	f := cmd.Flags()
	f.StringVar(&p.guarantee, "guarantee", string(kafkatx.ExactlyOnce), fmt.Sprintf("one of %v", kafkatx.Guarantees()))
	f.StringVar(&p.touch, "touch", touchNothing, "what the handler touches from inside the transaction: none or postgres")
	f.StringVar(&p.deadLetters, "dead-letters", "orders.dead-letters", "topic of events that could not be handled")
	f.DurationVar(&p.commitInterval, "commit-interval", 100*time.Millisecond, "a transaction ends so long after it began; 0: after every poll")
	f.IntVar(&p.maxTransactionRecords, "max-transaction-records", 10_000, "a transaction ends with so many input records")
	f.DurationVar(&p.transactionTimeout, "transaction-timeout", 10*time.Second, "the broker aborts a transaction that is open for longer")
	return Run(cmd, args)
}

func (p *eosPipeline) run(ctx context.Context) error {
	if err := p.complete(); err != nil {
		return err
	}
	guarantee := kafkatx.Guarantee(p.guarantee)
	if !slices.Contains(kafkatx.Guarantees(), guarantee) {
		return Usage(fmt.Errorf("--guarantee is %q, must be one of %v", p.guarantee, kafkatx.Guarantees()))
	}
	hook, err := p.hook(guarantee)
	if err != nil {
		return err
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
		CommitInterval:        p.commitInterval,
		MaxTransactionRecords: p.maxTransactionRecords,
		MaxAttempts:           p.maxAttempts,
		TransactionTimeout:    p.transactionTimeout,
		SessionTimeout:        p.sessionTimeout,
		Logger:                p.logger(),
		Hook:                  hook,
	}
	switch p.touch {
	case touchNothing:
	case touchPostgres:
		pool, err := p.openWarehouse(ctx)
		if err != nil {
			return err
		}
		defer pool.Close()
		config.Handler = p.touching(pool, config.Handler)
	default:
		return Usage(fmt.Errorf("--touch is %q, must be %s or %s", p.touch, touchNothing, touchPostgres))
	}
	engine, err := kafkatx.New(config)
	if err != nil {
		return Usage(err)
	}
	if err := p.checkKafka(ctx, p.output, p.deadLetters); err != nil {
		return err
	}
	return engine.Run(ctx)
}

// hook returns what happens at every step: it is traced, and then a planned mishap
// strikes.
func (p *eosPipeline) hook(guarantee kafkatx.Guarantee) (kafkatx.Hook, error) {
	planned, err := plannedFailpoint(kafkatx.Steps(guarantee))
	if err != nil {
		return nil, err
	}
	writer, err := trace.FromEnv(p.attempt)
	if err != nil {
		return nil, Usage(err)
	}
	return func(_ context.Context, passage kafkatx.Passage) error {
		if writer != nil {
			ids := make([]string, len(passage.Records))
			for i, r := range passage.Records {
				ids[i] = order.ID(r)
			}
			if err := writer.Pass(string(passage.Step), "", ids); err != nil {
				return err
			}
		}
		return planned.Pass(string(passage.Step))
	}, nil
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

// openWarehouse connects to Postgres and brings the example's tables up to date.
func (m *member) openWarehouse(ctx context.Context) (*pgxpool.Pool, error) {
	if m.databaseURL == "" {
		return nil, Usage(errors.New("no database: set --database-url or DATABASE_URL"))
	}
	if _, err := endpoint.Postgres(ctx, m.databaseURL); err != nil {
		return nil, err
	}
	if err := warehouse.Migrate(ctx, m.databaseURL); err != nil {
		return nil, err
	}
	pool, err := pgxpool.New(ctx, m.databaseURL)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", endpoint.Redact(m.databaseURL), err)
	}
	return pool, nil
}
