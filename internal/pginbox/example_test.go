package pginbox_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/pginbox"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

// pickTasks creates one pick task an event, in the transaction that it is given.
func pickTasks(ctx context.Context, tx pgx.Tx, events []pginbox.Event) error {
	ids := make([]string, len(events))
	for i, e := range events {
		ids[i] = e.ID
	}
	_, err := tx.Exec(ctx, `INSERT INTO pick_tasks (event_id) SELECT unnest($1::text[])`, ids)
	return err
}

func Example() {
	ctx := context.Background()
	t, end := sandboxtest.Example()
	defer end()
	databaseURL := sandboxtest.Database(t) // yours

	// Whenever the program starts: it does nothing where there is nothing to do.
	if err := pginbox.Migrate(ctx, databaseURL); err != nil {
		log.Fatal(err)
	}
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, `CREATE TABLE pick_tasks (event_id text)`); err != nil {
		log.Fatal(err)
	}

	inbox, err := pginbox.New(pool, pginbox.Options{
		Handlers: []pginbox.Handler{{Name: "warehouse", Handle: pickTasks}},
	})
	if err != nil {
		log.Fatal(err)
	}

	// The source delivers one event five times. Process says each time that it may be
	// acknowledged.
	for range 5 {
		err := inbox.Process(ctx, []pginbox.Event{{ID: "evt_9f3k"}})
		fmt.Println("evt_9f3k:", err)
	}
	// A new id is another event, whatever else it has in common with the first.
	err = inbox.Process(ctx, []pginbox.Event{{ID: "evt_9f3l"}})
	fmt.Println("evt_9f3l:", err)

	var tasks int
	if err := pool.QueryRow(ctx, `SELECT count(*) FROM pick_tasks`).Scan(&tasks); err != nil {
		log.Fatal(err)
	}
	fmt.Println("pick tasks:", tasks)
	// Output:
	// evt_9f3k: <nil>
	// evt_9f3k: <nil>
	// evt_9f3k: <nil>
	// evt_9f3k: <nil>
	// evt_9f3k: <nil>
	// evt_9f3l: <nil>
	// pick tasks: 2
}

// A consumer polls, processes and acknowledges until its context ends.
func ExampleConsumer() {
	t, end := sandboxtest.Example()
	defer end()
	databaseURL, brokers, topic := sandboxtest.Database(t), sandboxtest.Brokers(t), sandboxtest.Topic(t, 1) // yours
	ctx, stop := context.WithCancel(context.Background())                                                   // signal.NotifyContext, in a program
	defer stop()
	if err := pginbox.Migrate(ctx, databaseURL); err != nil {
		log.Fatal(err)
	}
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	inbox, err := pginbox.New(pool, pginbox.Options{
		Handlers: []pginbox.Handler{{
			Name: "warehouse",
			Handle: func(ctx context.Context, tx pgx.Tx, events []pginbox.Event) error {
				for _, e := range events {
					fmt.Println("handled", e.ID)
				}
				return nil
			},
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	consumer, err := pginbox.NewConsumer(pginbox.ConsumerOptions{
		Client:     []kgo.Opt{kgo.SeedBrokers(brokers...)},
		Group:      sandboxtest.Name(t), // "warehouse"
		Topics:     []string{topic},
		InstanceID: "warehouse-0",
		Identify:   identify, // the record's event-id header
		Process:    inbox.Process,
		Hook: func(_ context.Context, p pginbox.Passage) error {
			if p.Step == pginbox.Acknowledged {
				stop() // enough for an example
			}
			return nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}

	// The publisher sends an event twice.
	for range 2 {
		sandboxtest.Client(t).ProduceSync(ctx, &kgo.Record{
			Topic:   topic,
			Value:   []byte(`{"order":"ord_1"}`),
			Headers: []kgo.RecordHeader{{Key: "event-id", Value: []byte("evt_9f3k")}},
		})
	}
	fmt.Println("stopped:", consumer.Run(ctx))
	// Output:
	// handled evt_9f3k
	// stopped: <nil>
}

// Offsets are kept in the database of the work, and whoever takes a partition over
// fences its former owner off.
func ExampleInbox_Resume() {
	ctx := context.Background()
	t, end := sandboxtest.Example()
	defer end()
	databaseURL := sandboxtest.Database(t) // yours
	if err := pginbox.Migrate(ctx, databaseURL); err != nil {
		log.Fatal(err)
	}
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	// Two processes of one consumer group; Resume is called by their Consumers.
	owner := func(name string) *pginbox.Inbox {
		inbox, err := pginbox.New(pool, pginbox.Options{
			Remember: pginbox.RememberOffsets,
			Handlers: []pginbox.Handler{{
				Name: "warehouse",
				Handle: func(ctx context.Context, tx pgx.Tx, events []pginbox.Event) error {
					fmt.Println(name, "handles", events[0].ID)
					return nil
				},
			}},
		})
		if err != nil {
			log.Fatal(err)
		}
		return inbox
	}
	resume := func(inbox *pginbox.Inbox) int64 {
		starts, err := inbox.Resume(ctx, map[string][]int32{"orders.paid": {3}})
		if err != nil {
			log.Fatal(err)
		}
		return starts["orders.paid"][3]
	}
	at := func(offset int64, id string) []pginbox.Event {
		return []pginbox.Event{{ID: id, Record: &kgo.Record{Topic: "orders.paid", Partition: 3, Offset: offset}}}
	}

	first, second := owner("first"), owner("second")
	fmt.Println("first starts at", resume(first))
	fmt.Println(first.Process(ctx, at(0, "evt_9f3k")))
	// The first stands still for too long, and the group gives its partition away.
	fmt.Println("second starts at", resume(second))
	// It wakes up with the next record in hand.
	fmt.Println("refused:", errors.Is(first.Process(ctx, at(1, "evt_9f3l")), pginbox.ErrStale))
	fmt.Println(second.Process(ctx, at(1, "evt_9f3l")))
	// Output:
	// first starts at 0
	// first handles evt_9f3k
	// <nil>
	// second starts at 1
	// refused: true
	// second handles evt_9f3l
	// <nil>
}
