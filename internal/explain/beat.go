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
	// did is what; "" is what the whole life is about, the effect itself.
	did string
}

// tell puts beats into words, a part for each stretch in which one actor alone was at
// it. They are sorted by time; those of one moment keep their order.
func tell(beats []beat) (parts []string) {
	slices.SortStableFunc(beats, func(a, b beat) int { return a.at.Compare(b.at) })
	done := 0
	for len(beats) > 0 {
		who := beats[0].who
		var did []string
		for len(beats) > 0 && beats[0].who == who {
			if beats[0].did != "" {
				did, beats = append(did, beats[0].did), beats[1:]
				if who == "" {
					break
				}
				continue
			}
			n := 0
			for ; n < len(beats) && beats[n].who == who && beats[n].did == ""; n++ {
			}
			did, beats = append(did, times(n, done > 0)), beats[n:]
			done += n
		}
		parts = append(parts, strings.TrimSpace(who+" "+join(did)))
	}
	return parts
}

// times says that it was done so often in a row, or so often more.
func times(n int, again bool) string {
	switch {
	case n == 1 && again:
		return "did it again"
	case n == 1:
		return "did it"
	case again:
		return fmt.Sprintf("did it %d times more", n)
	}
	return fmt.Sprintf("did it %d times", n)
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
	still := false
	for _, i := range a.incidents {
		switch {
		case i.Ended && a.interrupted(i), !i.Ended && i.What != "SIGCONT" && a.at(i.At), still && i.What == "SIGCONT":
			all = append(all, i)
			still = i.What == "SIGSTOP" || still && i.What != "SIGCONT"
		}
	}
	return all
}

// interrupted says that an end came while the attempt was at the event: before the last
// step or, where it was killed, right after it. One that ended well had given the event
// up before.
func (a *attempt) interrupted(end trace.Incident) bool {
	if len(a.passings) == 0 || end.What == trace.Exit {
		return false
	}
	return a.unfinished(end.At) || strings.HasPrefix(end.What, "SIG") && a.done().Equal(a.last)
}

// fate are the beats of what the attempt had to bear with the event in hand, and, where it
// was not done with it in the end, how far it came.
func (a *attempt) fate() (beats []beat) {
	ended := false
	for _, i := range a.struck() {
		did := words(i)
		if i.What != "SIGCONT" {
			did += " " + a.between(i.At)
		}
		beats = append(beats, beat{i.At, a.String(), did})
		ended = ended || i.Ended
	}
	if !ended && len(a.passings) > 0 && a.unfinished(a.done()) {
		did := "came no further than " + strings.TrimPrefix(a.after(a.done()), "after ")
		if a.role == thirdParty {
			did = "gave no answer " + a.after(a.done())
		}
		beats = append(beats, beat{a.done(), a.String(), did})
	}
	return beats
}
