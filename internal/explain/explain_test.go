package explain_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/audit"
	"github.com/delivered-twice/delivered-twice/internal/explain"
	"github.com/delivered-twice/delivered-twice/internal/jsonl"
	"github.com/delivered-twice/delivered-twice/internal/trace"
)

var start = time.Date(2026, time.January, 5, 14, 2, 11, 0, time.UTC)

// kept builds a cell by hand; each thing that happens comes a millisecond later.
type kept struct {
	explain.Cell
	now time.Time
}

func newKept() *kept { return &kept{now: start} }

func (k *kept) tick() time.Time {
	k.now = k.now.Add(time.Millisecond)
	return k.now
}

// pass has an attempt pass steps, "worked" or "worked@warehouse", with events.
func (k *kept) pass(attempt, steps string, events ...string) *kept {
	for s := range strings.FieldsSeq(steps) {
		name, handler, _ := strings.Cut(s, "@")
		k.Passings = append(k.Passings, trace.Passing{At: k.tick(), Attempt: attempt, Step: name, Handler: handler, Events: events})
	}
	return k
}

// call has the third party pass steps with an event.
func (k *kept) call(attempt, steps, event string) *kept {
	for s := range strings.FieldsSeq(steps) {
		k.Calls = append(k.Calls, trace.Passing{At: k.tick(), Attempt: attempt, Step: s, Events: []string{event}})
	}
	return k
}

// end has an attempt end, and signal has it get a signal.
func (k *kept) end(attempt, how string) *kept {
	k.Incidents = append(k.Incidents, trace.Incident{Attempt: attempt, What: how, At: k.tick(), Ended: true})
	return k
}

func (k *kept) signal(attempt, name string) *kept {
	k.Incidents = append(k.Incidents, trace.Incident{Attempt: attempt, What: name, At: k.tick()})
	return k
}

// callEnd has the third party end.
func (k *kept) callEnd(attempt, how string) *kept {
	k.CallIncidents = append(k.CallIncidents, trace.Incident{Attempt: attempt, What: how, At: k.tick(), Ended: true})
	return k
}

// happen has something happen to all, or to some events.
func (k *kept) happen(what string, events ...string) *kept {
	k.Incidents = append(k.Incidents, trace.Incident{What: what, At: k.tick(), Events: events})
	return k
}

// row adds rows of one event in tables, committed at the last moment.
func (k *kept) row(attempt, event string, tables ...string) *kept {
	for _, table := range tables {
		k.Effects = append(k.Effects, audit.Effect{EventID: event, Attempt: attempt, Where: table, Position: fmt.Sprint(len(k.Effects) + 1), At: k.now})
	}
	return k
}

func (k *kept) record(attempt, event string, aborted bool) *kept {
	k.Effects = append(k.Effects, audit.Effect{EventID: event, Attempt: attempt, Where: "picked", Position: fmt.Sprintf("0@%d", len(k.Effects)), Aborted: aborted, At: k.now})
	return k
}

// ordered gives the last effect a key and a sequence.
func (k *kept) ordered(key string, sequence int64) *kept {
	last := &k.Effects[len(k.Effects)-1]
	last.Key, last.Sequence = key, sequence
	return k
}

// life is what is told of an event, and the sentences at its end alone.
func life(t *testing.T, c explain.Cell, event string) (text string, sentences []string) {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, c.Life(&b, event))
	t.Log("\n" + b.String())
	for line := range strings.Lines(b.String()) {
		if strings.HasPrefix(line, event) {
			sentences = append(sentences, strings.TrimSuffix(line, "\n"))
		}
	}
	return b.String(), sentences
}

const (
	eos   = "polled handled produced offsets-sent committed"
	guard = "polled worked committed acknowledged"
	// relayed are the steps of an outbox's relay.
	relayed = "claimed@relay published@relay stamped@relay"
)

