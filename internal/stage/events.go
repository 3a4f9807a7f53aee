package stage

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/audit"
	"github.com/delivered-twice/delivered-twice/internal/order"
)

func pull(o order.StreamOptions) (next func() (order.Event, bool, bool), stop func()) {
	return iter.Pull2(order.Stream(o))
}

// Publish sends the next n events and returns when the broker has them. Behind a webhook
// it does not wait.
func (s *Stage) Publish(ctx context.Context, n int) error { return s.Send(ctx, s.Draw(n)...) }

// Draw returns the next n events. They count as sent: whoever draws them must send them.
func (s *Stage) Draw(n int) []order.Event {
	events := make([]order.Event, n)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range events {
		events[i], _, _ = s.next()
	}
	s.sent = append(s.sent, events...)
	return events
}

// Send sends events, once more or never sent before, in their order. Behind a webhook
// there is no order, and Send does not wait.
func (s *Stage) Send(ctx context.Context, events ...order.Event) error {
	if byWebhook(s.Lane) {
		for _, e := range events {
			s.provider.post(s.provider.everyone, e.ID, e.Encode())
		}
		return nil
	}
	records := make([]*kgo.Record, len(events))
	for i, e := range events {
		records[i] = e.Record(s.Input)
	}
	return s.produce(ctx, records...)
}

// Poison sends n records that no handler can take: they are no events.
func (s *Stage) Poison(ctx context.Context, n int) error {
	records, ids := make([]*kgo.Record, n), make([]string, n)
	for i := range records {
		id := fmt.Sprintf("poison_%08x", s.Random.Uint32())
		ids[i] = id
		records[i] = &kgo.Record{
			Topic:   s.Input,
			Key:     []byte(id),
			Value:   []byte(`{"order_id":`),
			Headers: []kgo.RecordHeader{{Key: order.HeaderEventID, Value: []byte(id)}},
		}
	}
	s.poisoned += n
	s.Happened("it was sent as poison, which no handler can take", ids...)
	if byWebhook(s.Lane) {
		for _, r := range records {
			s.provider.post(s.provider.everyone, string(r.Key), fmt.Appendf(nil, `{"id":%q,"order_id":""}`, r.Key))
		}
		return nil
	}
	return s.produce(ctx, records...)
}

// Poisoned is how many records were sent that no handler can take.
func (s *Stage) Poisoned() int { return s.poisoned }

func (s *Stage) produce(ctx context.Context, records ...*kgo.Record) error {
	if err := s.client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return fmt.Errorf("publish to topic %s: %w", s.Input, err)
	}
	return nil
}

// Sent returns the events sent so far, each once, in their order.
func (s *Stage) Sent() []order.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sent)
}

// Expected returns their ids.
func (s *Stage) Expected() audit.Expected {
	expected := make(audit.Expected)
	for _, e := range s.Sent() {
		expected[e.ID] = struct{}{}
	}
	return expected
}

// Trickle sends events one after the other, a few every few milliseconds, until stop
// is called, which returns what went wrong. It is for faults that strike in the
// middle of things.
func (s *Stage) Trickle(ctx context.Context) (stop func() error) {
	const (
		few   = 5
		pause = 5 * time.Millisecond
	)
	stopping, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			if err := s.Publish(ctx, few); err != nil {
				done <- err
				return
			}
			select {
			case <-stopping:
				done <- nil
				return
			case <-time.After(pause):
			}
		}
	}()
	return func() error {
		close(stopping)
		return <-done
	}
}
