package trial

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/audit"
	"github.com/delivered-twice/delivered-twice/internal/order"
)

// observer is the reader at the far end: it reads output topics on the
// read_committed isolation level while the trial runs, and notes when records
// become visible to it. The audit can't tell that afterwards.
type observer struct {
	client *kgo.Client
	done   chan struct{}

	// What was seen, by topic, and what went wrong; to be looked at when done.
	seen   map[string][]audit.Effect
	failed error
}

func observe(ctx context.Context, brokers []string, topics ...string) (*observer, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ClientID("observer"),
		kgo.ConsumeTopics(topics...), kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		return nil, err
	}
	o := &observer{client: client, done: make(chan struct{}), seen: make(map[string][]audit.Effect)}
	go o.run(ctx)
	return o, nil
}

func (o *observer) run(ctx context.Context) {
	defer close(o.done)
	for {
		fetches := o.client.PollFetches(ctx)
		now := time.Now()
		if ctx.Err() != nil || fetches.IsClientClosed() {
			return
		}
		fetches.EachError(func(topic string, partition int32, err error) {
			o.failed = errors.Join(o.failed, fmt.Errorf("observe topic %s, partition %d: %w", topic, partition, err))
		})
		fetches.EachRecord(func(r *kgo.Record) {
			o.seen[r.Topic] = append(o.seen[r.Topic], audit.Effect{
				EventID: order.ID(r),
				Attempt: order.Header(r, order.HeaderAttempt),
				Where:   r.Topic,
				At:      now,
			})
		})
	}
}

// close stops observing. What was seen may be looked at from now on.
func (o *observer) close() error {
	o.client.Close()
	<-o.done
	return o.failed
}
