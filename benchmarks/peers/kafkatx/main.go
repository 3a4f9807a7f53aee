// Command kafkatx is this project's transaction engine with the peers' work: to pass
// records on as they are. eos-pipeline, which is built on it, also decodes every event and
// makes another record of it.
package main

import (
	"context"
	"flag"
	"log/slog"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/benchmarks/peers/internal/peer"
	"github.com/delivered-twice/delivered-twice/internal/kafkatx"
)

var inFlight, maxRecords int

func main() {
	peer.Main(1, func(f *flag.FlagSet) {
		f.IntVar(&inFlight, "transactions-in-flight", kafkatx.DefaultTransactionsInFlight, "transactions under way at the same time")
		f.IntVar(&maxRecords, "max-transaction-records", 10_000, "a transaction ends with so many records")
	}, func(peer.Flags) {
		peer.Setting("transactions-in-flight", inFlight)
		peer.Setting("max-transaction-records", maxRecords)
		peer.Setting("compression", "snappy (default)")
	}, run)
}

func run(ctx context.Context, w peer.Worker) error {
	engine, err := kafkatx.New(kafkatx.Config{
		Client:                []kgo.Opt{kgo.SeedBrokers(w.Brokers...), kgo.ClientID("kafkatx")},
		Group:                 w.Group,
		Instance:              w.Name,
		Input:                 w.Input,
		Output:                w.Output,
		DeadLetters:           w.Output + "-dead-letters", // nothing is refused here
		Handler:               passOn,
		Guarantee:             kafkatx.ExactlyOnce,
		TransactionsInFlight:  inFlight,
		MaxTransactionRecords: maxRecords,
		CommitInterval:        w.CommitInterval,
		Hook: func(_ context.Context, p kafkatx.Passage) error {
			if p.Step == kafkatx.Polled { // so it has partitions
				w.Ready()
			}
			return nil
		},
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	return engine.Run(ctx)
}

func passOn(_ context.Context, batch []*kgo.Record) ([]*kgo.Record, error) {
	out := make([]*kgo.Record, len(batch))
	for i, r := range batch {
		out[i] = &kgo.Record{Key: r.Key, Value: r.Value, Headers: r.Headers, Timestamp: r.Timestamp}
	}
	return out, nil
}
