// Command watermill is Watermill's router between its Kafka subscriber and Postgres,
// with its Deduplicator. See the README for why it is put together like this.
package main

import (
	"context"
	"database/sql"
	"flag"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	_ "github.com/jackc/pgx/v5/stdlib"
	"golang.org/x/sync/errgroup"

	"github.com/delivered-twice/delivered-twice/benchmarks/peers/internal/peer"
	"github.com/delivered-twice/delivered-twice/internal/order"
)

func main() {
	peer.Main(1, func(*flag.FlagSet) {}, func(f peer.Flags) {
		c := subscriberConfig(f)
		peer.Setting("transaction", "one for each event")
		peer.Setting("concurrency", "one event of each partition at a time (the Kafka subscriber's)")
		peer.Setting("Deduplicator.Repository", "a table, in the transaction of the work")
		peer.Setting("Consumer.Offsets.AutoCommit.Interval", c.Consumer.Offsets.AutoCommit.Interval)
		peer.Setting("Consumer.Fetch.Default", c.Consumer.Fetch.Default)
		peer.Setting("Consumer.MaxWaitTime", c.Consumer.MaxWaitTime)
		peer.Setting("ChannelBufferSize", c.ChannelBufferSize)
		peer.Setting("NackResendSleep", "none")
	}, run)
}

func subscriberConfig(f peer.Flags) *sarama.Config {
	c := kafka.DefaultSaramaSubscriberConfig()
	c.Version = sarama.V2_8_0_0 // headers and group protocol of this decade
	c.ChannelBufferSize = 1_000
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Offsets.AutoCommit.Interval = max(f.CommitInterval, time.Millisecond)
	c.Consumer.IsolationLevel = sarama.ReadCommitted
	c.Consumer.Fetch.Default = 4 << 20
	c.Consumer.MaxWaitTime = 10 * time.Millisecond
	return c
}

const table = `CREATE TABLE IF NOT EXISTS watermill_deduplication (
	key     text PRIMARY KEY,
	seen_at timestamptz NOT NULL DEFAULT now()
)`

func run(ctx context.Context, w peer.Worker) error {
	db, err := sql.Open("pgx", w.DatabaseURL)
	if err != nil {
		return err
	}
	defer db.Close()
	// As many as there can be events in hand, and kept.
	const connections = 16
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	if err := createTable(ctx, db); err != nil {
		return err
	}
	logger := watermill.NewStdLogger(false, false)
	subscriber, err := kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers:               w.Brokers,
		Unmarshaler:           kafka.DefaultMarshaler{},
		OverwriteSaramaConfig: subscriberConfig(w.Flags),
		ConsumerGroup:         w.Group,
		NackResendSleep:       kafka.NoSleep,
	}, logger)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, logger)
	if err != nil {
		return err
	}
	deduplicator := middleware.Deduplicator{
		KeyFactory: middleware.NewMessageHasherFromMetadataField(order.HeaderEventID),
		Repository: repository{},
	}
	router.AddMiddleware(inTransaction(db), deduplicator.Middleware)
	router.AddConsumerHandler("loyalty", w.Input, subscriber, func(m *message.Message) error {
		e, err := order.Decode(m.Payload)
		if err != nil {
			return err
		}
		created, _ := kafka.MessageTimestampFromCtx(m.Context())
		_, err = transaction(m.Context()).ExecContext(m.Context(),
			`INSERT INTO loyalty_points (event_id, customer, points, attempt, event_created_at) VALUES ($1, $2, $3, $4, $5)`,
			m.Metadata.Get(order.HeaderEventID), e.Customer, order.Points, w.Name, created)
		return err
	})
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { return router.Run(context.WithoutCancel(ctx)) })
	all.Go(func() error {
		select {
		case <-router.Running():
			w.Ready()
			<-ctx.Done()
		case <-ctx.Done():
		}
		return router.Close() // finishes what is in hand
	})
	return all.Wait()
}

// createTable has workers and instances wait for each other: CREATE TABLE IF NOT EXISTS
// fails when two do it at the same time.
func createTable(ctx context.Context, db *sql.DB) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // after the commit it does nothing
	if _, err := tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock(hashtext('watermill'))`); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, table); err != nil {
		return err
	}
	return tx.Commit()
}

type transactionKey struct{}

func transaction(ctx context.Context) *sql.Tx { return ctx.Value(transactionKey{}).(*sql.Tx) }

// inTransaction has what is behind it share one transaction, in the message's context.
func inTransaction(db *sql.DB) message.HandlerMiddleware {
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(m *message.Message) ([]*message.Message, error) {
			before := m.Context()
			tx, err := db.BeginTx(context.WithoutCancel(before), nil)
			if err != nil {
				return nil, err
			}
			defer tx.Rollback() // after the commit it does nothing
			m.SetContext(context.WithValue(before, transactionKey{}, tx))
			defer m.SetContext(before)
			out, err := h(m)
			if err != nil {
				return nil, err
			}
			return out, tx.Commit()
		}
	}
}

// repository keeps the Deduplicator's keys in Postgres.
type repository struct{}

var _ middleware.ExpiringKeyRepository = repository{}

func (repository) IsDuplicate(ctx context.Context, key string) (bool, error) {
	inserted, err := transaction(ctx).ExecContext(ctx, `INSERT INTO watermill_deduplication (key) VALUES ($1) ON CONFLICT DO NOTHING`, key)
	if err != nil {
		return false, err
	}
	n, err := inserted.RowsAffected()
	return n == 0, err
}