func TestLife(t *testing.T) {
	for _, c := range []struct {
		name string
		kept *kept
		want []string
	}{
		{
			name: "died between doing and acknowledging",
			kept: newKept().pass("none-0.1", guard, "evt_0").row("none-0.1", "evt_0", "pick_tasks", "loyalty_points").
				pass("none-0.1", "polled worked committed", "evt_1", "evt_2").row("none-0.1", "evt_1", "pick_tasks", "loyalty_points").end("none-0.1", "SIGKILL").
				pass("none-0.2", guard, "evt_1", "evt_2").row("none-0.2", "evt_1", "pick_tasks", "loyalty_points"),
			want: []string{"evt_1 is duplicated in pick_tasks and loyalty_points: attempt none-0.1 did it and died (SIGKILL) after `committed`, before `acknowledged`; " +
				"attempt none-0.2 did it again."},
		},
		{
			name: "nobody noted how it ended",
			kept: newKept().pass("none-0.1", guard, "evt_0").pass("none-0.1", "polled worked committed", "evt_1").row("none-0.1", "evt_1", "pick_tasks").
				pass("none-0.2", guard, "evt_1").row("none-0.2", "evt_1", "pick_tasks"),
			want: []string{"evt_1 is duplicated in pick_tasks: attempt none-0.1 did it and never passed `acknowledged`; attempt none-0.2 did it again."},
		},
		{
			name: "the attempt that did it again died, too",
			kept: newKept().pass("none-0.1", guard, "evt_0").pass("none-0.1", "polled worked committed", "evt_1").row("none-0.1", "evt_1", "pick_tasks").end("none-0.1", "SIGKILL").
				pass("none-0.2", "polled worked committed", "evt_1").row("none-0.2", "evt_1", "pick_tasks").end("none-0.2", "exit 2: no space left").
				pass("none-0.3", guard, "evt_1").row("none-0.3", "evt_1", "pick_tasks"),
			want: []string{"evt_1 is duplicated in pick_tasks: attempt none-0.1 did it and died (SIGKILL) after `committed`, before `acknowledged`; " +
				"attempt none-0.2 did it again and ended with exit 2: no space left after `committed`, before `acknowledged`; attempt none-0.3 did it again."},
		},
		{
			name: "one handler was further than the other",
			kept: newKept().pass("inbox-0.1", "polled begun@warehouse worked@warehouse committed@warehouse acknowledged", "evt_0").
				pass("inbox-0.1", "polled begun@warehouse begun@loyalty worked@warehouse worked@loyalty committed@warehouse", "evt_1").row("inbox-0.1", "evt_1", "pick_tasks").end("inbox-0.1", "SIGKILL").
				pass("inbox-0.2", "polled begun@warehouse begun@loyalty worked@loyalty committed@loyalty acknowledged", "evt_1").row("inbox-0.2", "evt_1", "loyalty_points"),
			want: []string{
				"evt_1 is once in pick_tasks: attempt inbox-0.1 did it and died (SIGKILL) after `worked@loyalty` and `committed@warehouse`, before `committed@loyalty`; " +
					"attempt inbox-0.2 had it, too, and left nothing there.",
				"evt_1 is once in loyalty_points: attempt inbox-0.2 did it; attempt inbox-0.1 had it, too, and left nothing there.",
			},
		},
		{
			name: "had by several in vain",
			kept: newKept().pass("inbox-0.1", "polled", "evt_1").end("inbox-0.1", "SIGKILL").pass("inbox-0.2", "polled", "evt_1").end("inbox-0.2", "SIGKILL").
				pass("inbox-0.3", guard, "evt_1").row("inbox-0.3", "evt_1", "pick_tasks"),
			want: []string{"evt_1 is once in pick_tasks: attempt inbox-0.3 did it; attempts inbox-0.1 and inbox-0.2 had it, too, and left nothing there."},
		},
		{
			name: "a publisher sent it twice, in one batch",
			kept: newKept().pass("eos-0.1", eos, "evt_1", "evt_2", "evt_1").row("eos-0.1", "evt_1", "pick_tasks", "pick_tasks").signal("eos-0.1", "SIGTERM").end("eos-0.1", trace.Exit),
			want: []string{"evt_1 is duplicated in pick_tasks: attempt eos-0.1 did it 2 times; it was delivered to eos-0.1 2 times."},
		},
		{
			name: "a publisher sent it once more, later",
			kept: newKept().pass("none-0.1", guard, "evt_1").row("none-0.1", "evt_1", "pick_tasks").happen("the publisher sent every event once more").
				pass("none-1.1", guard, "evt_1").row("none-1.1", "evt_1", "pick_tasks").happen("Postgres was stopped"),
			want: []string{"evt_1 is duplicated in pick_tasks: attempt none-0.1 did it; the publisher sent every event once more; attempt none-1.1 did it again."},
		},
		{
			name: "answers to COMMIT were lost",
			kept: newKept().pass("none-0.1", "polled worked", "evt_1").row("none-0.1", "evt_1", "pick_tasks").happen("the connection was cut").
				pass("none-0.1", "worked", "evt_1").row("none-0.1", "evt_1", "pick_tasks").happen("the connection was cut").
				pass("none-0.1", "worked committed acknowledged", "evt_1").row("none-0.1", "evt_1", "pick_tasks"),
			want: []string{"evt_1 is duplicated in pick_tasks: attempt none-0.1 did it; the connection was cut; attempt none-0.1 did it again; the connection was cut; attempt none-0.1 did it again."},
		},
		{
			name: "tried again, and nobody knows why",
			kept: newKept().pass("none-0.1", "polled worked", "evt_1").row("none-0.1", "evt_1", "pick_tasks").
				pass("none-0.1", "worked committed acknowledged", "evt_1").row("none-0.1", "evt_1", "pick_tasks"),
			want: []string{"evt_1 is duplicated in pick_tasks: attempt none-0.1 did it 2 times; none-0.1 tried 2 times."},
		},
		{
			name: "a zombie",
			kept: newKept().pass("none-0.1", guard, "evt_0").pass("none-0.1", "polled", "evt_1").signal("none-0.1", "SIGSTOP").
				pass("none-1.1", guard, "evt_1").row("none-1.1", "evt_1", "pick_tasks").signal("none-0.1", "SIGCONT").
				pass("none-0.1", "worked committed", "evt_1").row("none-0.1", "evt_1", "pick_tasks").
				pass("none-0.1", guard, "evt_2").end("none-0.1", trace.Exit).pass("none-0.2", guard, "evt_3"),
			want: []string{"evt_1 is duplicated in pick_tasks: attempt none-0.1 stood still (SIGSTOP) after `polled`, before `worked`; attempt none-1.1 got it meanwhile and did it; " +
				"attempt none-0.1 woke up (SIGCONT), did it again and never passed `acknowledged`."},
		},
		{
			name: "a zombie that did it first and was fenced",
			kept: newKept().pass("eos-0.1", eos, "evt_0").pass("eos-0.1", "polled handled produced", "evt_1").row("eos-0.1", "evt_1", "pick_tasks").signal("eos-0.1", "SIGSTOP").
				pass("eos-1.1", eos, "evt_1").row("eos-1.1", "evt_1", "pick_tasks").record("eos-1.1", "evt_1", false).
				record("eos-0.1", "evt_1", true).signal("eos-0.1", "SIGCONT").signal("eos-0.1", "SIGTERM").end("eos-0.1", trace.Exit),
			want: []string{
				"evt_1 is duplicated in pick_tasks: attempt eos-0.1 did it and stood still (SIGSTOP) after `produced`, before `offsets-sent`; " +
					"attempt eos-1.1 got it meanwhile and did it again; attempt eos-0.1 woke up (SIGCONT) and never passed `offsets-sent`.",
				"evt_1 is aborted-visible in topic picked: attempt eos-0.1 left an aborted record and stood still (SIGSTOP) after `produced`, before `offsets-sent`; " +
					"attempt eos-1.1 got it meanwhile and left the one that counts; attempt eos-0.1 woke up (SIGCONT) and never passed `offsets-sent`.",
			},
		},
		{
			name: "stopped with other events, before and after",
			kept: newKept().pass("none-0.1", "polled", "evt_0").signal("none-0.1", "SIGSTOP").signal("none-0.1", "SIGCONT").pass("none-0.1", "worked committed acknowledged", "evt_0").
				pass("none-0.1", guard, "evt_1").row("none-0.1", "evt_1", "pick_tasks").
				pass("none-0.1", "polled", "evt_2").signal("none-0.1", "SIGSTOP").signal("none-0.1", "SIGCONT").pass("none-0.1", "worked committed acknowledged", "evt_2"),
			want: []string{"evt_1 is once in pick_tasks: attempt none-0.1 did it."},
		},
		{
			name: "told to end while it stood still",
			kept: newKept().pass("none-0.1", "polled", "evt_1").signal("none-0.1", "SIGSTOP").signal("none-0.1", "SIGTERM").signal("none-0.1", "SIGCONT").
				pass("none-0.1", "worked committed acknowledged", "evt_1").row("none-0.1", "evt_1", "pick_tasks").end("none-0.1", trace.Exit),
			want: []string{"evt_1 is once in pick_tasks: attempt none-0.1 stood still (SIGSTOP) after `polled`, before `worked`, and was told to end (SIGTERM), and woke up (SIGCONT), and did it."},
		},
		{
			name: "relays died and took over from each other",
			kept: newKept().pass("outbox-0.1", guard, "evt_0").pass("outbox-0.1", relayed, "evt_0").
				pass("outbox-0.1", guard, "evt_1").row("outbox-0.1", "evt_1", "pick_tasks").
				pass("outbox-0.1", "claimed@relay published@relay", "evt_1").end("outbox-0.1", "SIGKILL").
				pass("outbox-1.1", "claimed@relay", "evt_1").end("outbox-1.1", "SIGKILL").
				pass("outbox-1.2", relayed, "evt_1").end("outbox-1.2", "SIGKILL").
				record("outbox-0.1", "evt_1", false).record("outbox-0.1", "evt_1", false),
			want: []string{
				"evt_1 is once in pick_tasks: attempt outbox-0.1 did it.",
				"evt_1 is duplicated in topic picked: the relay of attempt outbox-0.1 sent it and died (SIGKILL) after `published`, before `stamped`; " +
					"the relay of attempt outbox-1.2 sent it again and died (SIGKILL) after `stamped`.",
			},
		},
		{
			name: "a relay that died before it heard that Kafka had it",
			kept: newKept().pass("outbox-0.1", guard, "evt_1").row("outbox-0.1", "evt_1", "pick_tasks").
				pass("outbox-0.1", "claimed@relay", "evt_1").end("outbox-0.1", "SIGKILL").pass("outbox-0.2", relayed, "evt_1").
				record("outbox-0.1", "evt_1", false).record("outbox-0.1", "evt_1", false),
			want: []string{
				"evt_1 is once in pick_tasks: attempt outbox-0.1 did it.",
				"evt_1 is duplicated in topic picked: the relay of attempt outbox-0.1 sent it and died (SIGKILL) after `claimed`, before `published`; the relay of attempt outbox-0.2 sent it again.",
			},
		},
		{
			name: "no relay got to it",
			kept: newKept().pass("outbox-0.1", guard, "evt_0").pass("outbox-0.1", relayed, "evt_0").record("outbox-0.1", "evt_0", false).
				pass("outbox-0.1", guard, "evt_1").row("outbox-0.1", "evt_1", "pick_tasks").pass("outbox-0.1", "claimed@relay", "evt_1").end("outbox-0.1", "SIGKILL"),
			want: []string{
				"evt_1 is lost in topic picked: no attempt passed `published` or `stamped` with it; attempt outbox-0.1 passed `polled`, `worked`, `committed` and `acknowledged`; " +
					"the relay of attempt outbox-0.1 died (SIGKILL) after `claimed`, before `published`.",
				"evt_1 is once in pick_tasks: attempt outbox-0.1 did it.",
			},
		},
		{
			name: "a receiver died before it answered",
			kept: newKept().pass("webhook-0.1", "received begun@warehouse committed@warehouse answered", "evt_0").
				pass("webhook-0.1", "received begun@warehouse committed@warehouse", "evt_1").row("webhook-0.1", "evt_1", "pick_tasks").end("webhook-0.1", "SIGKILL").
				pass("webhook-0.2", "received begun@warehouse answered", "evt_1"),
			want: []string{"evt_1 is once in pick_tasks: attempt webhook-0.1 did it and died (SIGKILL) after `committed@warehouse`, before `answered`; attempt webhook-0.2 had it, too, and left nothing there."},
		},
		{
			name: "acknowledged before it was done",
			kept: newKept().pass("ack-0.1", "polled acknowledged worked committed", "evt_0").row("ack-0.1", "evt_0", "pick_tasks").
				pass("ack-0.1", "polled acknowledged", "evt_1").end("ack-0.1", "SIGKILL").
				pass("ack-0.2", "polled acknowledged worked committed", "evt_2"),
			want: []string{"evt_1 is lost in pick_tasks: no attempt passed `worked` or `committed` with it; attempt ack-0.1 died (SIGKILL) after `acknowledged`, before `worked`."},
		},
		{
			name: "skipped by an attempt that believed it done",
			kept: newKept().pass("redis-0.1", "polled claimed worked committed acknowledged", "evt_0").row("redis-0.1", "evt_0", "pick_tasks").
				pass("redis-0.1", "polled claimed", "evt_1").end("redis-0.1", "SIGKILL").
				pass("redis-0.2", "polled acknowledged", "evt_1"),
			want: []string{"evt_1 is lost in pick_tasks: no attempt passed `worked` or `committed` with it; " +
				"attempt redis-0.1 died (SIGKILL) after `claimed`, before `worked`; attempt redis-0.2 passed `polled` and `acknowledged`."},
		},
		{
			name: "never delivered",
			kept: newKept().pass("ack-0.1", guard, "evt_0").row("ack-0.1", "evt_0", "pick_tasks"),
			want: []string{"evt_1 is lost in pick_tasks: no attempt ever had it."},
		},
		{
			name: "committed, and gone",
			kept: newKept().pass("async-0.1", guard, "evt_1").row("async-0.1", "evt_0", "pick_tasks").happen("every process of Postgres was killed (SIGKILL)"),
			want: []string{"evt_1 is lost in pick_tasks: attempt async-0.1 passed `polled`, `worked`, `committed` and `acknowledged`; every process of Postgres was killed (SIGKILL); " +
				"so what was done was undone again, or it was given up as a dead letter."},
		},
		{
			name: "poison",
			kept: newKept().happen("it was sent as poison", "evt_1", "evt_2").happen("it was sent as poison", "evt_3").pass("inbox-0.1", guard, "evt_1").row("inbox-0.1", "evt_0", "pick_tasks"),
			want: []string{"evt_1 is lost in pick_tasks: it was sent as poison; attempt inbox-0.1 passed `polled`, `worked`, `committed` and `acknowledged`; so it was given up as a dead letter."},
		},
		{
			name: "an aborted attempt, and what it did outside",
			kept: newKept().pass("eos-0.1", eos, "evt_0").
				pass("eos-0.1", "polled handled produced", "evt_1").row("eos-0.1", "evt_1", "pick_tasks").end("eos-0.1", "SIGKILL").record("eos-0.1", "evt_1", true).
				pass("eos-0.2", eos, "evt_1").row("eos-0.2", "evt_1", "pick_tasks").record("eos-0.2", "evt_1", false),
			want: []string{
				"evt_1 is duplicated in pick_tasks: attempt eos-0.1 did it and died (SIGKILL) after `produced`, before `offsets-sent`; attempt eos-0.2 did it again.",
				"evt_1 is aborted-visible in topic picked: attempt eos-0.1 left an aborted record and died (SIGKILL) after `produced`, before `offsets-sent`; attempt eos-0.2 left the one that counts.",
			},
		},
		{
			name: "fenced in the middle of a transaction",
			kept: newKept().pass("eos-0.1", "polled handled produced", "evt_1").signal("eos-0.1", "SIGSTOP").happen("another process initialised the id").
				record("eos-0.1", "evt_1", true).signal("eos-0.1", "SIGCONT").pass("eos-0.1", eos, "evt_1").record("eos-0.1", "evt_1", false),
			want: []string{"evt_1 is aborted-visible in topic picked: attempt eos-0.1 left an aborted record and stood still (SIGSTOP) after `produced`, before `offsets-sent`; " +
				"another process initialised the id; attempt eos-0.1 woke up (SIGCONT) and left the one that counts."},
		},
		{
			name: "the transaction expired while all were down",
			kept: newKept().pass("two-0.1", "polled produced decided committed", "evt_0").pass("two-0.1", "polled produced decided", "evt_1").row("two-0.1", "evt_1", "pick_tasks").end("two-0.1", "SIGKILL").
				happen("the broker aborted the transaction").pass("two-0.2", "polled produced decided committed", "evt_1").row("two-0.2", "evt_1", "pick_tasks"),
			want: []string{"evt_1 is duplicated in pick_tasks: attempt two-0.1 did it and died (SIGKILL) after `decided`, before `committed`; the broker aborted the transaction; attempt two-0.2 did it again."},
		},
		{
			name: "charged three times, as the third party died twice",
			kept: newKept().pass("inbox-0.1", "polled worked", "evt_1").row("inbox-0.1", "evt_1", "pick_tasks").
				call("payments.1", "received claimed charged committed answered", "evt_0").
				call("payments.1", "received claimed", "evt_1").callEnd("payments.1", "SIGKILL").
				call("payments.2", "received claimed charged committed", "evt_1").row("inbox-0.1", "evt_1", "http").callEnd("payments.2", "SIGKILL").
				call("payments.3", "received claimed charged committed answered", "evt_1").row("inbox-0.1", "evt_1", "http").
				pass("inbox-0.1", "committed acknowledged", "evt_1").callEnd("payments.3", "SIGKILL"),
			want: []string{
				"evt_1 is once in pick_tasks: attempt inbox-0.1 did it.",
				"evt_1 is duplicated in http: the third party, payments.1, died (SIGKILL) after `claimed`, before `charged`; attempt inbox-0.1 did it; " +
					"the third party, payments.2, died (SIGKILL) after `committed`, before `answered`; attempt inbox-0.1 did it again.",
			},
		},
		{
			name: "charged twice, as an answer was lost",
			kept: newKept().pass("inbox-0.1", "polled worked", "evt_1").
				call("payments.1", "received claimed charged committed", "evt_1").row("inbox-0.1", "evt_1", "http").
				call("payments.1", "received claimed charged committed answered", "evt_1").row("inbox-0.1", "evt_1", "http").
				pass("inbox-0.1", "committed acknowledged", "evt_1").callEnd("payments.1", "SIGKILL"),
			want: []string{"evt_1 is duplicated in http: attempt inbox-0.1 did it; the third party, payments.1, gave no answer after `committed`; attempt inbox-0.1 did it again."},
		},
		{
			name: "charged again by another attempt",
			kept: newKept().pass("inbox-0.1", guard, "evt_0").pass("inbox-0.1", "polled", "evt_1").call("payments.1", "received committed answered", "evt_1").row("inbox-0.1", "evt_1", "http").
				pass("inbox-0.1", "worked", "evt_1").end("inbox-0.1", "SIGKILL").
				pass("inbox-0.2", "polled", "evt_1").call("payments.1", "received committed answered", "evt_1").row("inbox-0.2", "evt_1", "http").pass("inbox-0.2", "worked committed acknowledged", "evt_1"),
			want: []string{"evt_1 is duplicated in http: attempt inbox-0.1 did it and died (SIGKILL) after `worked`, before `committed`; attempt inbox-0.2 did it again."},
		},
		{
			name: "only aborted",
			kept: newKept().pass("eos-0.1", eos, "evt_0").record("eos-0.1", "evt_0", false).
				pass("eos-0.1", "polled handled produced", "evt_1").end("eos-0.1", "SIGKILL").record("eos-0.1", "evt_1", true),
			want: []string{"evt_1 is lost in topic picked: no attempt passed `offsets-sent` or `committed` with it; " +
				"attempt eos-0.1 left an aborted record and died (SIGKILL) after `produced`, before `offsets-sent`."},
		},
		{
			name: "overtaken",
			kept: newKept().pass("ack-0.1", "polled acknowledged worked committed", "evt_0").pass("ack-0.1", "polled acknowledged", "evt_1").signal("ack-0.1", "SIGSTOP").
				pass("ack-1.1", "polled acknowledged worked committed", "evt_2").row("ack-1.1", "evt_2", "pick_tasks").ordered("ord_1", 2).signal("ack-0.1", "SIGCONT").
				pass("ack-0.1", "worked committed", "evt_1").row("ack-0.1", "evt_1", "pick_tasks").ordered("ord_1", 1),
			want: []string{
				"evt_1 is once in pick_tasks: attempt ack-0.1 stood still (SIGSTOP) after `acknowledged`, before `worked`, and woke up (SIGCONT), and did it.",
				"evt_1 is reordered in pick_tasks: it is event 1 of ord_1, and event 2 of it, evt_2, was there before: " +
					"row 1 in pick_tasks by attempt ack-1.1, and only then row 2 in pick_tasks by attempt ack-0.1; " +
					"attempt ack-0.1 stood still (SIGSTOP) after `acknowledged`, before `worked`, and woke up (SIGCONT).",
			},
		},
		{
			name: "no trace, effects only",
			kept: newKept().row("0.4711.17", "evt_1", "pick_tasks").row("0.4712.18", "evt_1", "pick_tasks"),
			want: []string{"evt_1 is duplicated in pick_tasks: attempt 0.4711.17 did it; attempt 0.4712.18 did it again."},
		},
		{
			name: "no effects at all",
			kept: newKept().pass("none-0.1", guard, "evt_1"),
			want: []string{"evt_1: the audit has found nothing of any event."},
		},
		{
			name: "killed right after the last step",
			kept: newKept().pass("eos-0.1", eos, "evt_1").record("eos-0.1", "evt_1", false).end("eos-0.1", "SIGKILL").pass("eos-0.2", eos, "evt_2"),
			want: []string{"evt_1 is once in topic picked: attempt eos-0.1 did it and died (SIGKILL) after `committed`."},
		},
		{
			name: "an attempt that ended long after",
			kept: newKept().pass("eos-0.1", eos, "evt_1").record("eos-0.1", "evt_1", false).pass("eos-0.1", "polled", "evt_2").end("eos-0.1", "SIGKILL").pass("eos-0.2", eos, "evt_2"),
			want: []string{"evt_1 is once in topic picked: attempt eos-0.1 did it."},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, sentences := life(t, c.kept.Cell, "evt_1")
			require.Equal(t, c.want, sentences)
		})
	}
}

