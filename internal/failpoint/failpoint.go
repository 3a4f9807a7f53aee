// Package failpoint makes the process die, stop or fail at the n-th passing of a
// named step, so that a crash between two steps is an experiment that can be
// repeated instead of a matter of luck.
//
// It knows no steps of its own: whoever runs something in steps calls
// [Failpoint.Pass] at each of them.
package failpoint

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/delivered-twice/delivered-twice/internal/nearest"
)

// Variable is the environment variable that [FromEnv] reads.
const Variable = "FAILPOINT"

// Action is what happens to the process.
type Action string

const (
	// Kill sends the process SIGKILL: no deferred function runs, no buffer is
	// flushed, no connection is closed in an orderly way. It never returns.
	Kill Action = "kill"
	// Pause sends the process SIGSTOP: it stands still, connections open, until
	// somebody sends it SIGCONT.
	Pause Action = "pause"
	// Fail makes that one passing return an error that wraps [ErrFailed].
	Fail Action = "fail"
)

// ErrFailed is wrapped by the error of the action [Fail].
var ErrFailed = errors.New("failed on purpose")

// Failpoint is one planned mishap. It strikes once. A nil *Failpoint never does.
type Failpoint struct {
	// Step is the name of the step at which it strikes.
	Step string
	// Occurrence counts passings of Step in this process, from 1.
	Occurrence int
	// Action is what it does.
	Action Action

	passed atomic.Int64
}

// Parse reads "step[:occurrence[:action]]"; occurrence defaults to 1 and action
// to kill. "worked:3:pause" pauses the process when it passes the step "worked"
// for the third time. It cannot know which steps there are: [FromEnv] does.
func Parse(spec string) (*Failpoint, error) {
	fields := strings.Split(spec, ":")
	f := &Failpoint{Step: fields[0], Occurrence: 1, Action: Kill}
	if f.Step == "" || len(fields) > 3 {
		return nil, fmt.Errorf("failpoint %q: must be step[:occurrence[:action]], such as worked:3:kill", spec)
	}
	if len(fields) > 1 {
		n, err := strconv.Atoi(fields[1])
		if err != nil || n < 1 {
			return nil, fmt.Errorf("failpoint %q: occurrence %q must be a whole number from 1", spec, fields[1])
		}
		f.Occurrence = n
	}
	if len(fields) > 2 {
		f.Action = Action(fields[2])
		switch f.Action {
		case Kill, Pause, Fail:
		default:
			return nil, fmt.Errorf("failpoint %q: action %q must be %s, %s or %s", spec, fields[2], Kill, Pause, Fail)
		}
	}
	return f, nil
}

// FromEnv parses the environment variable [Variable]. Where it is unset or empty
// the result is nil, which is a failpoint that never strikes. A step that is not
// among steps is an error that names those that are near and then all of them: a
// misspelt failpoint would otherwise be a test that passes because nothing
// happened.
func FromEnv(steps []string) (*Failpoint, error) {
	spec := os.Getenv(Variable)
	if spec == "" {
		return nil, nil
	}
	f, err := Parse(spec)
	if err != nil {
		return nil, fmt.Errorf("environment variable %s: %w", Variable, err)
	}
	if !slices.Contains(steps, f.Step) {
		return nil, fmt.Errorf("environment variable %s: there is no step %q%s; all: %s",
			Variable, f.Step, nearest.Hint(f.Step, steps), strings.Join(steps, ", "))
	}
	return f, nil
}

// String returns the failpoint as [Parse] reads it.
func (f *Failpoint) String() string {
	return fmt.Sprintf("%s:%d:%s", f.Step, f.Occurrence, f.Action)
}

// Pass says that the process passes step. If that is the planned passing, one
// line on standard error says so, so that a log tells a planned death from
// another, and then the action is carried out: [Kill] never returns, [Pause]
// returns after SIGCONT, [Fail] returns an error. In every other case Pass
// returns nil and does nothing.
//
// It is safe for concurrent use, and nil is a valid receiver.
func (f *Failpoint) Pass(step string) error {
	if f == nil || step != f.Step || f.passed.Add(1) != int64(f.Occurrence) {
		return nil
	}
	fmt.Fprintf(os.Stderr, "failpoint: %s at %s, passing %d\n", f.Action, f.Step, f.Occurrence)
	switch f.Action {
	case Pause:
		return f.pause()
	case Fail:
		return fmt.Errorf("failpoint %s: %w", f, ErrFailed)
	default:
		return f.kill()
	}
}

func (f *Failpoint) kill() error {
	if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
		return fmt.Errorf("failpoint %s: send SIGKILL to this process: %w", f, err)
	}
	// The signal may take a moment to reach every thread, and this goroutine
	// must not get any further in that moment. An empty select would do, if the
	// runtime could not take it for a deadlock.
	for {
		time.Sleep(time.Hour)
	}
}

func (f *Failpoint) pause() error {
	// Any thread may be the one that takes the SIGSTOP, so this goroutine could
	// run on for a moment. Waiting for the SIGCONT closes that gap.
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	defer signal.Stop(continued)
	if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
		return fmt.Errorf("failpoint %s: send SIGSTOP to this process: %w", f, err)
	}
	<-continued
	return nil
}
