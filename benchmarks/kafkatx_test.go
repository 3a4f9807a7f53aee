package benchmarks_test

import (
	"context"
	"fmt"
	"sync/atomic"
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
				benchmarkKafkaTx(b, kafkatx.Config{Guarantee: guarantee, MaxTransactionRecords: batch})
			})
		}
	}
}

// BenchmarkTransaction: the same, with so many transactions in flight. What a transaction
// takes, one after the other, is ms/tx.
func BenchmarkTransaction(b *testing.B) {
	printEnvironment(b)
	for _, inFlight := range []int{1, 2, 4, 8} {
		for _, batch := range batches {
			b.Run(fmt.Sprintf("in-flight=%d/batch=%d", inFlight, batch), func(b *testing.B) {
				transactions := benchmarkKafkaTx(b, kafkatx.Config{TransactionsInFlight: inFlight, MaxTransactionRecords: batch})
				b.ReportMetric(1000*b.Elapsed().Seconds()/float64(transactions), "ms/tx")
			})
		}
	}
}

// benchmarkKafkaTx returns how many transactions it took.
func benchmarkKafkaTx(b *testing.B, c kafkatx.Config) (transactions int64) {
	m := newMeter(b)
	var committed atomic.Int64
	c.Client = []kgo.Opt{kgo.SeedBrokers(sandboxtest.Brokers(b)...)}
	c.Group, c.Instance = sandboxtest.Name(b), "0"
	c.Input = filled(b, b.N)
	c.Output, c.DeadLetters = sandboxtest.Topic(b, partitions), sandboxtest.Topic(b, 1)
	c.CommitInterval = 100 * time.Millisecond
	c.Handler = func(_ context.Context, in []*kgo.Record) ([]*kgo.Record, error) {
		out := make([]*kgo.Record, len(in))
		for i, r := range in {
			out[i] = &kgo.Record{Key: r.Key, Value: r.Value, Timestamp: r.Timestamp, Headers: r.Headers}
		}
		return out, nil
	}
	c.Hook = func(_ context.Context, p kafkatx.Passage) error {
		switch p.Step {
		case kafkatx.Polled:
			m.arrived(len(p.Records))
		case kafkatx.Committed:
			committed.Add(1)
			m.committed(len(p.Records))
		}
		return nil
	}
	engine, err := kafkatx.New(c)
	if err != nil {
		b.Fatal(err)
	}
	m.run(engine.Run)
	return committed.Load()
}