// Records outside of transactions have the time of their event, so it is their steps that
// tell when they were sent.
func TestRecordsThatAllHaveOneTime(t *testing.T) {
	k := newKept().record("direct-0.1", "evt_1", false).record("direct-0.1", "evt_1", false).
		pass("direct-0.1", "polled begun@warehouse worked@warehouse", "evt_1").happen("the connection was cut").
		pass("direct-0.1", "begun@warehouse worked@warehouse committed@warehouse acknowledged", "evt_1")
	_, sentences := life(t, k.Cell, "evt_1")
	require.Equal(t, []string{"evt_1 is duplicated in topic picked: attempt direct-0.1 did it; the connection was cut; attempt direct-0.1 did it again."}, sentences)
}

func TestWholeLife(t *testing.T) {
	for _, c := range []struct {
		name string
		kept func() *kept
		want string
	}{
		{
			name: "a zombie",
			kept: func() *kept {
				k := newKept().pass("none-0.1", guard, "evt_0").happen("a thing of before").
					pass("none-0.1", "polled", "evt_1", "evt_2", "evt_1")
				k.Incidents = append(k.Incidents, trace.Incident{At: k.tick(), Attempt: "none-0.1", What: "SIGSTOP", Plan: "polled:2:pause"})
				k.now = k.now.Add(1200 * time.Millisecond)
				return k.pass("none-1.1", "polled worked@warehouse committed acknowledged", "evt_1").row("none-1.1", "evt_1", "pick_tasks").
					signal("none-0.1", "SIGCONT").happen("Postgres was stopped").
					pass("none-0.1", "worked@warehouse committed", "evt_1").row("none-0.1", "evt_1", "pick_tasks").
					pass("none-0.1", guard, "evt_9").end("none-0.1", trace.Exit).happen("a thing of later")
			},
			want: `
        +0.0 ms  none-0.1  polled, 2 times in one batch
        +1.0 ms  none-0.1  stood still (SIGSTOP), as planned: polled:2:pause
     +1202.0 ms  none-1.1  polled
     +1203.0 ms  none-1.1  worked@warehouse
     +1204.0 ms  none-1.1  committed
     +1205.0 ms  none-1.1  acknowledged
     +1206.0 ms  none-0.1  woke up (SIGCONT)
     +1207.0 ms            Postgres was stopped
     +1208.0 ms  none-0.1  worked@warehouse
     +1209.0 ms  none-0.1  committed

attempt none-0.1 left row 2 in pick_tasks
attempt none-1.1 left row 1 in pick_tasks

evt_1 is duplicated in pick_tasks: attempt none-0.1 stood still (SIGSTOP) after ` + "`polled`, before `worked`" + `; attempt none-1.1 got it meanwhile and did it; attempt none-0.1 woke up (SIGCONT); Postgres was stopped; attempt none-0.1 did it again and never passed ` + "`acknowledged`" + `.
`,
		},
		{
			name: "an outbox and a third party",
			kept: func() *kept {
				return newKept().pass("outbox-0.1", "polled", "evt_1").
					call("payments.1", "received claimed", "evt_1").callEnd("payments.1", "SIGKILL").
					call("payments.2", "received claimed charged committed answered", "evt_1").row("outbox-0.1", "evt_1", "http").
					pass("outbox-0.1", "worked committed acknowledged", "evt_1").pass("outbox-0.1", "claimed@relay published@relay", "evt_1").
					record("outbox-0.1", "evt_1", false).end("outbox-0.1", "SIGKILL").pass("outbox-0.2", "polled", "evt_2")
			},
			want: `
        +0.0 ms  outbox-0.1  polled
        +1.0 ms  payments.1  received
        +2.0 ms  payments.1  claimed
        +3.0 ms  payments.1  died (SIGKILL)
        +4.0 ms  payments.2  received
        +5.0 ms  payments.2  claimed
        +6.0 ms  payments.2  charged
        +7.0 ms  payments.2  committed
        +8.0 ms  payments.2  answered
        +9.0 ms  outbox-0.1  worked
       +10.0 ms  outbox-0.1  committed
       +11.0 ms  outbox-0.1  acknowledged
       +12.0 ms  outbox-0.1  claimed@relay
       +13.0 ms  outbox-0.1  published@relay
       +14.0 ms  outbox-0.1  died (SIGKILL)

attempt outbox-0.1 left charge 1 at the third party
the relay of attempt outbox-0.1 left a record in topic picked at 0@1

evt_1 is once in http: attempt outbox-0.1 did it.
evt_1 is once in topic picked: the relay of attempt outbox-0.1 sent it and died (SIGKILL) after ` + "`published`, before `stamped`" + `.
`,
		},
		{
			name: "never delivered",
			kept: func() *kept { return newKept().pass("ack-0.1", guard, "evt_0").row("ack-0.1", "evt_0", "pick_tasks") },
			want: `
evt_1 is lost in pick_tasks: no attempt ever had it.
`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			text, _ := life(t, c.kept().Cell, "evt_1")
			require.Equal(t, strings.TrimPrefix(c.want, "\n"), text)
		})
	}
}

