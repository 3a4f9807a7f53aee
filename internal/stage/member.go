package stage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/delivered-twice/delivered-twice/internal/failpoint"
	"github.com/delivered-twice/delivered-twice/internal/process"
	"github.com/delivered-twice/delivered-twice/internal/trace"
)

// Launch says which process to start.
type Launch struct {
	// Role is the program to be (see package process), with its arguments and what
	// is added to its environment.
	Role string
	Args []string
	Env  []string
	// Attempt names the incarnation: the program signs effects with it, and its log
	// and its trace are named after it.
	Attempt string
	// Failpoint is a planned mishap; nil plans none.
	Failpoint *failpoint.Failpoint
	// Dir is the folder for logs and traces.
	Dir string
}

// Folders below a launch's or a stage's.
const (
	LogsDir   = "logs"
	TracesDir = trace.Folder
)

// Member is one incarnation of one member of a pipeline's group: a process.
type Member struct {
	Attempt string

	cmd        *process.Cmd
	dir        string
	log, trace string
	planned    *failpoint.Failpoint
	killed     atomic.Bool // by whoever started it, and not by itself
	ended      chan struct{}
	err        error // of Wait; to be read after ended is closed
}

// Start starts a process. Somebody must see that it ends: nothing here does. What signals
// it gets through its methods and how it ends is kept in the launch's folder, beside its
// trace, for whoever explains later what happened.
func Start(l Launch) (*Member, error) {
	for _, dir := range []string{LogsDir, TracesDir} {
		if err := os.MkdirAll(filepath.Join(l.Dir, dir), 0o755); err != nil {
			return nil, err
		}
	}
	m := &Member{
		Attempt: l.Attempt,
		dir:     l.Dir,
		planned: l.Failpoint,
		log:     filepath.Join(l.Dir, LogsDir, l.Attempt+".log"),
		trace:   filepath.Join(l.Dir, TracesDir, l.Attempt+".jsonl"),
		ended:   make(chan struct{}),
	}
	log, err := os.Create(m.log)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own copy
	m.cmd = process.Command(l.Role, append(l.Args, "--attempt="+l.Attempt)...)
	m.cmd.Stderr = log
	m.cmd.Env = append(os.Environ(), l.Env...)
	m.cmd.Env = append(m.cmd.Env, trace.Variable+"="+m.trace)
	if l.Failpoint != nil {
		m.cmd.Env = append(m.cmd.Env, failpoint.Variable+"="+l.Failpoint.String())
	}
	if err := m.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(m.ended)
		m.err = m.cmd.Wait()
		// Nobody is left to be told if it fails.
		_ = m.keep(trace.Incident{What: cmp.Or(m.ending(), trace.Exit), Ended: true})
	}()
	return m, nil
}

// Ended is closed when the process is gone.
func (m *Member) Ended() <-chan struct{} { return m.ended }

// Wait waits until the process is gone and returns how it ended: "" where it exited
// with 0, else "SIGKILL" or another signal's name, or "exit 2: " and its last words.
func (m *Member) Wait(ctx context.Context) (how string, err error) {
	select {
	case <-m.ended:
		return m.ending(), nil
	case <-ctx.Done():
		return "", fmt.Errorf("wait for the end of %s: %w", m.Attempt, ctx.Err())
	}
}

func (m *Member) ending() string {
	var exit *exec.ExitError
	switch {
	case m.err == nil:
		return ""
	case !errors.As(m.err, &exit):
		return m.err.Error()
	}
	switch status := exit.Sys().(syscall.WaitStatus); {
	case status.Signaled() && status.Signal() == syscall.SIGKILL:
		return Killed
	case status.Signaled():
		return status.Signal().String()
	default:
		return fmt.Sprintf("exit %d: %s", status.ExitStatus(), m.lastWords())
	}
}

// Killed is how a process ends that gets a SIGKILL.
const Killed = "SIGKILL"

