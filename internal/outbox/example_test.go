package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/outbox"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

func Example() {
	t, end := sandboxtest.Example()
	defer end()
	databaseURL, brokers, topic := sandboxtest.Database(t), sandboxtest.Brokers(t), sandboxtest.Topic(t, 1) // yours
	ctx, stop := context.WithCancel(context.Background())                                                   // signal.NotifyContext, in a program
	defer stop()
	if err := outbox.Migrate(ctx, databaseURL); err != nil {
		log.Fatal(err)
	}
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	// A record is enqueued in the transaction of the work that it tells of.
	work := func(id string, outcome error) {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			// INSERT INTO pick_tasks …
			if err := outbox.Enqueue(ctx, tx, outbox.Message{ID: id, Record: &kgo.Record{
				Topic:   topic,
				Key:     []byte("ord_1"),
				Headers: []kgo.RecordHeader{{Key: "event-id", Value: []byte(id)}}, // for the next inbox
			}}); err != nil {
				return err
			}
			return outcome // an error rolls back
		})
		fmt.Println(id+":", err)
	}
	work("evt_9f3k", errors.New("rolled back"))
	work("evt_9f3l", nil)

	relay, err := outbox.NewRelay(pool, outbox.Options{
		Client: []kgo.Opt{kgo.SeedBrokers(brokers...)},
		Hook: func(_ context.Context, p outbox.Passage) error {
			for _, m := range p.Messages {
				fmt.Println(p.Step, m.ID)
			}
			if p.Step == outbox.Stamped {
				stop() // enough for an example
			}
			return nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("stopped:", relay.Run(ctx))
	// Output:
	// evt_9f3k: rolled back
	// evt_9f3l: <nil>
	// claimed evt_9f3l
	// published evt_9f3l
	// stamped evt_9f3l
	// stopped: <nil>
}
