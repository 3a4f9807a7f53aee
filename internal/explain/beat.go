package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/delivered-twice/delivered-twice/internal/trace"
)

// beat is one thing that happened in the life of an event.
type beat struct {
	at time.Time
	// who did it; "" where nobody in particular did.
	who string
	// did is what, and effect says that it was the effect itself, "did it": of this it is
	// told how often.
	did    string
	effect bool
}

// tell puts beats into words, a part for each stretch in which one actor alone was at
// it. They are sorted by time; those of one moment keep their order.
func tell(beats []beat) (parts []string) {
	slices.SortStableFunc(beats, func(a, b beat) int { return a.at.Compare(b.at) })
	done := 0
	for len(beats) > 0 {
		who := beats[0].who
		if who == "" {
			parts, beats = append(parts, beats[0].did), beats[1:]
			continue
		}
		var did []string
		for len(beats) > 0 && beats[0].who == who {
			first, n := beats[0], 1
			for n < len(beats) && first.effect && beats[n].who == who && beats[n].effect {
				n++
			}
			beats = beats[n:]
			if first.effect {
				first.did += times(n, done > 0)
				done += n
			}
			did = append(did, first.did)
		}
		parts = append(parts, who+" "+inTurn(did))
	}
	return parts
}

// times says that it was done so often in a row, or so often more.
func times(n int, again bool) string {
	switch {
	case n == 1 && again:
		return " again"
	case n == 1:
		return ""
	case again:
		return fmt.Sprintf(" %d times more", n)
	}
	return fmt.Sprintf(" %d times", n)
}

// inTurn joins what one did. Where there are commas in it, more than "and" is needed to
// see what ends where.
func inTurn(did []string) string {
	if slices.ContainsFunc(did[:len(did)-1], func(s string) bool { return strings.Contains(s, ", ") }) {
		return strings.Join(did, ", and ")
	}
	return join(did)
}

// words says what happened to an attempt.
func words(i trace.Incident) string {
	what := i.What
	switch {
	case i.Ended && i.What == trace.Exit:
		return "ended"
	case i.Ended && strings.HasPrefix(i.What, "SIG"):
		what = "died (" + i.What + ")"
	case i.Ended:
		what = "ended with " + i.What
	case i.What == "SIGSTOP":
		what = "stood still (SIGSTOP)"
	case i.What == "SIGCONT":
		what = "woke up (SIGCONT)"
	case i.What == "SIGTERM":
		what = "was told to end (SIGTERM)"
	}
	return what
}

// struck are the incidents that the attempt had with the event in hand. It woke up where
// it stood still before.
func (a *attempt) struck() (all []trace.Incident) {
	var still, awake bool // awake, and nobody knows what it was at from then on
	for _, i := range a.incidents {
		switch {
		case i.Ended:
			if a.interrupted(i) {
				all = append(all, i)
			}
		case i.What == "SIGCONT":
			if still {
				all = append(all, i)
			}
			still, awake = false, !i.At.Before(a.done())
		case a.at(i.At) && !awake:
			all = append(all, i)
			still = still || i.What == "SIGSTOP"
		}
	}
	return all
}

// still says that it stood still at a time, with the event in hand.
func (a *attempt) still(t time.Time) (still bool) {
	for _, i := range a.struck() {
		if !i.At.After(t) {
			still = i.What == "SIGSTOP" || still && i.What == "SIGTERM"
		}
	}
	return still
}

// interrupted says that an end came while the attempt was at the event: before the last
// step or, where it was killed, right after it. One that ended well had given the event
// up before.
func (a *attempt) interrupted(end trace.Incident) bool {
	switch {
	case len(a.passings) == 0 || end.What == trace.Exit:
		return false
	case a.role == thirdParty:
		// Others are called at the same time, so a step of theirs says nothing. What was
		// answered matters where it was asked again.
		return a.unfinished(end.At) && (a.next.IsZero() || end.At.Before(a.next)) ||
			!a.unfinished(end.At) && end.At.Before(a.next)
	}
	return a.unfinished(end.At) || strings.HasPrefix(end.What, "SIG") && a.done().Equal(a.last)
}

// fate are the beats of what the attempt had to bear with the event in hand, and, where it
// was not done with it in the end, what it never came to.
func (a *attempt) fate() (beats []beat) {
	last, ended, where := a.done(), false, ""
	for _, i := range a.struck() {
		did := words(i)
		if between := a.between(i.At); i.What != "SIGCONT" && between != where {
			did += " " + between
			where = between
		}
		beats = append(beats, beat{at: i.At, who: a.String(), did: did})
		ended = ended || i.Ended
		if i.At.After(last) {
			last = i.At
		}
	}
	if !ended && len(a.passings) > 0 && a.unfinished(last) {
		did := "never passed " + join(a.before(last))
		if a.role == thirdParty {
			did = "gave no answer " + a.after(last)
		}
		beats = append(beats, beat{at: last, who: a.String(), did: did})
	}
	return beats
}