// Running says whether the process is there.
func (m *Member) Running() bool {
	select {
	case <-m.ended:
		return false
	default:
		return true
	}
}

// Signal sends the process a SIGKILL, SIGSTOP or SIGCONT. One that is gone already is no
// error. For SIGTERM see [Member.Terminate].
func (m *Member) Signal(s syscall.Signal) error {
	if !m.Running() {
		return nil
	}
	name, kept := signals[s], error(nil)
	switch s {
	case syscall.SIGKILL:
		m.killed.Store(true) // it is kept as an ending
	case syscall.SIGSTOP:
	default: // what it does then comes later
		kept = m.keep(trace.Incident{What: name})
	}
	if err := m.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %s to %s: %w", name, m.Attempt, err)
	}
	if s == syscall.SIGSTOP { // what it did until then came earlier
		kept = m.keep(trace.Incident{What: name})
	}
	return kept
}

// keep keeps what happens to it now.
func (m *Member) keep(i trace.Incident) error {
	i.At, i.Attempt = time.Now(), m.Attempt
	if p := m.planned; p != nil && !m.killed.Load() &&
		(i.What == Killed && p.Action == failpoint.Kill || i.What == paused && p.Action == failpoint.Pause) {
		i.Plan = p.String()
	}
	return trace.AppendIncident(m.dir, i)
}

// Terminate sends the process a SIGTERM as soon as its program listens for one: until
// then it would die of it, as every process does, instead of coming to an orderly end. A
// program that keeps a trace listens before it begins to.
func (m *Member) Terminate(ctx context.Context) error {
	for m.Running() {
		if _, err := os.Stat(m.trace); err == nil {
			break
		}
		if err := wait(ctx, poll); err != nil {
			return fmt.Errorf("wait for %s to listen for SIGTERM: %w", m.Attempt, err)
		}
	}
	return m.Signal(syscall.SIGTERM)
}

// signals are those that members get, by name.
var signals = map[syscall.Signal]string{
	syscall.SIGKILL: Killed,
	syscall.SIGTERM: "SIGTERM",
	syscall.SIGSTOP: paused,
	syscall.SIGCONT: "SIGCONT",
}

// paused is what happens to a process that stands still.
const paused = "SIGSTOP"

// Kill sends the process SIGKILL, stopped or not.
func (m *Member) Kill() error { return m.Signal(syscall.SIGKILL) }

// Continue lets a process go on that was stopped, by SIGCONT.
func (m *Member) Continue() error { return m.Signal(syscall.SIGCONT) }

// Stopped says whether the process stands still (SIGSTOP).
func (m *Member) Stopped() (bool, error) {
	state, err := exec.Command("ps", "-o", "stat=", "-p", fmt.Sprint(m.cmd.Process.Pid)).Output()
	if err != nil {
		if !m.Running() {
			return false, nil
		}
		return false, fmt.Errorf("look up the state of %s: %w", m.Attempt, err)
	}
	return strings.HasPrefix(strings.TrimSpace(string(state)), "T"), nil
}

// Passed counts the passings of a step so far. A step of one handler is named as a
// failpoint names it, such as worked@warehouse.
func (m *Member) Passed(step string) (int, error) {
	return m.count(func(p trace.Passing) bool { return p.Step == step || p.Step+"@"+p.Handler == step })
}

// Passings counts the passings of all steps so far.
func (m *Member) Passings() (int, error) {
	return m.count(func(trace.Passing) bool { return true })
}

func (m *Member) count(counts func(trace.Passing) bool) (int, error) {
	passings, err := trace.Read(m.trace)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	n := 0
	for _, p := range passings {
		if counts(p) {
			n++
		}
	}
	return n, err
}

// lastWords is the last line of the process's log.
func (m *Member) lastWords() string {
	text, err := os.ReadFile(m.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if last := lines[len(lines)-1]; last != "" {
		return last
	}
	return "its log is empty"
}
