package audit

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/delivered-twice/delivered-twice/internal/lane"
)

// Overtaking is why an event counts as reordered.
type Overtaking struct {
	// First is the first effect of the event.
	First Effect
	// By is the first effect of the latest event of the same key that was applied
	// before First.
	By Effect
}

// Overtaken returns the events that were applied in the wrong order: whose first
// effect in a place was applied after the first effect of a later event of the same
// key in that place.
//
// Effects of a topic were applied in the order of their offsets, a key having one
// partition. Rows were applied in the order of their commits where their time is
// known, and rows of one commit, like all rows without a time, in the order of
// their ids. Aborted effects and those without a key are left out.
func Overtaken(effects []Effect) map[string]Overtaking {
	type log struct { // what has one order: a partition, or a table
		where     string
		partition int64
	}
	type in struct {
		log
		name string // of a key, or of an event
	}
	latest := make(map[in]Effect)
	seen := make(map[in]bool)
	overtaken := make(map[string]Overtaking)
	for _, e := range applied(effects) {
		here := log{e.Where, e.partition}
		event, key := in{here, e.EventID}, in{here, e.Key}
		// A duplicate is the duplicate's affair: it is the first that counts.
		if seen[event] {
			continue
		}
		seen[event] = true
		if last := latest[key]; e.Sequence < last.Sequence {
			overtaken[e.EventID] = Overtaking{First: e.Effect, By: last}
		} else {
			latest[key] = e.Effect
		}
	}
	return overtaken
}

// placed is an effect with what decides its order, read from its position.
type placed struct {
	Effect
	partition, number int64
	committed         time.Time
}

// applied returns the effects that have an order, in that order.
func applied(effects []Effect) []placed {
	var all []placed
	for _, e := range effects {
		if e.Aborted || e.Key == "" {
			continue
		}
		p := placed{Effect: e}
		if partition, offset, isTopic := strings.Cut(e.Position, "@"); isTopic {
			p.partition, p.number = integer(partition), integer(offset)
		} else {
			p.number, p.committed = integer(e.Position), e.At
		}
		all = append(all, p)
	}
	slices.SortStableFunc(all, func(a, b placed) int {
		return cmp.Or(cmp.Compare(a.Where, b.Where), cmp.Compare(a.partition, b.partition),
			a.committed.Compare(b.committed), cmp.Compare(a.number, b.number))
	})
	return all
}

// integer reads what this package has written into a Position.
func integer(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}

// inOrder counts the expected events that have an effect in one place by whether
// they were overtaken there. Effects of events that nobody sent are counted
// elsewhere; an effect of an expected one that does not say its key and sequence
// has no place in any order, so that nobody can tell.
func inOrder(expected Expected, effects []Effect) lane.Counts {
	effects = slices.DeleteFunc(slices.Clone(effects), func(e Effect) bool {
		_, sent := expected[e.EventID]
		return !sent || e.Aborted
	})
	overtaken := Overtaken(effects)
	var n lane.Counts
	seen := make(map[string]bool, len(expected))
	for _, e := range effects {
		if e.Key == "" {
			n.Unexpected++
			continue
		}
		if seen[e.EventID] {
			continue
		}
		seen[e.EventID] = true
		if _, late := overtaken[e.EventID]; late {
			n.Add(lane.Reordered)
		} else {
			n.Add(lane.Once)
		}
	}
	return n
}
