package explain

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/delivered-twice/delivered-twice/internal/audit"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/payments"
)

// Life writes the life of one event: every attempt with the steps that it passed, in
// milliseconds from the first, where it ended and what it left; and then a sentence
// on each place on what became of the event there, and why.
//
// Where nobody has noted how attempts ended, one whose instance has a later
// incarnation is taken for dead after its last step.
func (c Cell) Life(w io.Writer, eventID string) error {
	l := life{Cell: c, eventID: eventID, attempts: c.attempts(eventID)}
	var b bytes.Buffer
	l.timeline(&b)
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
}

func (l life) timeline(w io.Writer) {
	type moment struct {
		at   time.Time
		text string
	}
	var start time.Time
	for _, a := range l.attempts {
		if len(a.passings) > 0 && (start.IsZero() || a.began().Before(start)) {
			start = a.began()
		}
	}
	for _, a := range l.attempts {
		fmt.Fprintf(w, "attempt %s\n", cmp.Or(a.name, "without a name"))
		var moments []moment
		for _, p := range a.passings {
			text := step(p)
			if n := l.mentions(p.Events); n > 1 {
				text += fmt.Sprintf(", %d times in one batch", n)
			}
			moments = append(moments, moment{p.At, text})
		}
		for _, stop := range a.stops {
			moments = append(moments, moment{stop.At, verb(stop)})
		}
		if a.interrupted() {
			how := verb(*a.end)
			switch a.end.How {
			case "":
				how = "went no further: another incarnation took its place"
			case "SIGKILL":
				how = "died of SIGKILL"
			}
			moments = append(moments, moment{a.end.At, how})
		}
		slices.SortStableFunc(moments, func(a, b moment) int { return a.at.Compare(b.at) })
		for _, m := range moments {
			fmt.Fprintf(w, "%12s ms  %s\n", fmt.Sprintf("%+.1f", milliseconds(m.at.Sub(start))), m.text)
		}
		left := "nothing"
		if len(a.effects) > 0 {
			var all []string
			for _, e := range a.effects {
				all = append(all, describe(e))
			}
			left = join(all)
		}
		fmt.Fprintf(w, "%15s  left %s\n", "", left)
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
	if !strings.Contains(e.Position, "@") {
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
	var doers []*attempt // each once, in the order in which their effects are there
	done := make(map[*attempt]int)
	var aborted []*attempt
	total := 0
	for _, e := range l.Effects {
		if e.EventID != l.eventID || e.Where != p.where {
			continue
		}
		a := l.attempt(e.Attempt)
		switch {
		case !e.Aborted:
			total++
			if done[a]++; done[a] == 1 {
				doers = append(doers, a)
			}
		case !slices.Contains(aborted, a):
			aborted = append(aborted, a)
		}
	}
	if total == 0 {
		return lost(l, aborted)
	}
	// A row's id and an offset tell nothing of who was first among partitions.
	slices.SortStableFunc(doers, func(a, b *attempt) int {
		return cmp.Compare(slices.Index(l.attempts, a), slices.Index(l.attempts, b))
	})
	if total > 1 {
		parts := duplicated(l, doers, done)
		if p.where == string(lane.HTTP) {
			parts = append(parts, l.unanswered()...)
		}
		return say(lane.Duplicated, parts...)
	}
	var parts []string
	if len(aborted) > 0 {
		for _, a := range aborted {
			parts = append(parts, a.story("left an aborted record"))
		}
		return say(lane.AbortedVisible, append(parts, "the one that counts is by attempt "+doers[0].name)...)
	}
	parts = append(parts, doers[0].story("did it"))
	for _, a := range l.attempts {
		switch {
		case a == doers[0]:
		case a.fate() != "":
			parts = append(parts, a.story("")+", and left nothing there")
		default:
			parts = append(parts, "attempt "+a.name+" was given it, too, and left nothing there")
		}
	}
	return say(lane.Once, parts...)
}

func say(o lane.Outcome, parts ...string) string {
	return fmt.Sprintf("%s in %s: %s", o, placeholder, strings.Join(parts, "; "))
}

func (l life) attempt(name string) *attempt {
	return l.attempts[slices.IndexFunc(l.attempts, func(a *attempt) bool { return a.name == name })]
}

// duplicated says who did it, and who again.
func duplicated(l life, doers []*attempt, done map[*attempt]int) (parts []string) {
	for i, a := range doers {
		did := "did it"
		switch {
		case done[a] > 1:
			did = fmt.Sprintf("did it %d times", done[a])
			if n := l.deliveries(a); n > 1 {
				did += fmt.Sprintf(", as it was delivered to it %d times", n)
			}
		case i > 0:
			did = "did it again"
		}
		if i == 0 && done[a] == 1 && a.fate() != "" {
			did = "" // where it died says enough
		}
		parts = append(parts, a.story(did))
	}
	return parts
}

// unanswered says which calls the third party has answered nothing, and how far it had
// come with them.
func (l life) unanswered() (parts []string) {
	last := make(map[string]string) // step of a call that is under way, by incarnation
	lost := func(of string) {
		parts = append(parts, fmt.Sprintf("the third party, %s, gave no answer after %s", of, quoted(last[of])))
	}
	for _, p := range l.Calls {
		if l.mentions(p.Events) == 0 {
			continue
		}
		if begun := last[p.Attempt]; begun != "" && p.Step == string(payments.Received) {
			lost(p.Attempt)
		}
		last[p.Attempt] = p.Step
		if p.Step == string(payments.Answered) {
			delete(last, p.Attempt)
		}
	}
	for _, of := range slices.Sorted(maps.Keys(last)) {
		lost(of)
	}
	return parts
}

// deliveries is how often the event was handed to an attempt.
func (l life) deliveries(a *attempt) (n int) {
	for _, p := range a.passings {
		if p.Step == a.steps[0] {
			n += l.mentions(p.Events)
		}
	}
	return n
}

// lost says which steps nobody passed with it, and who came how far.
func lost(l life, aborted []*attempt) string {
	passed := make(map[string]bool)
	var parts, steps, missing []string
	for _, a := range l.attempts {
		for _, p := range a.passings {
			passed[p.Step] = true
		}
		steps = a.steps
	}
	for _, s := range steps {
		if !passed[s] {
			missing = append(missing, quoted(s))
		}
	}
	switch {
	case len(passed) == 0:
		parts = append(parts, "no attempt passed any step with it")
	case len(missing) > 0:
		parts = append(parts, "no attempt passed "+strings.Join(missing, " or ")+" with it")
	default:
		parts = append(parts, "every step up to "+quoted(steps[len(steps)-1])+
			" was passed with it, so it was stored as a dead letter, or what had been done was undone later")
	}
	for _, a := range l.attempts {
		if len(a.passings) == 0 {
			continue
		}
		did := ""
		if a.fate() == "" {
			did = "passed " + join(distinct(a))
		}
		story := a.story(did)
		if slices.Contains(aborted, a) {
			story += ", and left an aborted record"
		}
		parts = append(parts, story)
	}
	return say(lane.Lost, parts...)
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
	return fmt.Sprintf("%s in %s: it is event %d of %s, and event %d of it, %s, was there before: %s by attempt %s, and only then %s by attempt %s",
		lane.Reordered, placeholder, o.First.Sequence, o.First.Key, o.By.Sequence, o.By.EventID,
		describe(o.By), o.By.Attempt, describe(o.First), o.First.Attempt)
}
