package kafkatx

import (
	"context"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Step names a point that the engine passes, in the order of [Steps].
type Step string

const (
	// Polled: input records have arrived; nothing was done with them yet.
	Polled Step = "polled"
	// Begun: a transaction has begun on the client. The broker learns of it with
	// the first record. Passed with [ExactlyOnce] only.
	Begun Step = "begun"
	// Handled: the handler has returned. What it did outside Kafka is done; its
	// output was not sent yet.
	Handled Step = "handled"
	// Produced: the broker has acknowledged every output record.
	Produced Step = "produced"
	// OffsetsSent: the broker has accepted the input offsets into the open
	// transaction. Passed with [ExactlyOnce] only, and not by a transaction that
	// produced nothing, unless there is a [Participant].
	OffsetsSent Step = "offsets-sent"
	// Decided: the [Participant] has decided that the transaction is committed. Passed
	// where there is one.
	Decided Step = "decided"
	// Committed: output and offsets are visible. Without a transaction: the
	// offsets are committed.
	Committed Step = "committed"
)

// Steps returns the steps of a guarantee in the order in which they are passed, without
// a [Participant].
func Steps(g Guarantee) []Step {
	if g != ExactlyOnce {
		return []Step{Polled, Handled, Produced, Committed}
	}
	return []Step{Polled, Begun, Handled, Produced, OffsetsSent, Committed}
}

// Passage is one passing of a step.
type Passage struct {
	Step Step
	// Records are the input records concerned: for Polled those just polled, for
	// Handled those just handled, and from Produced on all of the transaction, in the
	// same order. They must not be changed.
	Records []*kgo.Record
}

// Hook is called at every passage, on the goroutine that passes the step: it delays what
// comes after. The steps of one transaction come in their order; those of several
// transactions in flight overlap, and so do their calls.
//
// An error is taken as a failure of the infrastructure at that step: the transaction is
// aborted with all that have begun after it, the clients are built anew, and the engine
// goes on from the committed offsets.
type Hook func(context.Context, Passage) error
