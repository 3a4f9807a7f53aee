package pginbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Event is one delivery of an event.
type Event struct {
	// ID is the event's stable identity: every redelivery carries the same one, and
	// no other event does. Where it is empty, "sha256:" and the hexadecimal SHA-256
	// of the record's value stand in for it.
	ID string
	// Record is what was delivered. Events that come another way than by Kafka fill
	// in what they have: the value, perhaps headers. Where offsets are remembered,
	// topic, partition and offset say where the event stands. It must not be changed.
	Record *kgo.Record
}

// Handler does the work of events in Postgres.
type Handler struct {
	// Name keeps this handler's inbox rows and stored offsets apart from those of
	// others, in other consumer groups too. It is stored with every row: a handler that
	// is renamed does everything again. At most
	// [MaxNameBytes] bytes of valid UTF-8, without NUL.
	Name string

	// Handle does the work of all the given events through tx, or returns an error
	// and leaves none of it. It gets only events whose work was not done before, at
	// least one, each once, in the order of their delivery.
	//
	// How events are divided over calls is not fixed and changes from attempt to
	// attempt: the work of an event must not depend on which others it comes with.
	//
	// What it does otherwise than through tx is not covered and is done again with
	// every attempt. tx ends after Handle has returned; its Commit and Rollback do
	// nothing but return an error. Rows must be closed.
	//
	// An error is taken as the fault of the events: they are halved and tried again,
	// and an event that has failed alone [Options].MaxAttempts times becomes a dead
	// letter; at once, if the error is [Permanent]. Where offsets are remembered, what
	// comes later in the batch waits for that. An error that is not their fault
	// (from Postgres one of those that [Transient] names, or any that is marked
	// [Unavailable]) never counts, and is tried again until the context ends.
	//
	// A panic is an error: a process that dies of an event gets it again when it is
	// started again, and would die again.
	Handle func(ctx context.Context, tx pgx.Tx, events []Event) error
}

// item is an event on its way through the inbox.
type item struct {
	Event
	key   string // what stands for it in the inbox table, or its position
	unfit error  // why the id itself can't be stored there, if it can't
}

// distinct returns the events in their order, each once, with their keys.
func (in *Inbox) distinct(events []Event) []item {
	items := make([]item, 0, len(events))
	seen := make(map[string]bool, len(events))
	for _, e := range events {
		if e.Record == nil {
			e.Record = &kgo.Record{}
		}
		if e.ID == "" {
			e.ID = digest(e.Record.Value)
		}
		key, unfit := in.key(e)
		if !seen[key] {
			seen[key] = true
			items = append(items, item{e, key, unfit})
		}
	}
	return items
}

// key returns what tells an event from others, and why its id can't be stored, if it
// is to be stored and can't.
func (in *Inbox) key(e Event) (key string, unfit error) {
	if in.options.Remember.ids() {
		return in.ledger.key(e.ID)
	}
	return fmt.Sprintf("%s/%d/%d", e.Record.Topic, e.Record.Partition, e.Record.Offset), nil
}

func eventsOf(items []item) []Event {
	events := make([]Event, len(items))
	for i, it := range items {
		events[i] = it.Event
	}
	return events
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}
