package contest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/audit"
	"github.com/delivered-twice/delivered-twice/internal/order"
)

// topic is an output topic, as a read_committed reader sees it.
type topic struct {
	brokers kgo.Opt
	admin   *kadm.Client
	name    string
	offsets [][]int64 // of the committed records by partition, after the audit
	found   int       // events of which the audit has found a record

	reader  *kgo.Client // nil unless somebody follows
	reading sync.WaitGroup
	mu      sync.Mutex
	first   []time.Time // when the reader had the first record of each event
	read    int         // events of which it has one
}

func openTopic(brokers []string, client *kgo.Client, name string, partitions int) *topic {
	return &topic{brokers: kgo.SeedBrokers(brokers...), admin: kadm.NewClient(client), name: name, offsets: make([][]int64, partitions)}
}

func (t *topic) follow(ctx context.Context, l *ledger) (err error) {
	t.first = make([]time.Time, len(l.found))
	t.reader, err = kgo.NewClient(t.brokers, kgo.ClientID("contest"), kgo.ConsumeTopics(t.name),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		return err
	}
	t.reading.Go(func() {
		for {
			fetches := t.reader.PollFetches(ctx)
			if ctx.Err() != nil || fetches.IsClientClosed() {
				return
			}
			t.note(fetches, l.numbers)
		}
	})
	return nil
}

func (t *topic) note(fetches kgo.Fetches, numbers map[string]int32) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	fetches.EachRecord(func(r *kgo.Record) {
		if n, sent := numbers[order.ID(r)]; sent && t.first[n].IsZero() {
			t.first[n] = now
			t.read++
		}
	})
}

func (t *topic) look(ctx context.Context) (mark, error) {
	listed, err := t.admin.ListCommittedOffsets(ctx, t.name)
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		return mark{}, fmt.Errorf("look up the last stable offsets of %s: %w", t.name, err)
	}
	m := mark{at: time.Now(), stable: make([]int64, len(t.offsets))}
	for _, partition := range listed[t.name] {
		m.stable[partition.Partition] = partition.Offset
		m.effects += partition.Offset
	}
	return m, nil
}

// settled needs the acknowledgement: offsets are more than records, since markers of
// transactions have offsets, too.
func (t *topic) settled(ctx context.Context, m mark, acknowledged bool, _ int) (bool, error) {
	if !acknowledged {
		return false, nil
	}
	ends, err := t.admin.ListEndOffsets(ctx, t.name)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return false, fmt.Errorf("look up the high watermarks of %s: %w", t.name, err)
	}
	for _, partition := range ends[t.name] {
		if m.stable[partition.Partition] < partition.Offset {
			return false, nil
		}
	}
	return true, nil
}

func (t *topic) audit(ctx context.Context, l *ledger) error {
	err := audit.EachCommitted(ctx, t.name, func(r *kgo.Record) {
		t.offsets[r.Partition] = append(t.offsets[r.Partition], r.Offset)
		if _, first := l.add(order.ID(r)); first {
			t.found++
		}
	}, t.brokers)
	if err != nil || t.reader == nil {
		return err
	}
	return t.awaitReader(ctx)
}

// awaitReader waits until the reader has what the audit has found.
func (t *topic) awaitReader(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cleanupPatience)
	defer cancel()
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		t.mu.Lock()
		read := t.read
		t.mu.Unlock()
		if read >= t.found {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("the reader of %s has %d of %d events: %w", t.name, read, t.found, ctx.Err())
		}
	}
}

func (t *topic) visible(m mark) int {
	n := 0
	for partition, offsets := range t.offsets {
		below, _ := slices.BinarySearch(offsets, m.stable[partition])
		n += below
	}
	return n
}

func (t *topic) seen() []time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.first
}

func (t *topic) close(context.Context) error {
	if t.reader != nil {
		t.reader.Close()
		t.reading.Wait()
	}
	return nil
}
