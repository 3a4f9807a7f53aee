package main

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/fault"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/process"
	"github.com/delivered-twice/delivered-twice/internal/report"
)

// What is typed wrong is told before anything is started.
func TestMatrixUsage(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		says []string
	}{
		"unknown lane":          {[]string{"--lane=inbx"}, []string{`"inbx"`, "nearest", "inbox"}},
		"unknown fault":         {[]string{"--fault=zombi"}, []string{`"zombi"`, "nearest", "zombie"}},
		"nothing like a lane":   {[]string{"--lane=qqqqqq"}, []string{`no lane "qqqqqq"; compare lanes lists all`}},
		"nothing like a fault":  {[]string{"--fault="}, []string{`no fault ""; compare faults lists all`}},
		"far too many at once":  {[]string{"--parallel=1000000000"}, []string{"--parallel is 1000000000"}},
		"no cell at a time":     {[]string{"--parallel=0"}, []string{"--parallel is 0"}},
		"a soak into the past":  {[]string{"--soak=-1s"}, []string{"--soak is -1s"}},
		"a quick soak":          {[]string{"--soak=1m", "--quick"}, []string{"--soak", "--quick"}},
		"unknown Kafka":         {[]string{"--kafka=franz"}, []string{`"franz"`}},
		"an argument":           {[]string{"inbox"}, []string{`"inbox"`}},
		"nothing that could be": {[]string{"--lane=inbox", "--fault=endtxn-cut"}, []string{"inbox under EndTxn cut", "no Kafka transaction"}},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"matrix", "--out=" + t.TempDir()}, c.args...)
			done := compare(t, onSharedServices(t), args...)
			require.Equal(t, cli.ExitUnusable, done.code, done.stderr)
			for _, says := range append(c.says, "usage:") {
				require.Contains(t, done.stderr, says)
			}
			require.Empty(t, done.stdout)
		})
	}
}

func TestMatrix(t *testing.T) {
	dir := t.TempDir()
	done := compare(t, onSharedServices(t), "matrix", "--lane=at-least-once", "--lane=inbox", "--lane=kafka eos",
		"--fault=kill-9", "--fault=EndTxn cut", "--seed=7", "--json", "--out="+dir)
	require.Equal(t, cli.ExitOK, done.code, done.stderr)
	kept, err := report.Read(dir)
	require.NoError(t, err)
	var shown report.Report
	require.NoError(t, json.Unmarshal([]byte(done.stdout), &shown), "stdout is results.json and nothing else")
	require.Equal(t, kept, shown)

	require.True(t, kept.OfMatrix())
	require.NotContains(t, done.stdout, `"plan"`)
	require.Len(t, kept.Results, 6)
	found := make(map[string]report.Result)
	for _, result := range kept.Results {
		found[result.Lane+"/"+string(result.Fault)] = result
		require.True(t, result.Held())
		require.Empty(t, result.Folder, "a cell that held leaves nothing behind")
	}
	require.Positive(t, found["at-least-once/kill -9"].Scopes[lane.Postgres].Duplicated)
	held := found["inbox/kill -9"]
	require.GreaterOrEqual(t, held.Injections, 18, "six steps, three passings")
	require.Equal(t, held.Events, held.Scopes[lane.Postgres].Once)
	require.Equal(t, held.Events, held.Scopes[lane.Order].Once)
	require.NotEmpty(t, found["inbox/EndTxn cut"].NotApplicable)
	require.Empty(t, found["kafka eos/EndTxn cut"].NotApplicable)
	entries, err := os.ReadDir(filepath.Join(dir, "cells"))
	if err == nil {
		require.Empty(t, entries)
	}
}

// Whoever interrupts a matrix gets what it has found until then, and nothing is left on
// the services.
func TestMatrixInterrupted(t *testing.T) {
	const ofMatrices = "dt_"
	before := left(t, ofMatrices)
	dir := t.TempDir()
	cmd := process.Command(role, "matrix", "--lane=inbox", "--parallel=1", "--out="+dir)
	cmd.Env = append(cmd.Environ(), onSharedServices(t)...)
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(stderr)
	for lines.Scan() && !strings.Contains(lines.Text(), "inbox under none: held") {
	}
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	said := ""
	for lines.Scan() {
		said = lines.Text()
	}
	require.Error(t, cmd.Wait())
	require.Equal(t, cli.ExitUnusable, cmd.ProcessState.ExitCode(), said)
	require.Contains(t, said, "interrupted")
	require.Equal(t, before, left(t, ofMatrices))
	kept, err := report.Read(dir)
	require.NoError(t, err)
	require.NotEmpty(t, kept.Results)
	require.Less(t, len(kept.Results), len(fault.All()))
	for _, result := range kept.Results {
		require.True(t, result.NotApplicable != "" || result.Held(), "%+v", result)
	}
}

func TestCatalogues(t *testing.T) {
	lanes, faults := compare(t, nil, "lanes"), compare(t, nil, "faults")
	require.Equal(t, cli.ExitOK, lanes.code)
	require.Equal(t, cli.ExitOK, faults.code)
	for _, l := range lane.All() {
		require.Contains(t, lanes.stdout, l.Slug())
	}
	for _, f := range fault.All() {
		require.Contains(t, faults.stdout, f.Slug())
	}
	for line := range strings.Lines(lanes.stdout + faults.stdout) {
		require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 100, line)
	}
}

// The README's table is what docs/matrix was measured to be.
func TestREADMEHasTheMatrix(t *testing.T) {
	root := filepath.Join("..", "..")
	measured, err := report.Read(filepath.Join(root, "docs", "matrix"))
	require.NoError(t, err)
	page, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	generated, err := measured.Embed(page)
	require.NoError(t, err)
	require.Equal(t, string(generated), string(page), "run: go run ./cmd/compare report docs/matrix --page README.md")
	require.True(t, measured.Held())
}
