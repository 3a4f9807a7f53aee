package trial

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/delivered-twice/delivered-twice/internal/failpoint"
	"github.com/delivered-twice/delivered-twice/internal/fault"
	"github.com/delivered-twice/delivered-twice/internal/process"
)

// instance is one member of a pipeline's group: a process that is started again
// each time it is killed.
type instance struct {
	name  string // of its attempts, before the number
	role  string // which program to be
	args  []string
	env   []string
	logs  string // folder
	kills []fault.Kill

	deaths []death // of planned kills, in order
	killed func()  // called at each
}

// death is a planned kill that struck.
type death struct {
	at      time.Time
	attempt int // which incarnation died, from 1
}

// attemptName names an incarnation: it is kept with every effect.
func (i *instance) attemptName(n int) string { return fmt.Sprintf("%s.%d", i.name, n) }

// run keeps the instance alive until ctx ends, and then ends it with SIGTERM. It
// returns an error if it dies of anything but a planned kill.
func (i *instance) run(ctx context.Context) error {
	for n := 1; ; n++ {
		var planned *fault.Kill
		if len(i.deaths) < len(i.kills) {
			planned = &i.kills[len(i.deaths)]
		}
		err := i.incarnation(ctx, n, planned)
		switch {
		case planned != nil && killed(err):
			i.deaths = append(i.deaths, death{at: time.Now(), attempt: n})
			i.killed()
			if ctx.Err() != nil {
				return nil
			}
		case err != nil:
			return fmt.Errorf("%s ended by itself: %w: %s", i.attemptName(n), err, i.lastWords(n))
		case ctx.Err() == nil:
			return fmt.Errorf("%s ended by itself: %s", i.attemptName(n), i.lastWords(n))
		default:
			return nil
		}
	}
}

func (i *instance) incarnation(ctx context.Context, n int, planned *fault.Kill) error {
	log, err := os.Create(i.log(n))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := process.Command(i.role, append(i.args, "--attempt="+i.attemptName(n))...)
	cmd.Stderr = log
	cmd.Env = append(os.Environ(), i.env...)
	if planned != nil {
		spec := failpoint.Failpoint{Step: planned.Step, Occurrence: planned.Passing, Action: failpoint.Kill}
		cmd.Env = append(cmd.Env, failpoint.Variable+"="+spec.String())
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // already gone is fine
	})
	defer stop()
	return cmd.Wait()
}

func killed(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

func (i *instance) log(n int) string {
	return filepath.Join(i.logs, i.attemptName(n)+".log")
}

// lastWords is the last line of an incarnation's log.
func (i *instance) lastWords(n int) string {
	text, err := os.ReadFile(i.log(n))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if last := lines[len(lines)-1]; last != "" {
		return last
	}
	return "its log is empty"
}
