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

func (k *kept) end(attempt, how string) *kept {
	k.Endings = append(k.Endings, trace.Ending{Attempt: attempt, How: how, At: k.tick()})
	return k
}

// row adds rows of one event in tables.
func (k *kept) row(attempt, event string, tables ...string) *kept {
	for _, table := range tables {
		k.Effects = append(k.Effects, audit.Effect{EventID: event, Attempt: attempt, Where: table, Position: fmt.Sprint(len(k.Effects) + 1)})
	}
	return k
}

func (k *kept) record(attempt, event string, aborted bool) *kept {
	k.Effects = append(k.Effects, audit.Effect{EventID: event, Attempt: attempt, Where: "picked", Position: fmt.Sprintf("0@%d", len(k.Effects)), Aborted: aborted})
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
				pass("none-0.1", "polled worked committed", "evt_1", "evt_2").end("none-0.1", "SIGKILL").
				row("none-0.1", "evt_1", "pick_tasks", "loyalty_points").
				pass("none-0.2", guard, "evt_1", "evt_2").row("none-0.2", "evt_1", "pick_tasks", "loyalty_points"),
			want: []string{"evt_1 is duplicated in pick_tasks and loyalty_points: attempt none-0.1 died after `committed`, before `acknowledged`; " +
				"attempt none-0.2 did it again."},
		},
		{
			name: "the same where nobody noted the death",
			kept: newKept().pass("none-0.1", guard, "evt_0").pass("none-0.1", "polled worked committed", "evt_1").row("none-0.1", "evt_1", "pick_tasks").
				pass("none-0.2", guard, "evt_1").row("none-0.2", "evt_1", "pick_tasks"),
			want: []string{"evt_1 is duplicated in pick_tasks: attempt none-0.1 died after `committed`, before `acknowledged`; attempt none-0.2 did it again."},
		},
		{
			name: "the attempt that did it again died, too",
			kept: newKept().pass("none-0.1", guard, "evt_0").pass("none-0.1", "polled worked committed", "evt_1").end("none-0.1", "SIGKILL").
				pass("none-0.2", "polled worked committed", "evt_1").end("none-0.2", "SIGKILL").
				pass("none-0.3", guard, "evt_1").
				row("none-0.1", "evt_1", "pick_tasks").row("none-0.2", "evt_1", "pick_tasks").row("none-0.3", "evt_1", "pick_tasks"),
			want: []string{"evt_1 is duplicated in pick_tasks: attempt none-0.1 died after `committed`, before `acknowledged`; " +
				"attempt none-0.2 did it again and died after `committed`, before `acknowledged`; attempt none-0.3 did it again."},
		},
		{
			name: "one handler was further than the other",
			kept: newKept().pass("inbox-0.1", "polled begun@warehouse worked@warehouse committed@warehouse acknowledged", "evt_0").
				pass("inbox-0.1", "polled begun@warehouse begun@loyalty worked@warehouse worked@loyalty committed@warehouse", "evt_1").end("inbox-0.1", "SIGKILL").
				pass("inbox-0.2", "polled begun@warehouse begun@loyalty worked@loyalty committed@loyalty acknowledged", "evt_1").
				row("inbox-0.1", "evt_1", "pick_tasks").row("inbox-0.2", "evt_1", "loyalty_points"),
			want: []string{
				"evt_1 is once in pick_tasks: attempt inbox-0.1 did it and died after `worked@loyalty` and `committed@warehouse`, before `committed` and `acknowledged`; " +
					"attempt inbox-0.2 was given it, too, and left nothing there.",
				"evt_1 is once in loyalty_points: attempt inbox-0.2 did it; attempt inbox-0.1 died after `worked@loyalty` and `committed@warehouse`, before `committed` and `acknowledged`, and left nothing there.",
			},
		},
		{
			name: "a publisher sent it twice, in one batch",
			kept: newKept().pass("eos-0.1", eos, "evt_1", "evt_2", "evt_1").row("eos-0.1", "evt_1", "pick_tasks", "pick_tasks").end("eos-0.1", "SIGTERM"),
			want: []string{"evt_1 is duplicated in pick_tasks: attempt eos-0.1 did it 2 times, as it was delivered to it 2 times."},
		},
		{
			name: "a zombie",
			kept: newKept().pass("none-0.1", guard, "evt_0").pass("none-0.1", "polled", "evt_1").end("none-0.1", "SIGSTOP").
				pass("none-1.1", guard, "evt_1").end("none-0.1", "SIGCONT").pass("none-0.1", "worked committed acknowledged", "evt_1").
				row("none-1.1", "evt_1", "pick_tasks").row("none-0.1", "evt_1", "pick_tasks"),
			want: []string{"evt_1 is duplicated in pick_tasks: attempt none-0.1 was stopped (SIGSTOP) after `polled`, before `worked`, and went on later; attempt none-1.1 did it again."},
		},
		{
			name: "stopped with other events, before and after",
			kept: newKept().pass("none-0.1", "polled", "evt_0").end("none-0.1", "SIGSTOP").pass("none-0.1", "worked committed acknowledged", "evt_0").
				pass("none-0.1", guard, "evt_1").row("none-0.1", "evt_1", "pick_tasks").
				pass("none-0.1", "polled", "evt_2").end("none-0.1", "SIGSTOP").pass("none-0.1", "worked committed acknowledged", "evt_2"),
			want: []string{"evt_1 is once in pick_tasks: attempt none-0.1 did it."},
		},
		{
			name: "acknowledged before it was done",
			kept: newKept().pass("ack-0.1", "polled acknowledged worked committed", "evt_0").row("ack-0.1", "evt_0", "pick_tasks").
				pass("ack-0.1", "polled acknowledged", "evt_1").end("ack-0.1", "SIGKILL").
				pass("ack-0.2", "polled acknowledged worked committed", "evt_2"),
			want: []string{"evt_1 is lost in pick_tasks: no attempt passed `worked` or `committed` with it; attempt ack-0.1 died after `acknowledged`, before `worked`."},
		},
		{
			name: "skipped by an attempt that believed it done",
			kept: newKept().pass("redis-0.1", "polled claimed worked committed acknowledged", "evt_0").row("redis-0.1", "evt_0", "pick_tasks").
				pass("redis-0.1", "polled claimed", "evt_1").end("redis-0.1", "SIGKILL").
				pass("redis-0.2", "polled acknowledged", "evt_1"),
			want: []string{"evt_1 is lost in pick_tasks: no attempt passed `worked` or `committed` with it; " +
				"attempt redis-0.1 died after `claimed`, before `worked`; attempt redis-0.2 passed `polled` and `acknowledged`."},
		},
		{
			name: "never delivered",
			kept: newKept().pass("ack-0.1", guard, "evt_0").row("ack-0.1", "evt_0", "pick_tasks"),
			want: []string{"evt_1 is lost in pick_tasks: no attempt passed any step with it."},
		},
		{
			name: "committed, and gone",
			kept: newKept().pass("async-0.1", guard, "evt_1").row("async-0.1", "evt_0", "pick_tasks"),
			want: []string{"evt_1 is lost in pick_tasks: every step up to `acknowledged` was passed with it, so it was stored as a dead letter, " +
				"or what had been done was undone later; attempt async-0.1 passed `polled`, `worked`, `committed` and `acknowledged`."},
		},
		{
			name: "an aborted attempt, and what it did outside",
			kept: newKept().pass("eos-0.1", eos, "evt_0").
				pass("eos-0.1", "polled handled produced", "evt_1").end("eos-0.1", "SIGKILL").record("eos-0.1", "evt_1", true).
				pass("eos-0.2", eos, "evt_1").record("eos-0.2", "evt_1", false).
				row("eos-0.1", "evt_1", "pick_tasks").row("eos-0.2", "evt_1", "pick_tasks"),
			want: []string{
				"evt_1 is aborted-visible in topic picked: attempt eos-0.1 left an aborted record and died after `produced`, before `offsets-sent`; the one that counts is by attempt eos-0.2.",
				"evt_1 is duplicated in pick_tasks: attempt eos-0.1 died after `produced`, before `offsets-sent`; attempt eos-0.2 did it again.",
			},
		},
		{
			name: "charged three times, as two answers were lost",
			kept: newKept().pass("inbox-0.1", guard, "evt_1").row("inbox-0.1", "evt_1", "pick_tasks", "http", "http", "http").
				call("payments.1", "received charged", "evt_0").
				call("payments.1", "received charged committed", "evt_1").call("payments.1", "received charged committed", "evt_1").
				call("payments.2", "received charged committed answered", "evt_1"),
			want: []string{
				"evt_1 is once in pick_tasks: attempt inbox-0.1 did it.",
				"evt_1 is duplicated in http: attempt inbox-0.1 did it 3 times; the third party, payments.1, gave no answer after `committed`; " +
					"the third party, payments.1, gave no answer after `committed`.",
			},
		},
		{
			name: "charged again by another attempt",
			kept: newKept().pass("inbox-0.1", guard, "evt_0").pass("inbox-0.1", "polled worked", "evt_1").end("inbox-0.1", "SIGKILL").row("inbox-0.1", "evt_1", "http").
				pass("inbox-0.2", guard, "evt_1").row("inbox-0.2", "evt_1", "http").
				call("payments.1", "received committed answered received committed answered", "evt_1"),
			want: []string{"evt_1 is duplicated in http: attempt inbox-0.1 died after `worked`, before `committed`; attempt inbox-0.2 did it again."},
		},
		{
			name: "only aborted",
			kept: newKept().pass("eos-0.1", eos, "evt_0").record("eos-0.1", "evt_0", false).
				pass("eos-0.1", "polled handled produced", "evt_1").end("eos-0.1", "SIGKILL").record("eos-0.1", "evt_1", true),
			want: []string{"evt_1 is lost in topic picked: no attempt passed `offsets-sent` or `committed` with it; " +
				"attempt eos-0.1 died after `produced`, before `offsets-sent`, and left an aborted record."},
		},
		{
			name: "overtaken",
			kept: newKept().pass("inbox-1.1", guard, "evt_2").row("inbox-1.1", "evt_2", "pick_tasks").ordered("ord_1", 2).
				pass("inbox-0.1", guard, "evt_1").row("inbox-0.1", "evt_1", "pick_tasks").ordered("ord_1", 1),
			want: []string{
				"evt_1 is once in pick_tasks: attempt inbox-0.1 did it.",
				"evt_1 is reordered in pick_tasks: it is event 1 of ord_1, and event 2 of it, evt_2, was there before: " +
					"row 1 in pick_tasks by attempt inbox-1.1, and only then row 2 in pick_tasks by attempt inbox-0.1.",
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
			kept: newKept().pass("eos-0.1", eos, "evt_1").end("eos-0.1", "SIGKILL").record("eos-0.1", "evt_1", false).pass("eos-0.2", eos, "evt_2"),
			want: []string{"evt_1 is once in topic picked: attempt eos-0.1 did it and died after `committed`."},
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

func TestTimeline(t *testing.T) {
	k := newKept().pass("none-0.1", guard, "evt_0").
		pass("none-0.1", "polled worked@warehouse committed@warehouse", "evt_1", "evt_2", "evt_1").end("none-0.1", "SIGKILL").
		row("none-0.1", "evt_1", "pick_tasks").record("none-0.1", "evt_1", true)
	k.now = k.now.Add(1200 * time.Millisecond)
	k.pass("none-0.2", "polled acknowledged", "evt_1").pass("none-0.2", guard, "evt_9").end("none-0.2", "SIGTERM")
	text, _ := life(t, k.Cell, "evt_1")
	before, _, _ := strings.Cut(text, "\n\n")
	require.Equal(t, strings.Trim(`
attempt none-0.1
        +0.0 ms  polled, 2 times in one batch
        +1.0 ms  worked@warehouse, 2 times in one batch
        +2.0 ms  committed@warehouse, 2 times in one batch
        +3.0 ms  died of SIGKILL
                 left row 1 in pick_tasks and an aborted record in topic picked at 0@1
attempt none-0.2
     +1204.0 ms  polled
     +1205.0 ms  acknowledged
                 left nothing`, "\n"), before)
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
	require.NoError(t, trace.AppendEnding(dir, k.Endings[0]))
	k.call("payments.1", "received answered", "evt_1")
	calls := filepath.Join(dir, trace.ThirdParty, trace.Folder)
	require.NoError(t, os.MkdirAll(calls, 0o755))
	require.NoError(t, jsonl.Write(filepath.Join(calls, "payments.1.jsonl"), k.Calls))
	got, err = explain.Read(dir)
	require.NoError(t, err)
	require.Equal(t, k.Cell, got)
}
