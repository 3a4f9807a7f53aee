package kafkatx_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/kafkatx"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

// pick makes a pick request of a paid order.
func pick(_ context.Context, order *kgo.Record) ([]*kgo.Record, error) {
	return []*kgo.Record{{Key: order.Key, Value: append([]byte("pick "), order.Key...)}}, nil
}

func Example() {
	t, end := sandboxtest.Example()
	defer end()
	brokers, input, output, letters := sandboxtest.Brokers(t), sandboxtest.Topic(t, 1), sandboxtest.Topic(t, 1), sandboxtest.Topic(t, 1) // yours
	ctx, stop := context.WithCancel(context.Background())                                                                                // signal.NotifyContext, in a program
	defer stop()

	failed := false
	engine, err := kafkatx.New(kafkatx.Config{
		Client:      []kgo.Opt{kgo.SeedBrokers(brokers...)},
		Group:       sandboxtest.Name(t), // "picking"
		Instance:    "0",                 // the same whenever this process is started again
		Input:       input,
		Output:      output,
		DeadLetters: letters,
		Handler:     kafkatx.Each(pick),
		Hook: func(_ context.Context, p kafkatx.Passage) error {
			switch {
			case p.Step == kafkatx.OffsetsSent && !failed:
				failed = true
				return errors.New("the first transaction is aborted, as if the process had died here")
			case p.Step == kafkatx.Committed:
				stop() // enough for an example
			}
			return nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	sandboxtest.Client(t).ProduceSync(ctx, &kgo.Record{Topic: input, Key: []byte("ord_1")})
	fmt.Println("stopped:", engine.Run(ctx))

	// Everything that a reader of each isolation level sees.
	read := func(level kgo.IsolationLevel) {
		sandboxtest.Client(t).ProduceSync(context.Background(), &kgo.Record{Topic: output, Value: []byte("end")})
		reader := sandboxtest.Client(t, kgo.ConsumeTopics(output), kgo.FetchIsolationLevel(level))
		for {
			for _, r := range reader.PollFetches(context.Background()).Records() {
				if string(r.Value) == "end" {
					return
				}
				fmt.Printf("%s\n", r.Value)
			}
		}
	}
	fmt.Println("read_committed:")
	read(kgo.ReadCommitted())
	fmt.Println("read_uncommitted:")
	read(kgo.ReadUncommitted())
	// Output:
	// stopped: <nil>
	// read_committed:
	// pick ord_1
	// read_uncommitted:
	// pick ord_1
	// pick ord_1
}
