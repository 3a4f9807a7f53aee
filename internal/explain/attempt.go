package explain

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/delivered-twice/delivered-twice/internal/audit"
	"github.com/delivered-twice/delivered-twice/internal/outbox"
	"github.com/delivered-twice/delivered-twice/internal/payments"
	"github.com/delivered-twice/delivered-twice/internal/trace"
)

// role is what a process is to an event. Each role has steps of its own.
type role string

const (
	consumer   role = "attempt "
	publisher  role = "the relay of attempt "
	thirdParty role = "the third party, "
)

// relay is the handler in whose name a relay passes its steps.
const relay = "relay"

// attempt is what one process incarnation had to do with the event in one role; of the
// third party, in one call.
type attempt struct {
	name     string
	role     role
	steps    []string        // of the role, in their order
	passings []trace.Passing // with the event
	effects  []audit.Effect
	// incidents are all that the process had.
	incidents []trace.Incident
	// last is when the process last passed any step, and next when it turned to something
	// else than the event: passed the next step in this role without it or, of a call, when
	// the next one for the event began; zero where it did not.
	last, next time.Time
}

func (a *attempt) String() string {
	if a.role == thirdParty {
		return string(a.role) + a.name + ","
	}
	return string(a.role) + cmp.Or(a.name, "without a name")
}

// does is what it did where it has left an effect.
func (a *attempt) does() string {
	if a.role == publisher {
		return "sent it"
	}
	return "did it"
}

// attempts returns those that passed a step with the event or left an effect, in
// the order in which they began with it.
func (c Cell) attempts(eventID string) []*attempt {
	type key struct {
		name string
		role role
	}
	all := make(map[key]*attempt)
	steps := map[role][]string{consumer: c.steps(), publisher: names(outbox.Steps())}
	get := func(name string, r role) *attempt {
		k := key{name, r}
		if all[k] == nil {
			all[k] = &attempt{name: name, role: r, steps: steps[r]}
		}
		return all[k]
	}
	last := make(map[string]time.Time)
	var tries []try
	for _, p := range c.Passings {
		r := consumer
		if p.Handler == relay {
			r = publisher
		}
		a := get(p.Attempt, r)
		last[a.name] = p.At
		switch {
		case slices.Contains(p.Events, eventID):
			a.passings, a.next = append(a.passings, p), time.Time{}
			if r == publisher {
				tries = tried(tries, a, p)
			}
		case a.next.IsZero():
			a.next = p.At
		}
	}
	var published []audit.Effect
	for _, e := range c.Effects {
		switch {
		case e.EventID != eventID:
		case len(tries) > 0 && isTopic(e):
			published = append(published, e) // signed by the one who wrote the row
		default:
			a := get(e.Attempt, consumer)
			a.effects = append(a.effects, e)
		}
	}
	tries = successful(tries, len(published))
	for i, e := range published {
		a := get(e.Attempt, consumer)
		if i < len(tries) {
			a, e.At = tries[i].by, tries[i].at
		}
		a.effects = append(a.effects, e)
	}
	var own []*attempt
	for _, a := range all {
		if len(a.passings) > 0 || len(a.effects) > 0 {
			a.last = last[a.name]
			a.incidents = incidentsOf(c.Incidents, a.name)
			a.retime()
			own = append(own, a)
		}
	}
	slices.SortFunc(own, func(a, b *attempt) int {
		return cmp.Or(a.began().Compare(b.began()), cmp.Compare(a.name, b.name), cmp.Compare(a.role, b.role))
	})
	return own
}

// retime gives records of its own that it made one after the other, and that all have the
// time of the event as records outside of transactions do, the times at which it passed the
// last step that it, or one handler, passed as often.
func (a *attempt) retime() {
	var records []*audit.Effect
	for i := range a.effects {
		if e := &a.effects[i]; isTopic(*e) && !e.Aborted && !e.At.Truncate(time.Millisecond).After(a.began()) {
			records = append(records, e)
		}
	}
	if len(records) < 2 {
		return
	}
	passed := make(map[string][]time.Time)
	for _, p := range a.passings {
		passed[step(p)] = append(passed[step(p)], p.At)
	}
	var at []time.Time
	for _, times := range passed {
		if len(times) == len(records) && (at == nil || times[0].After(at[0])) {
			at = times
		}
	}
	for i := range at {
		records[i].At = at[i]
	}
}

// calls returns the calls of the third party for the event, in the order in which they
// began. Incarnations get one after the other: whoever calls waits for the answer.
func (c Cell) calls(eventID string) (all []*attempt) {
	under := make(map[string]*attempt) // way, by incarnation
	last := make(map[string]time.Time)
	for _, p := range c.Calls {
		last[p.Attempt] = p.At
		if !slices.Contains(p.Events, eventID) {
			continue
		}
		call := under[p.Attempt]
		if call == nil || p.Step == string(payments.Received) {
			call = &attempt{
				name: p.Attempt, role: thirdParty, steps: names(payments.Steps()),
				incidents: incidentsOf(c.CallIncidents, p.Attempt),
			}
			under[p.Attempt] = call
			all = append(all, call)
		}
		call.passings = append(call.passings, p)
	}
	for i, call := range all {
		call.last = last[call.name]
		if i+1 < len(all) { // nobody waits for the answer any more
			call.next = all[i+1].began()
		}
	}
	return all
}

