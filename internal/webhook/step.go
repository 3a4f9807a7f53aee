package webhook

import "github.com/delivered-twice/delivered-twice/internal/pginbox"

// The steps that a receiver passes by itself. Those of the inbox come in between.
const (
	// Received: events have arrived and their signatures are valid; nothing was done
	// with them yet. It is passed by the events that go on together. An error of the
	// hook is answered with 503, and the sender sends them again.
	Received pginbox.Step = "received"
	// Answered: the sender was told that the event is done. It is passed by each
	// request for itself. An error of the hook changes nothing: it is too late.
	Answered pginbox.Step = "answered"
)

// Steps returns all steps of an event that comes by webhook and goes through an inbox,
// in the order in which they are passed.
func Steps() []pginbox.Step {
	return []pginbox.Step{Received, pginbox.Begun, pginbox.Inserted, pginbox.Worked, pginbox.Committed, Answered}
}
