package sabotage_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/report"
	"github.com/delivered-twice/delivered-twice/internal/sabotage"
)

func TestSabotage(t *testing.T) {
	root := repository(t)
	for _, s := range sabotage.All() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			defer enter()()
			dir := t.TempDir()
			overlay, err := s.Overlay(root, dir)
			require.NoError(t, err)
			if s.Test != "" {
				failed, output, err := s.RunTest(t.Context(), root, overlay)
				require.NoError(t, err)
				require.True(t, failed, "%s, and %s does not fail:\n%s", s.Wrong, s.Test, output)
				return
			}
			cell, err := s.Cell()
			require.NoError(t, err)
			program, err := sabotage.Build(t.Context(), root, dir, overlay)
			require.NoError(t, err)

			code, results, output := matrix(t, program, dir, "--lane="+cell.Lane.Slug(), "--fault="+cell.Fault.Slug())
			require.Equal(t, 1, code, "%s, and %s does not turn red:\n%s", s.Wrong, cell, output)
			require.Len(t, results, 1)
			require.NoError(t, s.Red.Check(results[0]), "%s\n%s", s.Wrong, output)
		})
	}
}

// The same cells hold where nothing is changed: it is the sabotage that turns them
// red.
func TestUnchanged(t *testing.T) {
	dir, root := t.TempDir(), repository(t)
	program, err := sabotage.Build(t.Context(), root, dir, "")
	require.NoError(t, err)
	for f, lanes := range lanesByFault(t) {
		t.Run(f, func(t *testing.T) {
			t.Parallel()
			defer enter()()
			args := []string{"--fault=" + f}
			for _, l := range lanes {
				args = append(args, "--lane="+l)
			}
			code, results, output := matrix(t, program, t.TempDir(), args...)
			require.Zero(t, code, output)
			require.Len(t, results, len(lanes))
			for _, r := range results {
				require.Empty(t, r.NotApplicable, "%s under %s", r.Lane, r.Fault)
				require.True(t, r.Held(), "%s under %s", r.Lane, r.Fault)
			}
		})
	}
}

// lanesByFault are the cells that sabotages are caught by, each once.
func lanesByFault(t *testing.T) map[string][]string {
	cells := make(map[string][]string)
	for _, s := range sabotage.All() {
		if s.Test != "" {
			continue // it is run with its package
		}
		cell, err := s.Cell()
		require.NoError(t, err)
		if f := cell.Fault.Slug(); !slices.Contains(cells[f], cell.Lane.Slug()) {
			cells[f] = append(cells[f], cell.Lane.Slug())
		}
	}
	return cells
}

// A sabotage that no longer fits the code must not go unnoticed.
func TestOverlay(t *testing.T) {
	for name, source := range map[string]string{
		"gone":  "package a\n",
		"twice": "package a // right right\n",
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(root, "a.go"), []byte(source), 0o644))
			_, err := sabotage.Sabotage{Name: "x", File: "a.go", Old: "right", New: "wrong"}.Overlay(root, t.TempDir())
			require.ErrorContains(t, err, "must be once")
		})
	}
}

// A cell that is red for another reason than the sabotage's is no proof.
func TestRedCheck(t *testing.T) {
	broken := func(n lane.Counts) report.Result {
		return report.Result{Scopes: map[lane.Scope]report.Scope{lane.Postgres: {Counts: n}}}
	}
	lost := sabotage.Red{Scope: lane.Postgres, Outcome: lane.Lost}
	nothing := sabotage.Red{Scope: lane.Postgres, Outcome: lane.Once}
	failed := sabotage.Red{Failure: "dead letters"}
	for name, c := range map[string]struct {
		red    sabotage.Red
		result report.Result
		as     bool // it should
	}{
		"lost":                      {lost, broken(lane.Counts{Expected: 2, Once: 1, Lost: 1}), true},
		"another outcome":           {lost, broken(lane.Counts{Expected: 2, Once: 1, Duplicated: 1}), false},
		"lost as claimed":           {lost, report.Result{Scopes: map[lane.Scope]report.Scope{lane.Postgres: {Held: true, Counts: lane.Counts{Expected: 1, Lost: 1}}}}, false},
		"another scope":             {sabotage.Red{Scope: lane.Kafka, Outcome: lane.Lost}, broken(lane.Counts{Expected: 1, Lost: 1}), false},
		"counted nothing":           {lost, report.Result{Failure: "the broker is gone"}, false},
		"shows nothing":             {nothing, broken(lane.Counts{Expected: 2, Once: 2}), true},
		"shows something":           {nothing, broken(lane.Counts{Expected: 2, Once: 1, Lost: 1}), false},
		"fails":                     {failed, report.Result{Failure: "0 dead letters"}, true},
		"fails with something else": {failed, report.Result{Failure: "the broker is gone"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.red.Check(c.result)
			require.Equal(t, c.as, err == nil, "%v", err)
		})
	}
}

// parallel is how many programs are built and run at the same time: each has a Kafka
// and a Postgres of its own. It is more than a small machine has cores, because some
// only wait until a timeout is over.
const parallel = 3

var places = make(chan struct{}, parallel)

// enter waits for a place, and returns what leaves it.
func enter() (leave func()) {
	places <- struct{}{}
	return func() { <-places }
}

// repository is its root, as the go command names it.
func repository(t *testing.T) string {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(root, "go.mod"))
	return root
}

// matrix runs cells on services that the program starts itself, whatever the
// environment names, and returns its exit code and what it has printed.
func matrix(t *testing.T, program, dir string, args ...string) (code int, results []report.Result, output string) {
	out := filepath.Join(dir, "out")
	cmd := exec.CommandContext(t.Context(), program, append([]string{"matrix", "--json", "--out=" + out}, args...)...)
	cmd.Dir = dir
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); !slices.Contains([]string{"KAFKA_BROKERS", "DATABASE_URL", "REDIS_URL"}, name) {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	var printed bytes.Buffer
	cmd.Stdout, cmd.Stderr = &printed, &printed
	// It puts its services away when it is told to end.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	err := cmd.Run()
	output = fmt.Sprintf("%s %s\n%s", filepath.Base(program), strings.Join(cmd.Args[1:], " "), printed.String())
	if cmd.ProcessState == nil {
		require.NoError(t, err)
	}
	code = cmd.ProcessState.ExitCode()
	if code > 1 || code < 0 {
		return code, nil, output
	}
	r, err := report.Read(out)
	require.NoError(t, err, output)
	return code, r.Results, output
}

// Every cell is one that exists, and every name can be a test's.
func TestCatalogue(t *testing.T) {
	names := make(map[string]bool)
	for _, s := range sabotage.All() {
		require.Regexp(t, `^[a-z_]+$`, s.Name)
		require.False(t, names[s.Name], "two are named %s", s.Name)
		names[s.Name] = true
		_, err := s.Overlay(repository(t), t.TempDir())
		require.NoError(t, err)
		if s.Test != "" {
			require.Empty(t, s.Lane+string(s.Fault)+string(s.Red.Scope)+s.Red.Failure, "%s is caught by a test", s.Name)
			continue
		}
		cell, err := s.Cell()
		require.NoError(t, err)
		if s.Red.Failure == "" {
			_, claimed := cell.Lane.Claim(cell.Fault.Name, s.Red.Scope)
			require.True(t, claimed, "%s claims nothing of %s", cell, s.Red.Scope)
		}
	}
}
