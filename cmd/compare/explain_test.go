package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/audit"
	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/jsonl"
	"github.com/delivered-twice/delivered-twice/internal/trace"
)

// keepCell writes what a lane leaves behind of which attempt 1 died before it
// acknowledged evt_twice, and attempt 2 did that again.
func keepCell(t *testing.T, dir, instance string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, trace.Folder), 0o755))
	// The third party's are no lane's.
	require.NoError(t, os.MkdirAll(filepath.Join(dir, trace.ThirdParty, trace.Folder), 0o755))
	at := time.Date(2026, time.January, 5, 14, 2, 11, 0, time.UTC)
	pass := func(attempt string, events []string, steps ...string) {
		var passings []trace.Passing
		for _, step := range steps {
			at = at.Add(time.Millisecond)
			passings = append(passings, trace.Passing{At: at, Attempt: attempt, Step: step, Events: events})
		}
		require.NoError(t, jsonl.Write(filepath.Join(dir, trace.Folder, attempt+".jsonl"), passings))
	}
	first, second := instance+".1", instance+".2"
	pass(first, []string{"evt_twice"}, "polled", "worked", "committed")
	require.NoError(t, trace.AppendIncident(dir, trace.Incident{Attempt: first, What: "SIGKILL", Ended: true, At: at}))
	pass(second, []string{"evt_once", "evt_twice"}, "polled", "worked", "committed", "acknowledged")
	require.NoError(t, audit.WriteEffects(dir, []audit.Effect{
		{EventID: "evt_twice", Attempt: first, Where: "pick_tasks", Position: "1"},
		{EventID: "evt_once", Attempt: second, Where: "pick_tasks", Position: "2"},
		{EventID: "evt_twice", Attempt: second, Where: "pick_tasks", Position: "3"},
	}))
}

func TestExplain(t *testing.T) {
	dir := t.TempDir()
	keepCell(t, filepath.Join(dir, "none"), "none-0")
	keepCell(t, filepath.Join(dir, "shape"), "shape-0")

	t.Run("one lane", func(t *testing.T) {
		done := compare(t, nil, "explain", filepath.Join(dir, "none"), "evt_twice")
		require.Equal(t, cli.ExitOK, done.code, done.stderr)
		require.Contains(t, done.stdout, "evt_twice is duplicated in pick_tasks: attempt none-0.1 did it and died (SIGKILL) after `committed`, before `acknowledged`; attempt none-0.2 did it again.\n")
	})
	t.Run("every lane of a run", func(t *testing.T) {
		done := compare(t, nil, "explain", dir, "evt_twice")
		require.Equal(t, cli.ExitOK, done.code, done.stderr)
		require.Regexp(t, `(?s)^none\n.*attempt none-0\.2 did it again\.\n\nshape\n.*attempt shape-0\.2 did it again\.\n$`, done.stdout)
	})
	t.Run("an event that nobody knows", func(t *testing.T) {
		done := compare(t, nil, "explain", dir, "evt_onc")
		require.Equal(t, cli.ExitUnusable, done.code)
		require.Empty(t, done.stdout)
		require.Equal(t, "compare explain: "+dir+`: nothing is known of event "evt_onc"; lost, duplicated or reordered: evt_twice; the nearest: evt_once`+"\n", done.stderr)
	})
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"no event":                              {[]string{dir}, "usage: compare explain DIR EVENT_ID"},
		"no traces":                             {[]string{t.TempDir(), "evt_1"}, "there are no traces in"},
		"no folder":                             {[]string{filepath.Join(dir, "missing"), "evt_1"}, "there is no folder " + filepath.Join(dir, "missing") + ": name one"},
		"a file":                                {[]string{filepath.Join(dir, "none", audit.EffectsFile), "evt_1"}, "there is no folder"},
		"a broken cell":                         {[]string{filepath.Join(brokenCell(t), "broken"), "evt_1"}, "broken has no effects.jsonl"},
		"an event that may be in a broken cell": {[]string{brokenCell(t), "evt_1"}, "nothing is known"},
	} {
		t.Run(name, func(t *testing.T) {
			done := compare(t, nil, append([]string{"explain"}, c.args...)...)
			require.Equal(t, cli.ExitUnusable, done.code)
			require.Contains(t, done.stderr, c.says)
			require.Empty(t, done.stdout)
			if len(c.args) == 2 {
				require.Equal(t, 1, strings.Count(done.stderr, "\n"), "one line that helps: %s", done.stderr)
			}
		})
	}
	t.Run("beside a broken cell", func(t *testing.T) {
		dir := brokenCell(t)
		done := compare(t, nil, "explain", dir, "evt_twice")
		require.Equal(t, cli.ExitOK, done.code, done.stderr)
		require.Contains(t, done.stdout, "attempt fine-0.2 did it again")
		done = compare(t, nil, "explain", dir, "evt_1")
		require.Contains(t, done.stderr, "broken has no effects.jsonl")
	})
}

// brokenCell is a folder with a cell that was never audited, and with one that was.
func brokenCell(t *testing.T) string {
	dir := t.TempDir()
	keepCell(t, filepath.Join(dir, "fine"), "fine-0")
	keepCell(t, filepath.Join(dir, "broken"), "broken-0")
	require.NoError(t, os.Remove(filepath.Join(dir, "broken", audit.EffectsFile)))
	return dir
}

// A zombie stands still, is taken for dead, and goes on: that is what is told, and not that
// it died. It is the example of the README.
func TestExplainAZombie(t *testing.T) {
	dir := t.TempDir()
	done := compare(t, onSharedServices(t), "matrix", "--lane=select-first", "--fault=zombie", "--seed=1", "--keep", "--out="+dir)
	require.Equal(t, cli.ExitOK, done.code, done.stderr)
	cells, unaudited, err := keptCells(dir)
	require.NoError(t, err)
	require.Empty(t, unaudited)
	require.Len(t, cells, 1)
	troubled, others := cells[0].Events()
	require.NotEmpty(t, troubled)
	for _, id := range troubled {
		text, err := explained(cells, id)
		require.NoError(t, err)
		told := string(text)
		require.Regexp(t, `(?s)selectfirst-0\.1  stood still \(SIGSTOP\), as planned: selected:2:pause\n`+
			`.*selectfirst-1\.1  committed\n.*selectfirst-0\.1  woke up \(SIGCONT\)\n.*selectfirst-0\.1  committed\n`, told)
		require.Contains(t, told, id+" is duplicated in pick_tasks and loyalty_points: "+
			"attempt selectfirst-0.1 stood still (SIGSTOP) after `selected`, before `worked`; "+
			"attempt selectfirst-1.1 got it meanwhile and did it; "+
			"attempt selectfirst-0.1 woke up (SIGCONT)")
		require.Contains(t, told, "did it again")
		require.NotContains(t, told, "died")
	}
	told := compare(t, nil, "explain", dir, others[0])
	require.Equal(t, cli.ExitOK, told.code, told.stderr)
	require.Contains(t, told.stdout, others[0]+" is once in pick_tasks and loyalty_points")
}
