// Package explain tells the life of one event from what a run has kept: which
// attempts passed which steps with it, what happened to them and to the services
// meanwhile, what each of them left, and so why the event was lost, done twice or done
// too late. It tells what was recorded, and makes nothing up where nothing was.
package explain

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/delivered-twice/delivered-twice/internal/audit"
	"github.com/delivered-twice/delivered-twice/internal/trace"
)

// Cell is what one lane has left behind under one fault.
type Cell struct {
	// Passings are those of all attempts, the earliest first.
	Passings []trace.Passing
	// Effects are all that the audit has found.
	Effects []audit.Effect
	// Incidents are what came from outside, as far as somebody has noted it: the earliest
	// first.
	Incidents []trace.Incident
	// Calls are the passings of the third party that was called, and CallIncidents what
	// happened to it, the earliest first; none where none was.
	Calls         []trace.Passing
	CallIncidents []trace.Incident
}

// Read reads the cell that is kept in dir: a folder [trace.Folder] with a file for
// each attempt, [audit.EffectsFile] and, if they are there, [trace.IncidentsFile] and
// the same of the third party in [trace.ThirdParty].
func Read(dir string) (c Cell, err error) {
	if c.Passings, err = trace.ReadDir(filepath.Join(dir, trace.Folder)); err != nil {
		return Cell{}, err
	}
	if c.Effects, err = audit.ReadEffects(dir); err != nil {
		return Cell{}, err
	}
	if c.Incidents, err = trace.ReadIncidents(dir); err != nil {
		return Cell{}, err
	}
	party := filepath.Join(dir, trace.ThirdParty)
	if c.Calls, err = trace.ReadDir(filepath.Join(party, trace.Folder)); err != nil {
		return Cell{}, err
	}
	if c.CallIncidents, err = trace.ReadIncidents(party); err != nil {
		return Cell{}, err
	}
	return c, nil
}

// Knows says whether anything of an event is there, a passing or an effect.
func (c Cell) Knows(eventID string) bool {
	return slices.ContainsFunc(c.Passings, func(p trace.Passing) bool { return slices.Contains(p.Events, eventID) }) ||
		slices.ContainsFunc(c.Effects, func(e audit.Effect) bool { return e.EventID == eventID })
}

// Events returns the ids of which anything is there, sorted: those that have
// something to explain, being lost, duplicated or reordered anywhere, and all
// others.
func (c Cell) Events() (troubled, others []string) {
	found := make(map[string]map[string]int) // by event, by place
	for _, p := range c.Passings {
		for _, id := range p.Events {
			found[id] = nil
		}
	}
	for _, e := range c.Effects {
		if found[e.EventID] == nil {
			found[e.EventID] = make(map[string]int)
		}
		if !e.Aborted {
			found[e.EventID][e.Where]++
		}
	}
	places, overtaken := c.places(), audit.Overtaken(c.Effects)
	for _, id := range slices.Sorted(maps.Keys(found)) {
		_, late := overtaken[id]
		if late || slices.ContainsFunc(places, func(p place) bool { return found[id][p.where] != 1 }) {
			troubled = append(troubled, id)
		} else {
			others = append(others, id)
		}
	}
	return troubled, others
}

// place is where effects are: a topic or a table.
type place struct {
	where string
	topic bool
}

func (p place) String() string {
	if p.topic {
		return "topic " + p.where
	}
	return p.where
}

// isTopic says that an effect is a record: a row has no offset.
func isTopic(e audit.Effect) bool { return strings.Contains(e.Position, "@") }

// places are all in which anything was found, in the order in which it was.
func (c Cell) places() (all []place) {
	seen := make(map[string]bool)
	for _, e := range c.Effects {
		if !seen[e.Where] {
			seen[e.Where] = true
			all = append(all, place{e.Where, isTopic(e)})
		}
	}
	return all
}

// steps returns the names of the steps in the order in which a consumer passes them
// with an event. Each lane has steps of its own, so they are taken from the trace: of all
// events' ways the longest, and of several of that length the most frequent.
func (c Cell) steps() []string {
	type traveller struct{ attempt, event string }
	ways := make(map[traveller][]string)
	for _, p := range c.Passings {
		if p.Handler == relay {
			continue // it has steps of its own
		}
		for _, id := range p.Events {
			who := traveller{p.Attempt, id}
			if !slices.Contains(ways[who], p.Step) {
				ways[who] = append(ways[who], p.Step)
			}
		}
	}
	const between = "\n" // in no name of a step
	frequency := make(map[string]int)
	for _, way := range ways {
		frequency[strings.Join(way, between)]++
	}
	var longest []string
	for _, joined := range slices.Sorted(maps.Keys(frequency)) {
		way := strings.Split(joined, between)
		if len(way) > len(longest) ||
			len(way) == len(longest) && frequency[joined] > frequency[strings.Join(longest, between)] {
			longest = way
		}
	}
	return longest
}
