package explain

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/delivered-twice/delivered-twice/internal/audit"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/trace"
)

// Life writes the life of one event: what happened to it in the order in which it did, in
// milliseconds from the first step, and what each attempt left; and then a sentence on
// each place on what became of the event there, and why. How clocks of several machines
// differ is not known here: between machines the order is theirs.
func (c Cell) Life(w io.Writer, eventID string) error {
	l := life{Cell: c, eventID: eventID, attempts: c.attempts(eventID), calls: c.calls(eventID)}
	var b bytes.Buffer
	l.timeline(&b)
	l.left(&b)
	for _, sentence := range l.verdicts() {
		fmt.Fprintln(&b, sentence)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// life is that of one event in one cell.
type life struct {
	Cell
	eventID  string
	attempts []*attempt
	calls    []*attempt
}

// timeline writes what happened, a line each.
func (l life) timeline(w io.Writer) {
	type moment struct {
		at         time.Time
		name, text string
	}
	var moments []moment
	for _, a := range slices.Concat(l.attempts, l.calls) {
		for _, p := range a.passings {
			text := step(p)
			if n := l.mentions(p.Events); n > 1 {
				text += fmt.Sprintf(", %d times in one batch", n)
			}
			moments = append(moments, moment{p.At, a.name, text})
		}
		for _, i := range a.struck() {
			text := words(i)
			if i.Plan != "" {
				text += ", as planned: " + i.Plan
			}
			// A process that has two roles is struck once.
			if m := (moment{i.At, a.name, text}); !slices.Contains(moments, m) {
				moments = append(moments, m)
			}
		}
	}
	if len(moments) == 0 {
		return
	}
	byTime := func(a, b moment) int { return a.at.Compare(b.at) }
	begin, end := slices.MinFunc(moments, byTime).at, slices.MaxFunc(moments, byTime).at
	for _, i := range l.common(begin, end) {
		moments = append(moments, moment{i.At, "", i.What})
	}
	slices.SortStableFunc(moments, byTime)
	width := 0
	for _, m := range moments {
		width = max(width, len(m.name))
	}
	for _, m := range moments {
		fmt.Fprintf(w, "%12s ms  %-*s  %s\n", fmt.Sprintf("%+.1f", milliseconds(m.at.Sub(begin))), width, m.name, m.text)
	}
	fmt.Fprintln(w)
}

// common are the incidents that no attempt had alone: those about the event, and those
// about all within a time. A zero end is no end.
func (l life) common(begin, end time.Time) (all []trace.Incident) {
	for _, i := range l.Incidents {
		within := !i.At.Before(begin) && (end.IsZero() || !i.At.After(end))
		if i.Attempt == "" && (len(i.Events) == 0 && within || slices.Contains(i.Events, l.eventID)) {
			all = append(all, i)
		}
	}
	return all
}

// left writes what each attempt has left.
func (l life) left(w io.Writer) {
	for _, a := range l.attempts {
		what := []string{"nothing"}
		if len(a.effects) > 0 {
			what = nil
		}
		for _, e := range a.effects {
			what = append(what, describe(e))
		}
		fmt.Fprintf(w, "%s left %s\n", a, join(what))
	}
	if len(l.attempts) > 0 {
		fmt.Fprintln(w)
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// mentions is how often the event is among ids.
func (l life) mentions(ids []string) (n int) {
	for _, id := range ids {
		if id == l.eventID {
			n++
		}
	}
	return n
}

// describe says what was found where.
func describe(e audit.Effect) string {
	if e.Where == string(lane.HTTP) {
		return fmt.Sprintf("charge %s at the third party", e.Position)
	}
	if !isTopic(e) {
		return fmt.Sprintf("row %s in %s", e.Position, e.Where)
	}
	what := "a record"
	if e.Aborted {
		what = "an aborted record"
	}
	return fmt.Sprintf("%s in topic %s at %s", what, e.Where, e.Position)
}

// verdicts says what became of the event in each place. Places of which the same is
// to be said share a sentence.
func (l life) verdicts() []string {
	var order []string
	in := make(map[string][]string) // places, by what is said of them
	say := func(p place, what string) {
		if in[what] == nil {
			order = append(order, what)
		}
		in[what] = append(in[what], p.String())
	}
	for _, p := range l.places() {
		say(p, l.verdict(p))
		if late := l.late(p); late != "" {
			say(p, late)
		}
	}
	if len(order) == 0 {
		return []string{l.eventID + ": the audit has found nothing of any event."}
	}
	var sentences []string
	for _, what := range order {
		sentences = append(sentences, l.eventID+" is "+strings.Replace(what, placeholder, join(in[what]), 1)+".")
	}
	return sentences
}

// placeholder stands for the names of places in what is said of them.
const placeholder = "\x00"

// verdict is the outcome in one place, and why.
func (l life) verdict(p place) string {
	var doers, aborters, others []*attempt
	var did, aborts []beat
	for _, a := range l.attempts {
		for _, e := range a.effects {
			switch {
			case e.Where != p.where:
			case e.Aborted:
				aborts = append(aborts, beat{at: a.when(e), who: a.String(), did: "left an aborted record"})
				aborters = including(aborters, a)
			default:
				did = append(did, beat{at: a.when(e), who: a.String(), did: a.does(), effect: true})
				doers = including(doers, a)
			}
		}
		if a.role == l.doing(p) && !slices.Contains(doers, a) && !slices.Contains(aborters, a) {
			others = append(others, a)
		}
	}
	switch {
	case len(did) == 0:
		return say(lane.Lost, l.lost(p, aborts)...)
	case len(did) > 1:
		return say(lane.Duplicated, l.duplicated(p, doers, did)...)
	case len(aborts) > 0:
		did[0] = beat{at: did[0].at, who: did[0].who, did: "left the one that counts"}
		beats, both := append(aborts, did...), including(aborters, doers[0])
		return say(lane.AbortedVisible, tell(slices.Concat(l.takeovers(both), beats, meanwhile(beats, l.common), fates(both)))...)
	}
	parts := tell(append(did, doers[0].fate()...))
	if len(others) > 0 {
		parts = append(parts, all(others)+" had it, too, and left nothing there")
	}
	return say(lane.Once, parts...)
}

func say(o lane.Outcome, parts ...string) string {
	return fmt.Sprintf("%s in %s: %s", o, placeholder, strings.Join(parts, "; "))
}

// doing is the role of those who leave something in a place: a topic is the relay's, where
// there is one.
func (l life) doing(p place) role {
	if p.topic && slices.ContainsFunc(l.Passings, func(p trace.Passing) bool { return p.Handler == relay }) {
		return publisher
	}
	return consumer
}

// including is a list with one more, if it is not in it.
func including(list []*attempt, a *attempt) []*attempt {
	if slices.Contains(list, a) {
		return list
	}
	return append(list, a)
}

// all names attempts of one role.
func all(list []*attempt) string {
	if len(list) == 1 {
		return list[0].String()
	}
	var parts []string
	for _, a := range list {
		parts = append(parts, a.name)
	}
	plural := map[role]string{consumer: "attempts ", publisher: "the relays of attempts "}
	return plural[list[0].role] + join(parts)
}

func fates(list []*attempt) (beats []beat) {
	for _, a := range list {
		beats = append(beats, a.fate()...)
	}
	return beats
}

// meanwhile are the beats of what happened to all between the first and the last of some.
func meanwhile(beats []beat, common func(begin, end time.Time) []trace.Incident) (between []beat) {
	byTime := func(a, b beat) int { return a.at.Compare(b.at) }
	for _, i := range common(slices.MinFunc(beats, byTime).at, slices.MaxFunc(beats, byTime).at) {
		between = append(between, beat{at: i.At, did: i.What})
	}
	return between
}

// duplicated says who did it, who again, and what happened meanwhile.
func (l life) duplicated(p place, doers []*attempt, did []beat) []string {
	var had []beat // by whom, from when to when
	for _, a := range doers {
		had = append(had, beat{at: a.began()}, beat{at: a.done()})
	}
	why := slices.Concat(meanwhile(append(had, did...), l.common), l.takeovers(doers), fates(doers))
	if p.where == string(lane.HTTP) {
		why = append(why, fates(l.calls)...)
	}
	parts := tell(slices.Concat(did, why))
	if len(why) > 0 {
		return parts
	}
	for _, a := range doers {
		n := 0
		for _, b := range did {
			if b.who == a.String() {
				n++
			}
		}
		if n < 2 {
			continue
		}
		if delivered := l.most(a, a.steps[:min(1, len(a.steps))]); delivered > 1 {
			given := "delivered to"
			if a.role == publisher {
				given = "claimed by"
			}
			parts = append(parts, fmt.Sprintf("it was %s %s %d times", given, a.name, delivered))
		} else if tries := l.most(a, a.steps); tries > 1 {
			parts = append(parts, fmt.Sprintf("%s tried %d times", a.name, tries))
		}
	}
	return parts
}

// takeovers are the beats of attempts that got the event while another stood still with
// it in hand.
func (l life) takeovers(doers []*attempt) (beats []beat) {
	for _, a := range doers {
		if slices.ContainsFunc(doers, func(b *attempt) bool { return b != a && b.still(a.began()) }) {
			beats = append(beats, beat{at: a.began(), who: a.String(), did: "got it meanwhile"})
		}
	}
	return beats
}

// most is how often the attempt passed the one of some steps with the event that it passed
// most often, or one handler did.
func (l life) most(a *attempt, steps []string) (most int) {
	times := make(map[string]int)
	for _, p := range a.passings {
		if slices.Contains(steps, p.Step) {
			times[step(p)] += l.mentions(p.Events)
			most = max(most, times[step(p)])
		}
	}
	return most
}

// lost says which steps nobody passed with it, who came how far, and what happened to
// all from then on.
func (l life) lost(p place, aborts []beat) (parts []string) {
	r := l.doing(p)
	passed := make(map[string]bool)
	var steps, missing []string
	var begin time.Time
	beats := aborts
	for _, a := range l.attempts {
		if len(a.passings) == 0 {
			continue
		}
		if begin.IsZero() {
			begin = a.began()
		}
		if a.role == r {
			steps = a.steps
		}
		for _, p := range a.passings {
			if a.role == r {
				passed[p.Step] = true
			}
		}
		fate := a.fate()
		if len(fate) == 0 {
			fate = []beat{{at: a.began(), who: a.String(), did: "passed " + join(distinct(a))}}
		}
		beats = append(beats, fate...)
	}
	if begin.IsZero() {
		return []string{"no attempt ever had it"}
	}
	for _, s := range steps {
		if !passed[s] {
			missing = append(missing, quoted(s))
		}
	}
	for _, i := range l.common(begin, time.Time{}) {
		beats = append(beats, beat{at: i.At, did: i.What})
	}
	if len(missing) > 0 {
		return append([]string{"no attempt passed " + strings.Join(missing, " or ") + " with it"}, tell(beats)...)
	}
	so := "so it was given up as a dead letter"
	if !slices.ContainsFunc(l.common(begin, time.Time{}), func(i trace.Incident) bool { return len(i.Events) > 0 }) {
		so = "so what was done was undone again, or it was given up as a dead letter"
	}
	return append(tell(beats), so)
}

// distinct are the steps that the attempt passed with the event, each once.
func distinct(a *attempt) (steps []string) {
	for _, p := range a.passings {
		if s := quoted(p.Step); !slices.Contains(steps, s) {
			steps = append(steps, s)
		}
	}
	return steps
}

// late says which later event overtook the event in a place; "" where none did.
func (l life) late(p place) string {
	own := slices.DeleteFunc(slices.Clone(l.Effects), func(e audit.Effect) bool { return e.Where != p.where })
	o, overtaken := audit.Overtaken(own)[l.eventID]
	if !overtaken {
		return ""
	}
	parts := []string{fmt.Sprintf("it is event %d of %s, and event %d of it, %s, was there before: %s by attempt %s, and only then %s by attempt %s",
		o.First.Sequence, o.First.Key, o.By.Sequence, o.By.EventID,
		describe(o.By), o.By.Attempt, describe(o.First), o.First.Attempt)}
	for _, a := range l.attempts {
		if a.name == o.First.Attempt {
			parts = append(parts, tell(a.fate())...)
		}
	}
	return say(lane.Reordered, parts...)
}
