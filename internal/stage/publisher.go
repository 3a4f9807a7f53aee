package stage

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/order"
)

// Publish sends a stream of events to a topic, the way their publisher would, and
// returns when the last one is acknowledged.
//
// interval says how long after its predecessor the n-th record (from 0) is created.
// The record says so in its timestamp even if the broker was slow to take it: time
// spent waiting to be sent counts as latency (no coordinated omission). A record
// whose interval is 0 is created when it is sent, and sent when the broker takes it.
//
// progress, where set, is called with the number of records acknowledged so far.
func Publish(ctx context.Context, brokers []string, topic string, o order.StreamOptions, interval func(n int) time.Duration, progress func(sent int)) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ClientID("publisher"), kgo.ProducerLinger(0))
	if err != nil {
		return err
	}
	defer client.Close()

	var (
		mu     sync.Mutex
		acked  int
		failed error
	)
	promise := func(_ *kgo.Record, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil && failed == nil {
			failed = fmt.Errorf("publish to topic %s: %w", topic, err)
		}
		acked++
		if progress != nil {
			progress(acked)
		}
	}
	due, n := time.Now(), 0
	for e := range order.Stream(o) {
		record := e.Record(topic)
		if after := interval(n); after > 0 {
			due = due.Add(after)
			record.Timestamp = due
			if ahead := time.Until(due); ahead > time.Millisecond {
				if err := wait(ctx, ahead); err != nil {
					return err
				}
			}
		}
		client.Produce(ctx, record, promise)
		n++
	}
	if err := client.Flush(ctx); err != nil {
		return fmt.Errorf("publish to topic %s: %w", topic, err)
	}
	mu.Lock()
	defer mu.Unlock()
	return failed
}

// Every returns the interval of a constant rate (records/s); 0 is as fast as the
// broker takes them.
func Every(rate int) func(n int) time.Duration {
	if rate == 0 {
		return func(int) time.Duration { return 0 }
	}
	return func(int) time.Duration { return time.Second / time.Duration(rate) }
}
