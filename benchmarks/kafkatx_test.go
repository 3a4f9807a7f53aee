package benchmarks_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/kafkatx"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

// BenchmarkKafkaTx: consume, pass on, produce, commit. A batch is a transaction's
// input, at most.
func BenchmarkKafkaTx(b *testing.B) {
	printEnvironment(b)
	for _, guarantee := range kafkatx.Guarantees() {
		for _, batch := range batches {
			b.Run(fmt.Sprintf("guarantee=%s/batch=%d", guarantee, batch), func(b *testing.B) {
				benchmarkKafkaTx(b, guarantee, batch)
			})
		}
	}
}

func benchmarkKafkaTx(b *testing.B, guarantee kafkatx.Guarantee, batch int) {
	input := filled(b, b.N)
	output, letters := sandboxtest.Topic(b, partitions), sandboxtest.Topic(b, 1)
	m := newMeter(b)
	engine, err := kafkatx.New(kafkatx.Config{
		Client:                []kgo.Opt{kgo.SeedBrokers(sandboxtest.Brokers(b)...)},
		Group:                 sandboxtest.Name(b),
		Instance:              "0",
		Input:                 input,
		Output:                output,
		DeadLetters:           letters,
		Guarantee:             guarantee,
		CommitInterval:        100 * time.Millisecond,
		MaxTransactionRecords: batch,
		Handler: func(_ context.Context, in []*kgo.Record) ([]*kgo.Record, error) {
			out := make([]*kgo.Record, len(in))
			for i, r := range in {
				out[i] = &kgo.Record{Key: r.Key, Value: r.Value, Timestamp: r.Timestamp, Headers: r.Headers}
			}
			return out, nil
		},
		Hook: func(_ context.Context, p kafkatx.Passage) error {
			switch p.Step {
			case kafkatx.Polled:
				m.arrived()
			case kafkatx.Committed:
				m.committed(len(p.Records))
			}
			return nil
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	m.run(engine.Run)
}