func TestEvents(t *testing.T) {
	k := newKept().pass("a-0.1", guard, "lost", "once", "twice", "aborted").
		row("a-0.1", "twice", "pick_tasks", "pick_tasks").
		row("a-0.1", "once", "pick_tasks").record("a-0.1", "once", false).
		row("a-0.1", "aborted", "pick_tasks").record("a-0.1", "aborted", true).
		row("a-0.1", "late", "pick_tasks").record("a-0.1", "first", false).ordered("A", 2).
		row("a-0.1", "first", "pick_tasks").record("a-0.1", "late", false).ordered("A", 1)
	troubled, others := k.Events()
	require.Equal(t, []string{"aborted", "late", "lost", "twice"}, troubled)
	require.Equal(t, []string{"first", "once"}, others)
	require.True(t, k.Knows("lost"))
	require.True(t, k.Knows("first"))
	require.False(t, k.Knows("evt_1"))
}

func TestRead(t *testing.T) {
	k := newKept().pass("none-0.1", "polled worked committed", "evt_1").end("none-0.1", "SIGKILL").row("none-0.1", "evt_1", "pick_tasks")
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, trace.Folder), 0o755))
	require.NoError(t, jsonl.Write(filepath.Join(dir, trace.Folder, "none-0.1.jsonl"), k.Passings))
	_, err := explain.Read(dir)
	require.ErrorIs(t, err, os.ErrNotExist, "without effects, everything would seem lost")
	require.NoError(t, audit.WriteEffects(dir, k.Effects))
	got, err := explain.Read(dir)
	require.NoError(t, err)
	require.Equal(t, explain.Cell{Passings: k.Passings, Effects: k.Effects}, got)
	require.NoError(t, trace.AppendIncident(dir, k.Incidents[0]))
	k.call("payments.1", "received answered", "evt_1").callEnd("payments.1", "SIGKILL")
	calls := filepath.Join(dir, trace.ThirdParty, trace.Folder)
	require.NoError(t, os.MkdirAll(calls, 0o755))
	require.NoError(t, jsonl.Write(filepath.Join(calls, "payments.1.jsonl"), k.Calls))
	require.NoError(t, trace.AppendIncident(filepath.Join(dir, trace.ThirdParty), k.CallIncidents[0]))
	got, err = explain.Read(dir)
	require.NoError(t, err)
	require.Equal(t, k.Cell, got)
}
