package contest

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/order"
)

// stream is the seeded events, by their number.
func stream(events int) iter.Seq2[int, order.Event] {
	return func(yield func(int, order.Event) bool) {
		n := 0
		for e := range order.Stream(order.StreamOptions{Events: events, Seed: Seed}) {
			if !yield(n, e) {
				return
			}
			n++
		}
	}
}

// recordOf returns the event as a record with a value of [ValueBytes]: JSON may end in
// blanks.
func recordOf(e order.Event, topic string) *kgo.Record {
	r := e.Record(topic)
	if pad := ValueBytes - len(r.Value); pad > 0 {
		r.Value = append(r.Value, bytes.Repeat([]byte{' '}, pad)...)
	}
	return r
}

// publisher sends the events, each once and those of a key in order.
type publisher struct {
	client *kgo.Client
	topic  string
	// failure is the first.
	failure atomic.Pointer[error]
}

func newPublisher(brokers []string, topic string) (*publisher, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ClientID("contest"), kgo.ProducerLinger(0))
	if err != nil {
		return nil, err
	}
	return &publisher{client: client, topic: topic}, nil
}

func (p *publisher) close() { p.client.Close() }

func (p *publisher) send(ctx context.Context, e order.Event, at time.Time) {
	r := recordOf(e, p.topic)
	r.Timestamp = at
	p.client.Produce(ctx, r, func(_ *kgo.Record, err error) {
		if err != nil {
			p.failure.CompareAndSwap(nil, &err)
		}
	})
}

// flush waits until everything was sent.
func (p *publisher) flush(ctx context.Context) error {
	err := p.client.Flush(ctx)
	if failure := p.failure.Load(); failure != nil {
		err = *failure
	}
	if err != nil {
		return fmt.Errorf("publish to topic %s: %w", p.topic, err)
	}
	return nil
}

// ledger knows the events, and counts what was found of each.
type ledger struct {
	numbers   map[string]int32 // of events by id
	keys      []int32          // of each event, numbered
	sequences []int32          // place of each event among those of its key
	found     []uint8          // effects of each event; 255 is 255 or more
	latest    []int32          // sequence of the latest event of each key that was found
	audit     Audit
}

func newLedger(events int) *ledger {
	l := &ledger{numbers: make(map[string]int32, events), found: make([]uint8, events)}
	keys := make(map[string]int32)
	for n, e := range stream(events) {
		key, known := keys[e.OrderID]
		if !known {
			key = int32(len(keys))
			keys[e.OrderID] = key
		}
		l.numbers[e.ID] = int32(n)
		l.keys = append(l.keys, key)
		l.sequences = append(l.sequences, int32(e.Sequence))
	}
	l.latest = make([]int32, len(keys))
	return l
}

// add counts an effect. Those of a key are to be added in the order in which they were
// applied. It returns the number of the event, and whether this is its first effect.
func (l *ledger) add(id string) (number int32, first bool) {
	number, known := l.numbers[id]
	if !known {
		l.audit.Unexpected++
		return 0, false
	}
	if first = l.found[number] == 0; first {
		key, sequence := l.keys[number], l.sequences[number]
		if sequence < l.latest[key] {
			l.audit.Reordered++
		}
		l.latest[key] = max(l.latest[key], sequence)
	}
	if l.found[number] < 255 {
		l.found[number]++
	}
	return number, first
}

// result is the audit, when everything was added.
func (l *ledger) result() Audit {
	a := l.audit
	a.Expected = len(l.found)
	for _, n := range l.found {
		switch n {
		case 0:
			a.Lost++
		case 1:
			a.Once++
		default:
			a.Duplicated++
		}
	}
	return a
}
