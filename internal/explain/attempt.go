package explain

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/delivered-twice/delivered-twice/internal/audit"
	"github.com/delivered-twice/delivered-twice/internal/trace"
)

// attempt is what one process incarnation had to do with the event.
type attempt struct {
	name     string
	passings []trace.Passing // with the event
	effects  []audit.Effect
	// stops are the signals that it got while it was at the event, and after which it
	// went on.
	stops []trace.Ending
	// end is how it ended; nil where nobody can tell that it did.
	end *trace.Ending
	// last is when it last passed any step, with whatever event.
	last time.Time
	// steps are the lane's, in their order.
	steps []string
}

// attempts returns those that passed a step with the event or left an effect, in
// the order in which they began with it.
func (c Cell) attempts(eventID string) []*attempt {
	all := make(map[string]*attempt) // of every event
	newest := make(map[string]int)   // incarnation, by instance
	steps := c.steps()
	get := func(name string) *attempt {
		if all[name] == nil {
			all[name] = &attempt{name: name, steps: steps}
			instance, number := incarnation(name)
			newest[instance] = max(newest[instance], number)
		}
		return all[name]
	}
	for _, p := range c.Passings {
		a := get(p.Attempt)
		a.last = p.At
		if slices.Contains(p.Events, eventID) {
			a.passings = append(a.passings, p)
		}
	}
	for _, e := range c.Effects {
		a := get(e.Attempt)
		if e.EventID == eventID {
			a.effects = append(a.effects, e)
		}
	}
	for _, e := range c.Endings {
		a := get(e.Attempt)
		if e.At.Before(a.last) {
			a.stops = append(a.stops, e)
		} else {
			a.end = &e
		}
	}
	var own []*attempt
	for _, a := range all {
		if len(a.passings) == 0 && len(a.effects) == 0 {
			continue
		}
		if instance, number := incarnation(a.name); a.end == nil && number < newest[instance] {
			a.end = &trace.Ending{Attempt: a.name, At: a.last}
		}
		a.stops = slices.DeleteFunc(a.stops, func(e trace.Ending) bool { return !a.at(e.At) })
		own = append(own, a)
	}
	slices.SortFunc(own, func(a, b *attempt) int {
		return cmp.Or(a.began().Compare(b.began()), cmp.Compare(a.name, b.name))
	})
	return own
}

// began is when it first had to do with the event.
func (a *attempt) began() time.Time {
	if len(a.passings) > 0 {
		return a.passings[0].At
	}
	return a.effects[0].At
}

// at says whether it had begun with the event at a time and was not done yet.
func (a *attempt) at(t time.Time) bool {
	n := len(a.passings)
	return n > 0 && !t.Before(a.passings[0].At) && t.Before(a.passings[n-1].At)
}

// frontier is how far it had come with the event at a time: the last step of all
// handlers together or, once they have gone on separately, of each.
func (a *attempt) frontier(at time.Time) []trace.Passing {
	last := make(map[string]trace.Passing)
	for _, p := range a.passings {
		if p.At.After(at) {
			break
		}
		if p.Handler == "" {
			clear(last)
		} else {
			delete(last, "")
		}
		last[p.Handler] = p
	}
	var frontier []trace.Passing
	for _, handler := range slices.Sorted(maps.Keys(last)) {
		frontier = append(frontier, last[handler])
	}
	return frontier
}

// between says between which steps it was at a time.
func (a *attempt) between(at time.Time) string {
	var after, before []string
	for _, p := range a.frontier(at) {
		after = append(after, quoted(step(p)))
		if next := slices.Index(a.steps, p.Step) + 1; next < len(a.steps) && !slices.Contains(before, quoted(a.steps[next])) {
			before = append(before, quoted(a.steps[next]))
		}
	}
	text := "after " + join(after)
	if len(before) > 0 {
		text += ", before " + join(before)
	}
	return text
}

// interrupted says that the attempt ended while it was at the event: before the last
// step or, where it was killed, right after it.
func (a *attempt) interrupted() bool {
	if a.end == nil || len(a.passings) == 0 {
		return false
	}
	for _, p := range a.frontier(a.last) {
		if p.Step != a.steps[len(a.steps)-1] || a.end.How == "SIGKILL" && p.At.Equal(a.last) {
			return true
		}
	}
	return false
}

// fate says where the attempt was hit while it was at the event; "" where it was
// not.
func (a *attempt) fate() string {
	switch {
	case a.interrupted():
		return verb(*a.end) + " " + a.between(a.last)
	case len(a.stops) > 0:
		return verb(a.stops[0]) + " " + a.between(a.stops[0].At) + ", and went on later"
	}
	return ""
}

// story says what the attempt did, and its fate.
func (a *attempt) story(did string) string {
	if fate := a.fate(); fate != "" {
		did = strings.TrimPrefix(did+" and "+fate, " and ")
	}
	return "attempt " + a.name + " " + did
}

// step names a passed step as failpoints do.
func step(p trace.Passing) string {
	if p.Handler == "" {
		return p.Step
	}
	return p.Step + "@" + p.Handler
}

// verb says what a signal did to the process.
func verb(e trace.Ending) string {
	switch e.How {
	case "", "SIGKILL":
		return "died"
	case "SIGTERM":
		return "was told to end (SIGTERM)"
	case "SIGSTOP":
		return "was stopped (SIGSTOP)"
	case "SIGCONT":
		return "was continued (SIGCONT)"
	}
	return "ended (" + e.How + ")"
}

func quoted(s string) string { return "`" + s + "`" }

// join is "a", "a and b", "a, b and c".
func join(parts []string) string {
	if len(parts) < 2 {
		return strings.Join(parts, "")
	}
	last := len(parts) - 1
	return strings.Join(parts[:last], ", ") + " and " + parts[last]
}
