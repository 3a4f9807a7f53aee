// Package audit finds out what really happened. It knows which events were sent
// and looks only at what is there: records in topics, rows in tables. It never
// asks a pipeline.
package audit

import (
	"fmt"
	"time"

	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/order"
)

// Expected are the ids of the events that were sent. An event that its publisher
// sent twice is one event.
type Expected map[string]struct{}

// Expect returns the ids of a stream's events.
func Expect(o order.StreamOptions) Expected {
	expected := make(Expected, max(o.Events, 0))
	for e := range order.Stream(o) {
		expected[e.ID] = struct{}{}
	}
	return expected
}

// Effect is one thing that was found: a record or a row that one attempt at one
// event left behind.
type Effect struct {
	EventID string `json:"event_id"`
	// Attempt is the process incarnation that made it, as it signed it; "" where
	// it did not.
	Attempt string `json:"attempt"`
	// Where is the topic or the table.
	Where string `json:"where"`
	// Position is partition@offset in a topic and the row's id in a table.
	Position string `json:"position"`
	// At is when it became visible: the commit of the transaction it belongs to
	// or, for a record outside any transaction, the record's own time. It is
	// zero where that is not known.
	At time.Time `json:"at,omitzero"`
	// Aborted says that the record belongs to an aborted transaction, so only
	// readers on the default isolation level see it.
	Aborted bool `json:"aborted,omitempty"`
	// Key is the order that the event is about and Sequence its place among the
	// events of that key, as the effect itself tells them; "" and 0 where it does
	// not.
	Key      string `json:"key,omitempty"`
	Sequence int64  `json:"sequence,omitempty"`
}

// String says what was found where, in a form for error messages.
func (e Effect) String() string {
	return fmt.Sprintf("%q in %s at %s, by attempt %q", e.EventID, e.Where, e.Position, e.Attempt)
}

// tally counts how often each expected event was found, and keeps what nobody
// sent apart.
type tally struct {
	expected   Expected
	found      map[string]int
	unexpected []Effect
}

func newTally(expected Expected) *tally {
	return &tally{expected: expected, found: make(map[string]int, len(expected))}
}

func (t *tally) add(e Effect) {
	if _, sent := t.expected[e.EventID]; !sent {
		t.unexpected = append(t.unexpected, e)
		return
	}
	t.found[e.EventID]++
}

// counts asks for the outcome of each expected event.
func (t *tally) counts(outcome func(id string) lane.Outcome) lane.Counts {
	n := lane.Counts{Unexpected: len(t.unexpected)}
	for id := range t.expected {
		n.Add(outcome(id))
	}
	return n
}

// outcome is that of an event that was found so many times.
func outcome(found int) lane.Outcome {
	switch found {
	case 0:
		return lane.Lost
	case 1:
		return lane.Once
	default:
		return lane.Duplicated
	}
}
