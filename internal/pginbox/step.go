package pginbox

import "context"

// Step names a point that a delivery passes, in the order of [Steps].
type Step string

const (
	// Polled: events have arrived; nothing was done with them yet. Passed by the
	// [Consumer].
	Polled Step = "polled"
	// Begun: a handler's transaction has begun. Its first statements, which store
	// what is to be remembered, are on their way in the same round trip.
	Begun Step = "begun"
	// Inserted: what is to be remembered is there, uncommitted: the inbox rows are
	// inserted, the stored offsets advanced. The passage has the fresh events: those
	// that were not done before. If there are none, and no stored offset has moved,
	// the delivery of this handler ends here.
	Inserted Step = "inserted"
	// Worked: the handler has returned, and nothing is committed. The passage has
	// the events that will be done, or dead letters, once it is.
	Worked Step = "worked"
	// Committed: work and what is remembered of it are durable; with
	// [Options].AsynchronousCommit, as soon as the write-ahead log is on disk.
	Committed Step = "committed"
	// Acknowledged: the source will not deliver the events again. Passed by the
	// [Consumer]: next after Polled with [ConsumerOptions].AcknowledgeFirst, and
	// while later batches are being processed with AcknowledgeAfterFlush.
	Acknowledged Step = "acknowledged"
)

// Steps returns all steps in the order in which they are passed.
func Steps() []Step {
	return []Step{Polled, Begun, Inserted, Worked, Committed, Acknowledged}
}

// Passage is one passing of a step.
type Passage struct {
	Step Step
	// Handler is the name of the handler; "" at Polled and Acknowledged.
	Handler string
	// Events are the events concerned, in the order of their delivery.
	Events []Event
}

// Hook is called at every passage and delays what comes after. The handlers of an
// inbox pass their steps concurrently, and so does a consumer that acknowledges after
// the flush.
//
// An error is taken as a failure of the infrastructure at that step: from Begun to
// Worked the transaction is rolled back and tried again; at Committed it is as if
// the answer to COMMIT had been lost, so it is tried again and finds it done; at
// Polled the batch is taken as not polled yet, at Acknowledged as not acknowledged,
// and in both cases the step is tried again.
type Hook func(context.Context, Passage) error

// pass calls the hook, where there is one.
func (h Hook) pass(ctx context.Context, p Passage) error {
	if h == nil {
		return nil
	}
	if err := h(ctx, p); err != nil {
		return &outage{stepError{p.Step, err}}
	}
	return nil
}
