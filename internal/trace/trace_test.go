package trace_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/trace"
)

// writer is the one of an attempt, and path its file.
func writer(t *testing.T, dir, attempt string) (w *trace.Writer, path string) {
	t.Helper()
	path = filepath.Join(dir, attempt+".jsonl")
	t.Setenv(trace.Variable, path)
	w, err := trace.FromEnv(attempt)
	require.NoError(t, err)
	return w, path
}

func TestWhatWasWrittenIsRead(t *testing.T) {
	w, path := writer(t, t.TempDir(), "inbox-0.1")
	before := time.Now()
	require.NoError(t, w.Pass("polled", "", []string{"evt_1", "evt_2"}))
	require.NoError(t, w.Pass("worked", "warehouse", []string{"evt_2"}))
	require.NoError(t, w.Pass("acknowledged", "", nil))
	got, err := trace.Read(path)
	require.NoError(t, err)
	for i := range got {
		require.WithinRange(t, got[i].At, before.Round(0), time.Now())
		got[i].At = time.Time{}
	}
	require.Equal(t, []trace.Passing{
		{Attempt: "inbox-0.1", Step: "polled", Events: []string{"evt_1", "evt_2"}},
		{Attempt: "inbox-0.1", Step: "worked", Handler: "warehouse", Events: []string{"evt_2"}},
		{Attempt: "inbox-0.1", Step: "acknowledged"},
	}, got)
}

func TestNoVariableNoTrace(t *testing.T) {
	t.Setenv(trace.Variable, "")
	w, err := trace.FromEnv("inbox-0.1")
	require.NoError(t, err)
	require.NoError(t, w.Pass("polled", "", []string{"evt_1"}))
}

func TestAFileThatCannotBeWritten(t *testing.T) {
	t.Setenv(trace.Variable, filepath.Join(t.TempDir(), "missing", "trace.jsonl"))
	_, err := trace.FromEnv("inbox-0.1")
	require.ErrorContains(t, err, trace.Variable)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestReadDirMergesByTimeAndLeavesHalfLinesOut(t *testing.T) {
	dir := t.TempDir()
	first, path := writer(t, dir, "inbox-1.1")
	second, _ := writer(t, dir, "inbox-0.1")
	require.NoError(t, first.Pass("polled", "", []string{"evt_1"}))
	require.NoError(t, second.Pass("polled", "", []string{"evt_2"}))
	require.NoError(t, first.Pass("worked", "", []string{"evt_1"}))
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteString(`{"at":"2026-01-05T14:02:11Z","attempt":"inbox-1.1","st`)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "inbox-1.1.log"), []byte("no trace"), 0o600))

	got, err := trace.ReadDir(dir)
	require.NoError(t, err)
	var order []string
	for _, p := range got {
		order = append(order, p.Attempt+" "+p.Step)
	}
	require.Equal(t, []string{"inbox-1.1 polled", "inbox-0.1 polled", "inbox-1.1 worked"}, order)

	require.NoError(t, os.WriteFile(filepath.Join(dir, "odd.jsonl"), []byte("no trace\n"), 0o600))
	_, err = trace.ReadDir(dir)
	require.ErrorContains(t, err, "odd.jsonl, line 1")
}

func TestIncidents(t *testing.T) {
	dir := t.TempDir()
	got, err := trace.ReadIncidents(dir)
	require.NoError(t, err)
	require.Empty(t, got)
	at := time.Date(2026, time.January, 5, 14, 2, 11, 0, time.UTC)
	kill := trace.Incident{At: at.Add(time.Second), Attempt: "inbox-0.1", What: "SIGKILL", Ended: true, Plan: "committed:2:kill"}
	poison := trace.Incident{At: at, What: "it was sent as poison", Events: []string{"poison_1"}}
	require.NoError(t, trace.AppendIncident(dir, kill))
	require.NoError(t, trace.AppendIncident(dir, poison))
	got, err = trace.ReadIncidents(dir)
	require.NoError(t, err)
	require.Equal(t, []trace.Incident{poison, kill}, got, "the earliest first")
	require.Error(t, trace.AppendIncident(filepath.Join(dir, "missing"), kill))
}
