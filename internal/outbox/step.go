package outbox

import (
	"context"
	"fmt"
)

// Step names a point that rows pass on their way through a relay, in the order of
// [Steps].
type Step string

const (
	// Claimed: the relay has the rows to itself, as long as its transaction lasts.
	// Nothing was sent yet.
	Claimed Step = "claimed"
	// Published: Kafka has acknowledged the rows. They are not stamped yet, so whoever
	// comes next publishes them again.
	Published Step = "published"
	// Stamped: the stamps are committed. Nobody publishes the rows again.
	Stamped Step = "stamped"
)

// Steps returns all steps in the order in which they are passed.
func Steps() []Step { return []Step{Claimed, Published, Stamped} }

// Passage is one passing of a step.
type Passage struct {
	Step Step
	// Messages are those concerned, in the order of their rows' ids. What Kafka did not
	// take is not among them from Published on.
	Messages []Message
}

// Hook is called at every passage and delays what comes after, with the transaction
// open at Claimed and Published.
//
// An error is taken as a failure of the infrastructure at that step: at Claimed and
// Published the transaction is rolled back and the rows are taken up again; at Stamped
// it is as if the answer to COMMIT had been lost.
type Hook func(context.Context, Passage) error

// pass calls the hook, where there is one.
func (h Hook) pass(ctx context.Context, step Step, rows []row) error {
	if h == nil || len(rows) == 0 {
		return nil
	}
	messages := make([]Message, len(rows))
	for i, r := range rows {
		messages[i] = r.Message
	}
	if err := h(ctx, Passage{Step: step, Messages: messages}); err != nil {
		return fmt.Errorf("step %s: %w", step, err)
	}
	return nil
}
