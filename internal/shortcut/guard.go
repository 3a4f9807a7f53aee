package shortcut

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/delivered-twice/delivered-twice/internal/pginbox"
)

// Guard names one of the guards.
type Guard string

// Guards returns all guards, what loses first.
func Guards() []Guard { return []Guard{AckFirst, None, Shape, Memory, SelectFirst, Redis} }

// Steps returns the steps that a delivery under the guard passes, in their order;
// nil for a guard that there is not. [pginbox.Worked] is passed by each handler, the
// others by all handlers together; [pginbox.Polled] and [pginbox.Acknowledged] by the
// consumer.
func Steps(g Guard) []pginbox.Step {
	switch g {
	case AckFirst:
		return []pginbox.Step{pginbox.Polled, pginbox.Acknowledged, pginbox.Begun, pginbox.Worked, pginbox.Committed}
	case None, Shape:
		return []pginbox.Step{pginbox.Polled, pginbox.Begun, pginbox.Worked, pginbox.Committed, pginbox.Acknowledged}
	case Memory:
		return []pginbox.Step{pginbox.Polled, Checked, pginbox.Begun, pginbox.Worked, pginbox.Committed, pginbox.Acknowledged}
	case SelectFirst:
		return []pginbox.Step{pginbox.Polled, pginbox.Begun, Selected, pginbox.Worked, pginbox.Committed, pginbox.Acknowledged}
	case Redis:
		return []pginbox.Step{pginbox.Polled, Claimed, pginbox.Begun, pginbox.Worked, pginbox.Committed, pginbox.Acknowledged}
	}
	return nil
}

// guard is what sets one guard apart from another.
type guard interface {
	// before runs before the transaction, and is not repeated with it. It returns the
	// events that are to be worked on, waits outages out, and passes its step.
	before(context.Context, *delivery) ([]pginbox.Event, error)
	// inside does the same in the transaction, and is repeated with it. It leaves
	// outages to the caller.
	inside(context.Context, pgx.Tx, *delivery) ([]pginbox.Event, error)
	// after hears which events are done, once that is committed.
	after(done []pginbox.Event)
	// abandon hears which events that before has returned are not committed, as far
	// as anybody knows, and will not be. The delivery's context has ended.
	abandon(undone []pginbox.Event)
}

// unguarded is the guard that does nothing, and what others have in common.
type unguarded struct{}

func (unguarded) before(_ context.Context, d *delivery) ([]pginbox.Event, error) {
	return d.events, nil
}

func (unguarded) inside(_ context.Context, _ pgx.Tx, d *delivery) ([]pginbox.Event, error) {
	return d.events, nil
}

func (unguarded) after([]pginbox.Event)   {}
func (unguarded) abandon([]pginbox.Event) {}

func newGuard(o Options) (guard, error) {
	switch o.Guard {
	case AckFirst, None, Shape:
		return unguarded{}, nil
	case Memory:
		return newMemory(memoryIDs), nil
	case SelectFirst:
		return selectFirst{}, nil
	case Redis:
		return newClaims(o)
	}
	var names []string
	for _, g := range Guards() {
		names = append(names, string(g))
	}
	return nil, fmt.Errorf("unknown guard %q: choose one of %s", o.Guard, strings.Join(names, ", "))
}

// firsts returns the events whose ids are new, in their order: those that seen does
// not know, and of several with one id the first.
func firsts(events []pginbox.Event, seen func(id string) bool) []pginbox.Event {
	known := make(map[string]bool)
	return slices.DeleteFunc(slices.Clone(events), func(e pginbox.Event) bool {
		if known[e.ID] || seen(e.ID) {
			return true
		}
		known[e.ID] = true
		return false
	})
}
