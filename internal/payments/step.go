package payments

import (
	"context"
	"fmt"
)

// Step names a point that a request for work passes, in the order of [Steps]. A
// retry that gets a stored answer passes Received and Answered.
type Step string

const (
	// Received: the request has been read; nothing was done with it yet.
	Received Step = "received"
	// Claimed: the transaction has begun and holds the key, if one was sent.
	Claimed Step = "claimed"
	// Charged: the work, the ledger and the answer are written, and uncommitted.
	Charged Step = "charged"
	// Committed: they are durable, and the client doesn't know yet.
	Committed Step = "committed"
	// Answered: the answer was handed to the network.
	Answered Step = "answered"
)

// Steps returns all steps in the order in which they are passed.
func Steps() []Step { return []Step{Received, Claimed, Charged, Committed, Answered} }

// Passage is one passing of a step.
type Passage struct {
	Step Step
	// EventID is the request's metadata[event_id]; "" where it has none.
	EventID string
}

// Hook is called at every passage, by all requests concurrently, and delays what
// comes after. An error is a failure of the server at that step: before Committed
// everything is rolled back, and up to Committed the client gets a 500.
type Hook func(context.Context, Passage) error

// pass calls the hook, where there is one.
func (h Hook) pass(ctx context.Context, p Passage) error {
	if h == nil {
		return nil
	}
	if err := h(ctx, p); err != nil {
		return &stepError{p.Step, err}
	}
	return nil
}

// stepError is an error of a hook.
type stepError struct {
	step Step
	err  error
}

func (s *stepError) Error() string { return fmt.Sprintf("step %s: %v", s.step, s.err) }
func (s *stepError) Unwrap() error { return s.err }
