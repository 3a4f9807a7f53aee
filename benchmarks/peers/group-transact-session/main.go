// Command group-transact-session is franz-go's own way to consume, transform and
// produce exactly once: a kgo.GroupTransactSession.
package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/benchmarks/peers/internal/peer"
)

var (
	maxRecords int
	linger     time.Duration
)

func main() {
	peer.Main(1, func(f *flag.FlagSet) {
		f.IntVar(&maxRecords, "max-records", 10_000, "records of a poll, at most; with --commit-interval=0 also those of a transaction")
		f.DurationVar(&linger, "linger", 0, "how long the producer waits for a batch to fill")
	}, func(peer.Flags) {
		peer.Setting("max-records", maxRecords)
		peer.Setting("linger", linger)
		peer.Setting("compression", "snappy (default)")
	}, run)
}

func run(ctx context.Context, w peer.Worker) error {
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(w.Brokers...),
		kgo.ClientID("group-transact-session"),
		kgo.TransactionalID(w.Group+"-"+w.Name),
		kgo.TransactionTimeout(10*time.Second),
		kgo.ConsumerGroup(w.Group),
		kgo.ConsumeTopics(w.Input),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ProducerLinger(linger),
		kgo.DefaultProduceTopic(w.Output),
		kgo.OnPartitionsAssigned(func(context.Context, *kgo.Client, map[string][]int32) { w.Ready() }),
	)
	if err != nil {
		return err
	}
	defer session.Close()
	for ctx.Err() == nil {
		if err := transaction(ctx, w, session); err != nil {
			return err
		}
	}
	return nil
}

// transaction passes on what comes within a commit interval, from the first record on.
func transaction(ctx context.Context, w peer.Worker, session *kgo.GroupTransactSession) error {
	fetches := session.PollRecords(ctx, maxRecords)
	if fetches.NumRecords() == 0 {
		return failed(fetches)
	}
	if err := session.Begin(); err != nil {
		return err
	}
	end, cancel := context.WithTimeout(ctx, w.CommitInterval)
	defer cancel()
	first := kgo.AbortingFirstErrPromise(session.Client())
	for {
		fetches.EachRecord(func(r *kgo.Record) {
			out := &kgo.Record{Key: r.Key, Value: r.Value, Headers: r.Headers, Timestamp: r.Timestamp}
			session.Produce(context.WithoutCancel(ctx), out, first.Promise())
		})
		if err := failed(fetches); err != nil {
			return err
		}
		if end.Err() != nil {
			break
		}
		fetches = session.PollRecords(end, maxRecords)
	}
	// A rebalance, too, makes it an abort, and the records come again.
	_, err := session.End(context.WithoutCancel(ctx), kgo.TransactionEndTry(first.Err() == nil))
	if err != nil {
		return fmt.Errorf("end the transaction: %w", err)
	}
	return nil
}

// failed returns the first error that is not the end of waiting.
func failed(fetches kgo.Fetches) error {
	for _, e := range fetches.Errors() {
		if e.Err != context.DeadlineExceeded && e.Err != context.Canceled {
			return fmt.Errorf("fetch %s/%d: %w", e.Topic, e.Partition, e.Err)
		}
	}
	return nil
}
