package pginbox

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/semaphore"
)

const (
	// maxUnacknowledged is how many processed events may wait to be acknowledged before
	// processing waits, too. They take memory, and come again if the process dies.
	maxUnacknowledged = 20_000
	// maxTail is how many batches that may be.
	maxTail = 4096
)

// tail acknowledges processed batches, in their order, once their commits are on
// disk, while the next ones are being processed. Its witness was there before the
// first of them. What has piled up meanwhile is acknowledged in one request: the
// broker takes as long for it as Postgres for many a small batch.
type tail struct {
	witness *witness
	batches chan []Event
	room    *semaphore.Weighted // for events
	ctx     context.Context
	cancel  context.CancelFunc
	hurry   chan struct{}
	done    chan struct{}
	err     error // to be read once done is closed
}

// openTail begins one. It waits outages out until ctx ends, which also ends the tail.
func (c *Consumer) openTail(ctx context.Context, client *kgo.Client) (*tail, error) {
	pauses := newBackoff(c.options.RetryBackoff)
	for {
		w, err := openWitness(ctx, c.options.AcknowledgeAfterFlush)
		if err == nil {
			t := &tail{
				witness: w,
				batches: make(chan []Event, maxTail),
				room:    semaphore.NewWeighted(maxUnacknowledged),
				hurry:   make(chan struct{}),
				done:    make(chan struct{}),
			}
			t.ctx, t.cancel = context.WithCancel(ctx)
			go func() {
				defer close(t.done)
				defer w.close()
				defer t.cancel()
				t.err = t.follow(c, client)
			}()
			return t, nil
		}
		if refused(err) {
			return nil, err
		}
		if err := c.pause(ctx, pauses, err); err != nil {
			return nil, err
		}
	}
}

func (t *tail) follow(c *Consumer, client *kgo.Client) error {
	for events := range t.batches {
		taken := weight(events)
		// Whatever is here by now is committed by now: one wait serves all of it.
		for len(t.batches) > 0 {
			batch := <-t.batches
			taken += weight(batch)
			events = append(events, batch...)
		}
		if err := t.witness.awaitFlush(t.ctx, t.hurry); err != nil {
			if refused(err) || t.ctx.Err() != nil {
				return fmt.Errorf("follow the write-ahead log: %w", err)
			}
			return fmt.Errorf("%w: %w", errInDoubt, err)
		}
		if _, err := c.acknowledge(t.ctx, client, events); err != nil {
			return err
		}
		t.room.Release(taken)
	}
	return nil
}

// weight is what a batch takes of the room. One that is larger than all of it must fit.
func weight(events []Event) int64 { return min(int64(len(events)), maxUnacknowledged) }

// add hands over a batch that is processed. What a tail that has ended is given stays
// unacknowledged.
func (t *tail) add(events []Event) {
	if t.room.Acquire(t.ctx, weight(events)) != nil {
		return
	}
	select {
	case t.batches <- events:
	case <-t.done:
	}
}

// finish acknowledges what it can within the grace, and returns when it is over.
// Nothing may be added any more.
func (t *tail) finish(grace time.Duration) error {
	close(t.hurry)
	close(t.batches)
	defer time.AfterFunc(grace, t.cancel).Stop()
	<-t.done
	return t.err
}
