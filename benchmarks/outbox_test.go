package benchmarks_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/outbox"
	"github.com/delivered-twice/delivered-twice/internal/pginbox"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

// BenchmarkOutboxWrite: what a transaction of so many rows costs its writer, with and
// without telling the relays of it.
func BenchmarkOutboxWrite(b *testing.B) {
	printEnvironment(b)
	for _, notify := range []bool{true, false} {
		for _, batch := range batches {
			b.Run(fmt.Sprintf("notify=%t/batch=%d", notify, batch), func(b *testing.B) {
				pool := outboxOf(b)
				if !notify {
					if _, err := pool.Exec(b.Context(), `ALTER TABLE outbox DISABLE TRIGGER outbox_wake`); err != nil {
						b.Fatal(err)
					}
				}
				b.ResetTimer()
				fillOutbox(b, pool, "unpublished", batch)
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
			})
		}
	}
}

// BenchmarkInboxOutbox: the same as BenchmarkInbox, and a message an event into the
// outbox. No relay is there.
func BenchmarkInboxOutbox(b *testing.B) {
	printEnvironment(b)
	for _, batch := range batches {
		b.Run(fmt.Sprintf("keys=%s/batch=%d", pginbox.TextKeys, batch), func(b *testing.B) {
			benchmarkInbox(b, inboxCase{"inbox", pginbox.TextKeys, "insert", "sync", batch, 1}, func(ctx context.Context, tx pgx.Tx, events []pginbox.Event) error {
				messages := make([]outbox.Message, len(events))
				for i, e := range events {
					r := &kgo.Record{Topic: "unpublished", Key: e.Record.Key, Value: e.Record.Value, Headers: e.Record.Headers}
					messages[i] = outbox.Message{ID: e.ID, Record: r}
				}
				return outbox.Enqueue(ctx, tx, messages...)
			})
		})
	}
}

// BenchmarkOutboxRelay: publish and stamp what is in the outbox.
func BenchmarkOutboxRelay(b *testing.B) {
	printEnvironment(b)
	for _, relays := range []int{1, 2} {
		for _, batch := range []int{100, 1_000, 10_000} {
			b.Run(fmt.Sprintf("relays=%d/batch=%d", relays, batch), func(b *testing.B) {
				benchmarkRelay(b, relays, batch)
			})
		}
	}
}

func benchmarkRelay(b *testing.B, relays, batch int) {
	pool, topic := outboxOf(b), sandboxtest.Topic(b, partitions)
	fillOutbox(b, pool, topic, 10_000)
	if _, err := pool.Exec(b.Context(), `VACUUM ANALYZE outbox`); err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	var all errgroup.Group
	var stamped atomic.Int64
	b.ResetTimer()
	for range relays {
		r, err := outbox.NewRelay(pool, outbox.Options{
			Client:    []kgo.Opt{kgo.SeedBrokers(sandboxtest.Brokers(b)...)},
			BatchRows: batch,
			Hook: func(_ context.Context, p outbox.Passage) error {
				if p.Step == outbox.Stamped && stamped.Add(int64(len(p.Messages))) >= int64(b.N) {
					stop()
				}
				return nil
			},
		})
		if err != nil {
			b.Fatal(err)
		}
		all.Go(func() error { return r.Run(ctx) })
	}
	<-ctx.Done()
	b.StopTimer()
	if err := all.Wait(); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

func outboxOf(b *testing.B) *pgxpool.Pool {
	b.Helper()
	database := sandboxtest.Database(b)
	if err := outbox.Migrate(b.Context(), database); err != nil {
		b.Fatal(err)
	}
	pool, err := pgxpool.New(b.Context(), database)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return pool
}

// fillOutbox writes b.N messages, so many in a transaction.
func fillOutbox(b *testing.B, pool *pgxpool.Pool, topic string, batch int) {
	b.Helper()
	var messages []outbox.Message
	flush := func() {
		err := pgx.BeginFunc(b.Context(), pool, func(tx pgx.Tx) error {
			return outbox.Enqueue(b.Context(), tx, messages...)
		})
		if err != nil {
			b.Fatal(err)
		}
		messages = messages[:0]
	}
	for e := range order.Stream(order.StreamOptions{Events: b.N, Seed: 1}) {
		messages = append(messages, outbox.Message{ID: e.ID, Record: e.Record(topic)})
		if len(messages) == batch {
			flush()
		}
	}
	flush()
}