// try is one of a relay to publish the event.
type try struct {
	by   *attempt
	at   time.Time
	done bool // Kafka has acknowledged it
}

// tried adds what a relay's passing with the event says of its tries.
func tried(tries []try, by *attempt, p trace.Passing) []try {
	switch p.Step {
	case string(outbox.Claimed):
		return append(tries, try{by: by, at: p.At})
	case string(outbox.Published):
		for i := range slices.Backward(tries) {
			if tries[i].by == by {
				tries[i].at, tries[i].done = p.At, true
				break
			}
		}
	}
	return tries
}

// successful returns those tries, the earliest first, that left n records: all that Kafka
// has acknowledged, and as many of the others as there are records more, for one may
// have died before it heard of that.
func successful(tries []try, n int) []try {
	slices.SortStableFunc(tries, func(a, b try) int {
		if a.done != b.done {
			return map[bool]int{true: -1, false: 1}[a.done]
		}
		return a.at.Compare(b.at)
	})
	tries = tries[:min(n, len(tries))]
	slices.SortStableFunc(tries, func(a, b try) int { return a.at.Compare(b.at) })
	return tries
}

func incidentsOf(all []trace.Incident, attempt string) (own []trace.Incident) {
	for _, i := range all {
		if i.Attempt == attempt {
			own = append(own, i)
		}
	}
	return own
}

// began is when it first had to do with the event.
func (a *attempt) began() time.Time {
	if len(a.passings) > 0 {
		return a.passings[0].At
	}
	return a.effects[0].At
}

// done is when it last passed a step with the event.
func (a *attempt) done() time.Time {
	if n := len(a.passings); n > 0 {
		return a.passings[n-1].At
	}
	return a.effects[len(a.effects)-1].At
}

// when is when it left an effect, as well as that can be said: not before it began with
// the event and not after it was done or had ended, whatever another clock says.
func (a *attempt) when(e audit.Effect) time.Time {
	latest := a.done()
	if end := a.end(); end != nil && end.At.After(latest) {
		latest = end.At
	}
	at := e.At
	if isTopic(e) { // Kafka counts in milliseconds
		at = at.Add(time.Millisecond - 1)
	}
	if e.Aborted { // its time is that of the abort
		left := a.began()
		for _, p := range a.passings {
			if e.At.IsZero() || !p.At.After(at) {
				left = p.At
			}
		}
		return left
	}
	switch {
	case e.At.IsZero() || at.After(latest):
		return latest
	case at.Before(a.began()):
		return a.began()
	}
	return at
}

// end is how the process ended; nil where nobody has noted that.
func (a *attempt) end() *trace.Incident {
	for _, i := range a.incidents {
		if i.Ended {
			return &i
		}
	}
	return nil
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

// unfinished says that it had begun with the event at a time, and was not done.
func (a *attempt) unfinished(at time.Time) bool {
	return slices.ContainsFunc(a.frontier(at), func(p trace.Passing) bool { return p.Step != a.steps[len(a.steps)-1] })
}

// at says whether it had the event in hand at a time.
func (a *attempt) at(t time.Time) bool {
	return a.unfinished(t) && (t.Before(a.done()) || a.next.IsZero() || t.Before(a.next))
}

// after says which steps it had passed at a time.
func (a *attempt) after(t time.Time) string {
	var steps []string
	for _, p := range a.frontier(t) {
		if a.role == publisher {
			p.Handler = "" // is said already
		}
		steps = append(steps, quoted(step(p)))
	}
	return "after " + join(steps)
}

// between says between which steps it was at a time.
func (a *attempt) between(t time.Time) string {
	if next := a.before(t); len(next) > 0 {
		return a.after(t) + ", before " + join(next)
	}
	return a.after(t)
}

// before are the steps that came next at a time. What all handlers pass together comes
// only when each of them is done.
func (a *attempt) before(t time.Time) []string {
	var alone, together []string
	for _, p := range a.frontier(t) {
		i := slices.Index(a.steps, p.Step) + 1
		if i == len(a.steps) {
			continue
		}
		next := a.steps[i]
		switch {
		case p.Handler == "" || p.Handler == relay:
			together = append(together, quoted(next))
		case a.alone(next, p.Handler):
			alone = append(alone, quoted(next+"@"+p.Handler))
		default:
			together = []string{quoted(next)}
		}
	}
	if len(alone) > 0 {
		return alone
	}
	return together
}

// alone says whether handlers pass a step each for itself: where nobody has passed it yet
// with the event, they do if it is not the last one.
func (a *attempt) alone(name, handler string) bool {
	for _, p := range a.passings {
		if p.Step == name {
			return p.Handler != ""
		}
	}
	return handler != "" && name != a.steps[len(a.steps)-1]
}

// step names a passed step as failpoints do.
func step(p trace.Passing) string {
	if p.Handler == "" {
		return p.Step
	}
	return p.Step + "@" + p.Handler
}

func names[S ~string](steps []S) (all []string) {
	for _, s := range steps {
		all = append(all, string(s))
	}
	return all
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
