// Package sabotage builds the engines, the faults and the auditor wrong on purpose,
// one bug at a time, and sees to it that the matrix turns red. A harness that can't
// catch a bug that is known to be there is itself broken.
//
// A [Sabotage] is a change of source text. Its test writes the changed file to a
// temporary folder, builds cmd/compare with it through the go command's -overlay flag
// ("go help build"), and runs the one cell of the matrix that is to catch it, on
// services of its own. The cell must break as it says: the exit code is 1, and
// results.json has the outcome in the scope. The same cells must hold where nothing is
// changed. The sources themselves know nothing of it: there is no hook and no build
// tag.
//
// A few bugs no cell can tell: what they cost is not a lost nor a doubled effect, or it
// takes a moment that no fault from outside can hold. Of those a test of the changed
// package must fail, run with the same overlay.
//
// One by hand:
//
//	go test ./internal/sabotage -run 'TestSabotage/ack_before_commit' -v
package sabotage

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/delivered-twice/delivered-twice/internal/fault"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/matrix"
	"github.com/delivered-twice/delivered-twice/internal/report"
)

// Sabotage is one bug, and the cell of the matrix, or the test, that catches it.
type Sabotage struct {
	// Name is what its test is called: words with underscores between.
	Name string
	// Wrong is one line on what is wrong.
	Wrong string
	// File is the source file that is changed, from the root of the repository.
	File string
	// Old is what is replaced by New. It must be there exactly once: a sabotage that
	// no longer applies must not go unnoticed.
	Old, New string
	// Lane and Fault are the cell that must turn red.
	Lane  string
	Fault lane.Fault
	// Red is how.
	Red Red
	// Test is the test of File's package that must fail, where no cell can tell; "" for
	// all others.
	Test string
}

// Red is how a cell turns red: a claim that counts break, or a cell that can't be
// carried through.
type Red struct {
	// Scope is where the claim is broken.
	Scope lane.Scope
	// Outcome is that of some events there, although the claim does not allow it.
	// [lane.Once] is that of all, although the cell exists to show something.
	Outcome lane.Outcome
	// Failure is part of what the cell says in the end, where it fails and counts
	// nothing; "" where it counts.
	Failure string
}

// breaks is a claim that does not allow what is seen.
func breaks(s lane.Scope, o lane.Outcome) Red { return Red{Scope: s, Outcome: o} }

// showsNothing is a claim that wants something seen.
func showsNothing(s lane.Scope) Red { return Red{Scope: s, Outcome: lane.Once} }

// fails is a cell that ends with such a message.
func fails(message string) Red { return Red{Failure: message} }

// Check returns nil if the result is red as it should be, and an error that says how
// it is instead.
func (r Red) Check(result report.Result) error {
	if r.Failure != "" {
		if !strings.Contains(result.Failure, r.Failure) {
			return fmt.Errorf("the cell was to fail with %q, and says %q", r.Failure, result.Failure)
		}
		return nil
	}
	if result.Failure != "" {
		return fmt.Errorf("some events in scope %s were to be %s, but the cell fails: %s", r.Scope, r.Outcome, result.Failure)
	}
	s, counted := result.Scopes[r.Scope]
	switch {
	case !counted:
		return fmt.Errorf("nothing was counted in scope %s", r.Scope)
	case s.Held:
		return fmt.Errorf("the claim %q in scope %s held: %+v", s.Claim, r.Scope, s.Counts)
	case s.Of(r.Outcome) == 0, r.Outcome == lane.Once && s.Once != s.Expected:
		return fmt.Errorf("events in scope %s were to be %s: %+v", r.Scope, r.Outcome, s.Counts)
	}
	return nil
}

// Cell returns the cell that must turn red.
func (s Sabotage) Cell() (matrix.Cell, error) {
	l, err := lane.Find(s.Lane)
	if err != nil {
		return matrix.Cell{}, err
	}
	f, err := fault.Find(string(s.Fault))
	if err != nil {
		return matrix.Cell{}, err
	}
	return matrix.Cell{Lane: l, Fault: f, Seed: 1}, nil
}

// Overlay writes the changed file into dir and returns the file there that tells the
// go command about it. root is the root of the repository.
func (s Sabotage) Overlay(root, dir string) (string, error) {
	original := filepath.Join(root, s.File)
	source, err := os.ReadFile(original)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(source), s.Old); n != 1 {
		return "", fmt.Errorf("%s has the text to be replaced %d times, must be once: adapt sabotage %s to what the code is now:\n%s", s.File, n, s.Name, s.Old)
	}
	changed := filepath.Join(dir, filepath.Base(s.File))
	if err := os.WriteFile(changed, []byte(strings.Replace(string(source), s.Old, s.New, 1)), 0o644); err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, overlay, 0o644)
}

// Build builds cmd/compare into dir and returns the program. overlay is what
// [Sabotage.Overlay] has returned, "" for none. root is the root of the repository.
func Build(ctx context.Context, root, dir, overlay string) (string, error) {
	program := filepath.Join(dir, "compare")
	// Nobody debugs it: what a debugger needs is left out.
	build := exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-overlay="+overlay, "-o", program, "./cmd/compare")
	build.Dir = root
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, output)
	}
	return program, nil
}

// RunTest runs the sabotage's Test with what [Sabotage.Overlay] has returned, "" for
// none, and says whether it has failed. A test that was not run is an error.
func (s Sabotage) RunTest(ctx context.Context, root, overlay string) (failed bool, output string, err error) {
	run := exec.CommandContext(ctx, "go", "test", "-overlay="+overlay, "-vet=off", "-count=1", "-v", "-run=^"+s.Test+"$", "./"+filepath.Dir(s.File))
	run.Dir = root
	printed, err := run.CombinedOutput()
	output = string(printed)
	switch {
	case strings.Contains(output, "--- FAIL: "+s.Test+" "):
		return true, output, nil
	case err == nil && strings.Contains(output, "--- PASS: "+s.Test+" "):
		return false, output, nil
	}
	return false, output, fmt.Errorf("%s of %s was not run to its end (%v):\n%s", s.Test, filepath.Dir(s.File), err, output)
}
