package trial

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
// At a rate above 0 (records/s) the n-th record is created n/rate after the start,
// and says so in its timestamp even if the broker was slow to take it: time spent
// waiting to be sent counts as latency (no coordinated omission). At 0 records are
// sent, and created, as fast as the broker takes them.
//
// progress, where set, is called with the number of records acknowledged so far.
func Publish(ctx context.Context, brokers []string, topic string, o order.StreamOptions, rate int, progress func(sent int)) error {
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
	begin, n := time.Now(), 0
	for e := range order.Stream(o) {
		record := e.Record(topic)
		if rate > 0 {
			record.Timestamp = begin.Add(time.Duration(n) * time.Second / time.Duration(rate))
			if ahead := time.Until(record.Timestamp); ahead > time.Millisecond {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(ahead):
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
