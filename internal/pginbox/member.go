package pginbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// member is one run of a consumer as a member of its group. The group calls it back
// from other goroutines, but never while a batch is in hand.
type member struct {
	*Consumer
	client   *kgo.Client
	verified time.Time // when Process was last asked whether all is as it was

	mu sync.Mutex
	// rejoining says that partitions must be assigned anew, because what comes next
	// from them is not what must be processed next.
	rejoining bool
	tail      *tail               // of the assignment in force, where there is one
	starts    map[partition]int64 // where Resume said that partitions begin
	failed    error               // what ended something in the background
}

// verifyInterval is about how often it is.
const verifyInterval = time.Second

// serve does what there is to do after a poll.
func (m *member) serve(ctx context.Context, events []Event) error {
	m.lookAfterTail()
	if err := m.failure(); err != nil {
		return err
	}
	if m.options.Resume != nil && time.Since(m.verified) > verifyInterval {
		if err := m.process(ctx, nil); err != nil {
			return err
		}
		m.verified = time.Now()
	}
	if len(events) == 0 || m.isRejoining() {
		return nil
	}
	if err := m.checkStarts(events); err != nil {
		return err
	}
	return m.deliver(ctx, events)
}

// deliver processes a batch and acknowledges it.
func (m *member) deliver(ctx context.Context, events []Event) error {
	if err := m.polled(ctx, events); err != nil {
		return err
	}
	switch {
	case m.options.AcknowledgeFirst:
		taken, err := m.acknowledge(ctx, m.client, events)
		if err != nil || !taken {
			return err
		}
		return m.process(ctx, events)
	case m.options.AcknowledgeAfterFlush != nil:
		t, err := m.openedTail(ctx) // before there is anything to lose
		if err != nil {
			return err
		}
		if err := m.process(ctx, events); err != nil {
			return err
		}
		t.add(events)
		return nil
	}
	if err := m.process(ctx, events); err != nil || m.isRejoining() {
		return err
	}
	_, err := m.acknowledge(ctx, m.client, events)
	return err
}

// process calls Process. Where the stored offsets are not as they were, it drops the
// batch and lets the member join again.
func (m *member) process(ctx context.Context, events []Event) error {
	err := m.options.Process(ctx, events)
	if m.options.Resume != nil && errors.Is(err, ErrStale) {
		m.rejoin(err)
		return nil
	}
	return err
}

// rejoin gives all partitions back and joins the group again. Only what the group
// assigns then is known to be this member's, and only there is it known where to
// begin. Until then nothing is processed.
func (m *member) rejoin(cause error) {
	m.options.Logger.Warn("what is in hand is dropped, and the member joins its group again to find out where to go on", "group", m.options.Group, "cause", cause)
	m.mu.Lock()
	m.rejoining = true
	m.mu.Unlock()
	m.client.ForceRebalance()
}

func (m *member) isRejoining() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rejoining
}

// assigned is called when the group has assigned partitions, before any record of
// them arrives. Those of earlier assignments are gone by then.
func (m *member) assigned() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rejoining = false
}

// resume is called with the group's offsets of the partitions that were assigned, and
// returns those to begin with.
func (m *member) resume(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	assigned := make(map[string][]int32, len(offsets))
	for topic, partitions := range offsets {
		for number := range partitions {
			assigned[topic] = append(assigned[topic], number)
		}
	}
	resumed, err := m.options.Resume(ctx, assigned)
	if err != nil {
		if ctx.Err() == nil { // else the assignment is over already
			m.fail(err)
		}
		return nil, err
	}
	starts := make(map[partition]int64)
	adjusted := make(map[string]map[int32]kgo.Offset, len(assigned))
	for topic, numbers := range assigned {
		adjusted[topic] = make(map[int32]kgo.Offset, len(numbers))
		for _, number := range numbers {
			p := partition{topic, number}
			start, ok := resumed[topic][number]
			if !ok {
				err := fmt.Errorf("%s: Resume does not say where to begin", p)
				m.fail(err)
				return nil, err
			}
			starts[p] = start
			adjusted[topic][number] = kgo.NewOffset().At(start)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.starts = starts
	return adjusted, nil
}

// checkStarts refuses records from before the stored offsets, which come only where
// the topic ends before them.
func (m *member) checkStarts(events []Event) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range events {
		p := partitionOf(e)
		if start, ok := m.starts[p]; ok && e.Record.Offset < start {
			return fmt.Errorf("%s: there is a record at offset %d, but everything before offset %d is stored as done, and the topic ended before it: if the topic was deleted and created anew, delete its rows from stored_offsets", p, e.Record.Offset, start)
		}
	}
	return nil
}

// openedTail returns the tail of the assignment in force.
func (m *member) openedTail(ctx context.Context) (*tail, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.tail == nil {
		t, err := m.openTail(ctx, m.client)
		if err != nil {
			return nil, err
		}
		m.tail = t
	}
	return m.tail, nil
}

// lookAfterTail takes in that a tail has ended by itself.
func (m *member) lookAfterTail() {
	m.mu.Lock()
	t := m.tail
	if t != nil {
		select {
		case <-t.done:
			m.tail = nil
		default:
			t = nil
		}
	}
	m.mu.Unlock()
	switch {
	case t == nil:
	case errors.Is(t.err, errInDoubt):
		m.rejoin(t.err)
	default:
		m.fail(t.err)
	}
}

// finishTail lets the tail acknowledge what it can within the grace. What it can't
// comes again, from the committed offsets on, to whoever is assigned the partitions.
func (m *member) finishTail(grace time.Duration) {
	m.mu.Lock()
	t := m.tail
	m.tail = nil
	m.mu.Unlock()
	if t == nil {
		return
	}
	err := t.finish(grace)
	switch {
	case err == nil:
	case errors.Is(err, errInDoubt), errors.Is(err, context.Canceled):
		m.options.Logger.Warn("batches that may not be on disk stay unacknowledged and come again", "cause", err)
	default:
		m.fail(err)
	}
}

// fail keeps the first error of what goes on in the background.
func (m *member) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed == nil {
		m.failed = err
	}
}

func (m *member) failure() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failed
}
