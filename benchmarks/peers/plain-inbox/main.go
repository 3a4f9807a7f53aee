// Command plain-inbox is an inbox as most teams write it: a transaction an event, with
// the event's id first and then the work, and the offset after that.
package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/benchmarks/peers/internal/peer"
	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/warehouse"
)

func main() {
	peer.Main(1, func(*flag.FlagSet) {}, func(peer.Flags) {
		peer.Setting("transaction", "one for each event")
		peer.Setting("connections", "one for each worker")
		peer.Setting("offsets", "of events that are done, by the commit interval")
	}, run)
}

const table = `CREATE TABLE IF NOT EXISTS inbox (
	event_id text PRIMARY KEY,
	seen_at  timestamptz NOT NULL DEFAULT now()
)`

func run(ctx context.Context, w peer.Worker) error {
	conn, err := pgx.Connect(ctx, w.DatabaseURL)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := createTable(ctx, conn); err != nil {
		return err
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(w.Brokers...),
		kgo.ClientID("plain-inbox"),
		kgo.ConsumerGroup(w.Group),
		kgo.ConsumeTopics(w.Input),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.AutoCommitMarks(),
		kgo.AutoCommitInterval(max(w.CommitInterval, 100*time.Millisecond)), // kgo takes no shorter one
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(func(context.Context, *kgo.Client, map[string][]int32) { w.Ready() }),
		kgo.OnPartitionsRevoked(func(ctx context.Context, c *kgo.Client, _ map[string][]int32) { _ = c.CommitMarkedOffsets(ctx) }),
	)
	if err != nil {
		return err
	}
	defer client.CloseAllowingRebalance()
	const poll = 100
	for ctx.Err() == nil {
		fetches := client.PollRecords(ctx, poll)
		for _, e := range fetches.Errors() {
			if ctx.Err() == nil {
				return fmt.Errorf("fetch %s/%d: %w", e.Topic, e.Partition, e.Err)
			}
		}
		for _, r := range fetches.Records() {
			if err := handle(context.WithoutCancel(ctx), conn, w, r); err != nil {
				return err
			}
			client.MarkCommitRecords(r)
			if ctx.Err() != nil {
				break
			}
		}
		client.AllowRebalance()
	}
	return client.CommitMarkedOffsets(context.WithoutCancel(ctx))
}

// createTable has workers and instances wait for each other: CREATE TABLE IF NOT EXISTS
// fails when two do it at the same time.
func createTable(ctx context.Context, conn *pgx.Conn) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtext('plain-inbox'))`); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, table)
		return err
	})
}

func handle(ctx context.Context, conn *pgx.Conn, w peer.Worker, r *kgo.Record) error {
	effect, err := warehouse.FromRecord(r)
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		inserted, err := tx.Exec(ctx, `INSERT INTO inbox (event_id) VALUES ($1) ON CONFLICT DO NOTHING`, effect.EventID)
		if err != nil || inserted.RowsAffected() == 0 {
			return err // done before
		}
		_, err = tx.Exec(ctx, `INSERT INTO loyalty_points (event_id, customer, points, attempt, event_created_at) VALUES ($1, $2, $3, $4, $5)`,
			effect.EventID, effect.Event.Customer, order.Points, w.Name, effect.CreatedAt)
		return err
	})
}
