package webhook

import (
	"context"
	"net/http"

	"github.com/delivered-twice/delivered-twice/internal/pginbox"
)

// deliver returns nil when the event is done.
func (r *Receiver) deliver(ctx context.Context, event pginbox.Event) error {
	ctx, cancel := context.WithTimeout(ctx, r.options.Patience)
	defer cancel()
	d := &delivery{request: ctx, event: event, done: make(chan error, 1)}
	r.enter(d)
	select {
	case err := <-d.done:
		return err
	case <-ctx.Done():
		return late(ctx.Err())
	}
}

func late(cause error) error {
	return &refusal{http.StatusServiceUnavailable, "the event is not done yet; send it again", cause}
}

// enter lets an event wait for a batch. Where nothing goes on it is one at once, alone;
// what arrives while others are being worked on goes on together.
func (r *Receiver) enter(d *delivery) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = append(r.waiting, d)
	if r.batches < maxBatches {
		r.batches++
		r.work.Go(r.processAll)
	}
}

// processAll processes batches until nothing waits.
func (r *Receiver) processAll() {
	for batch := r.take(); len(batch) > 0; batch = r.take() {
		err := r.process(batch)
		for _, d := range batch {
			d.done <- err
		}
	}
}

// take returns the next batch. Requests that nobody waits for any more are left out:
// the sender knows nothing of them, and sends them again.
func (r *Receiver) take() (batch []*delivery) {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := 0
	for _, d := range r.waiting {
		if len(batch) == r.options.BatchSize {
			break
		}
		taken++
		if d.request.Err() == nil {
			batch = append(batch, d)
		}
	}
	clear(r.waiting[:taken])
	r.waiting = r.waiting[taken:]
	if len(batch) == 0 {
		r.batches--
	}
	return batch
}

// process has no more patience than a request. It does not end with a request: others
// may wait for the same batch.
func (r *Receiver) process(batch []*delivery) error {
	ctx, cancel := context.WithTimeout(context.Background(), r.options.Patience)
	defer cancel()
	events := make([]pginbox.Event, len(batch))
	for i, d := range batch {
		events[i] = d.event
	}
	if err := r.pass(ctx, Received, events); err != nil {
		return late(err)
	}
	err := r.options.Process(ctx, events)
	if err != nil && ctx.Err() != nil {
		return late(err)
	}
	return err
}
