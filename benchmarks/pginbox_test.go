package benchmarks_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/outbox"
	"github.com/delivered-twice/delivered-twice/internal/pginbox"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

// BenchmarkInbox: consume, insert the ids, do the work, commit, acknowledge. The
// work is one row an event, inserted for the whole batch in one statement. A batch is
// what is polled together, at most.
func BenchmarkInbox(b *testing.B) {
	printEnvironment(b)
	for _, keys := range []pginbox.Keys{pginbox.TextKeys, pginbox.HashKeys} {
		for _, batch := range batches {
			b.Run(fmt.Sprintf("keys=%s/batch=%d", keys, batch), func(b *testing.B) {
				benchmarkInbox(b, keys, batch)
			})
		}
	}
}

// benchmarkInbox measures an inbox that does more in the transaction, if told so.
func benchmarkInbox(b *testing.B, keys pginbox.Keys, batch int, more ...func(context.Context, pgx.Tx, []pginbox.Event) error) {
	input := filled(b, b.N)
	database := sandboxtest.Database(b)
	if err := errors.Join(pginbox.Migrate(b.Context(), database), outbox.Migrate(b.Context(), database)); err != nil {
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
	inbox, err := pginbox.New(pool, pginbox.Options{
		Keys: keys,
		Handlers: []pginbox.Handler{{Name: "bench", Handle: func(ctx context.Context, tx pgx.Tx, events []pginbox.Event) error {
			ids := make([]string, len(events))
			for i, e := range events {
				ids[i] = e.ID
			}
			_, err := tx.Exec(ctx, `INSERT INTO work SELECT unnest($1::text[])`, ids)
			for _, do := range more {
				err = errors.Join(err, do(ctx, tx, events))
			}
			return err
		}}},
	})
	if err != nil {
		b.Fatal(err)
	}
	m := newMeter(b)
	consumer, err := pginbox.NewConsumer(pginbox.ConsumerOptions{
		Client:    []kgo.Opt{kgo.SeedBrokers(sandboxtest.Brokers(b)...)},
		Group:     sandboxtest.Name(b),
		Topics:    []string{input},
		BatchSize: batch,
		Identify:  order.ID,
		Process:   inbox.Process,
		Hook: func(_ context.Context, p pginbox.Passage) error {
			switch p.Step {
			case pginbox.Polled:
				m.arrived(len(p.Events))
			case pginbox.Acknowledged:
				m.committed(len(p.Events))
			}
			return nil
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	m.run(consumer.Run)
}
