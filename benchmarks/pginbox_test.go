package benchmarks_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/outbox"
	"github.com/delivered-twice/delivered-twice/internal/pginbox"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
	"github.com/delivered-twice/delivered-twice/internal/shortcut"
	"github.com/delivered-twice/delivered-twice/internal/warehouse"
)

// BenchmarkInbox: consume, insert the ids, do the work, commit, acknowledge; guard=none
// is the same without the ids. A batch is what is polled together, at most. The work is
// done for the whole batch in one statement: a row of one column an event (insert), or
// what inbox-pipeline does (loyalty: decode, and one row; warehouse: decode, set the
// order to PICKING, and one row).
func BenchmarkInbox(b *testing.B) {
	printEnvironment(b)
	for _, c := range inboxCases() {
		b.Run(c.String(), func(b *testing.B) { benchmarkInbox(b, c) })
	}
}

// inboxCase is what is measured.
type inboxCase struct {
	guard string // inbox, or none
	keys  pginbox.Keys
	work  string // insert, or warehouse
	// commit is sync, or flush: asynchronous, and acknowledged after the flush.
	commit  string
	batch   int
	workers int // members of the group, in this process
}

func (c inboxCase) String() string {
	return fmt.Sprintf("guard=%s/keys=%s/work=%s/commit=%s/batch=%d/workers=%d", c.guard, c.keys, c.work, c.commit, c.batch, c.workers)
}

func inboxCases() []inboxCase {
	var cases []inboxCase
	for _, batch := range batches {
		for _, keys := range []pginbox.Keys{pginbox.TextKeys, pginbox.HashKeys} {
			cases = append(cases, inboxCase{"inbox", keys, "insert", "sync", batch, 1})
		}
		cases = append(cases, inboxCase{"none", "none", "insert", "sync", batch, 1})
	}
	for _, batch := range []int{1_000, 5_000} {
		for _, work := range []string{"insert", "loyalty", "warehouse"} {
			cases = append(cases, inboxCase{"inbox", pginbox.HashKeys, work, "sync", batch, 2})
			cases = append(cases, inboxCase{"none", "none", work, "sync", batch, 2})
		}
	}
	for _, batch := range []int{1, 10} {
		cases = append(cases, inboxCase{"inbox", pginbox.HashKeys, "insert", "flush", batch, 1})
	}
	return cases
}

// benchmarkInbox measures an inbox that does more in the transaction, if told so.
func benchmarkInbox(b *testing.B, c inboxCase, more ...func(context.Context, pgx.Tx, []pginbox.Event) error) {
	input := filledTo(b, b.N, valueBytes)
	pool := inboxOf(b)
	group, m := sandboxtest.Name(b), newMeter(b)
	m.run(func(ctx context.Context) error {
		workers, ctx := errgroup.WithContext(ctx)
		for w := range c.workers {
			options := pginbox.ConsumerOptions{
				Client:     []kgo.Opt{kgo.SeedBrokers(sandboxtest.Brokers(b)...)},
				Group:      group,
				InstanceID: fmt.Sprint(w),
				Topics:     []string{input},
				BatchSize:  c.batch,
				Identify:   order.ID,
				Process:    m.timed(c.deliver(b, pool, more)),
			}
			if c.commit == "flush" {
				options.AcknowledgeAfterFlush = pool
			}
			consumer, err := pginbox.NewConsumer(options)
			if err != nil {
				b.Fatal(err)
			}
			workers.Go(func() error { return consumer.Run(ctx) })
		}
		return workers.Wait()
	})
}

// inboxOf returns a database with the tables of all that is measured.
func inboxOf(b *testing.B) *pgxpool.Pool {
	b.Helper()
	database := sandboxtest.Database(b)
	if err := errors.Join(pginbox.Migrate(b.Context(), database), outbox.Migrate(b.Context(), database), warehouse.Migrate(b.Context(), database)); err != nil {
		b.Fatal(err)
	}
	pool, err := pgxpool.New(b.Context(), database)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	if _, err := pool.Exec(b.Context(), `CREATE TABLE work (event_id text NOT NULL)`); err != nil {
		b.Fatal(err)
	}
	return pool
}

type deliver func(context.Context, []pginbox.Event) error

func (c inboxCase) deliver(b *testing.B, pool *pgxpool.Pool, more []func(context.Context, pgx.Tx, []pginbox.Event) error) deliver {
	b.Helper()
	work := insertWork
	switch c.work {
	case "loyalty":
		work = pipelineWork(warehouse.Award)
	case "warehouse":
		work = pipelineWork(warehouse.Pick)
	}
	handlers := []pginbox.Handler{{Name: "bench", Handle: func(ctx context.Context, tx pgx.Tx, events []pginbox.Event) error {
		err := work(ctx, tx, events)
		for _, do := range more {
			err = errors.Join(err, do(ctx, tx, events))
		}
		return err
	}}}
	if c.guard == "none" {
		s, err := shortcut.New(pool, shortcut.Options{Guard: shortcut.None, Handlers: handlers})
		if err != nil {
			b.Fatal(err)
		}
		return s.Process
	}
	inbox, err := pginbox.New(pool, pginbox.Options{Handlers: handlers, Keys: c.keys, AsynchronousCommit: c.commit == "flush"})
	if err != nil {
		b.Fatal(err)
	}
	return inbox.Process
}

func insertWork(ctx context.Context, tx pgx.Tx, events []pginbox.Event) error {
	ids := make([]string, len(events))
	for i, e := range events {
		ids[i] = e.ID
	}
	_, err := tx.Exec(ctx, `INSERT INTO work SELECT unnest($1::text[])`, ids)
	return err
}

// pipelineWork is what inbox-pipeline does for a batch.
func pipelineWork(do func(context.Context, warehouse.DB, string, []warehouse.Effect) error) func(context.Context, pgx.Tx, []pginbox.Event) error {
	return func(ctx context.Context, tx pgx.Tx, events []pginbox.Event) error {
		effects := make([]warehouse.Effect, len(events))
		for i, e := range events {
			effect, err := warehouse.FromRecord(e.Record)
			if err != nil {
				return err
			}
			effects[i] = effect
		}
		return do(ctx, tx, "bench", effects)
	}
}

// valueBytes is how long the values of records are.
const valueBytes = 256

// filledTo returns a topic with n OrderPaid events whose values are so long: JSON may
// end in spaces.
func filledTo(b *testing.B, n, size int) string {
	b.Helper()
	topic := sandboxtest.Topic(b, partitions)
	client := sandboxtest.Client(b)
	spaces := bytes.Repeat([]byte(" "), size)
	for e := range order.Stream(order.StreamOptions{Events: n, Seed: 1}) {
		r := e.Record(topic)
		r.Value = append(r.Value, spaces[min(len(r.Value), size):]...)
		client.Produce(b.Context(), r, func(_ *kgo.Record, err error) {
			if err != nil {
				b.Error(err)
			}
		})
	}
	if err := client.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
	return topic
}

// timed measures each batch from its arrival to its commit, by whatever members of a
// group.
func (m *meter) timed(do deliver) deliver {
	return func(ctx context.Context, events []pginbox.Event) error {
		m.began()
		arrived := time.Now()
		if err := do(ctx, events); err != nil {
			return err
		}
		m.ended(time.Since(arrived), len(events))
		return nil
	}
}
