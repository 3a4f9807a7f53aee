package main

import (
	"os"
	"path/filepath"
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
	require.NoError(t, trace.AppendEnding(dir, trace.Ending{Attempt: first, How: "SIGKILL", At: at}))
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
		require.Contains(t, done.stdout, "evt_twice is duplicated in pick_tasks: attempt none-0.1 died after `committed`, before `acknowledged`; attempt none-0.2 did it again.\n")
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
		"no event":      {[]string{dir}, "usage: compare explain DIR EVENT_ID"},
		"no traces":     {[]string{t.TempDir(), "evt_1"}, `there is no folder "traces"`},
		"no folder":     {[]string{filepath.Join(dir, "missing"), "evt_1"}, "missing"},
		"a broken cell": {[]string{brokenCell(t), "evt_1"}, "effects.jsonl"},
	} {
		t.Run(name, func(t *testing.T) {
			done := compare(t, nil, append([]string{"explain"}, c.args...)...)
			require.Equal(t, cli.ExitUnusable, done.code)
			require.Contains(t, done.stderr, c.says)
			require.Empty(t, done.stdout)
		})
	}
}

// brokenCell is one that was never audited.
func brokenCell(t *testing.T) string {
	dir := t.TempDir()
	keepCell(t, dir, "none-0")
	require.NoError(t, os.Remove(filepath.Join(dir, audit.EffectsFile)))
	return dir
}
