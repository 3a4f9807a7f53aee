package trial

import (
	"context"
	"fmt"
	"time"

	"github.com/delivered-twice/delivered-twice/internal/failpoint"
	"github.com/delivered-twice/delivered-twice/internal/fault"
	"github.com/delivered-twice/delivered-twice/internal/stage"
)

// instance is one member of a pipeline's group: a process that is started again
// each time it is killed.
type instance struct {
	name  string // of its attempts, before the number
	role  string // which program to be
	args  []string
	env   []string
	dir   string // for logs and traces
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
		how, err := i.incarnation(ctx, n, planned)
		switch {
		case err != nil:
			return err
		case planned != nil && how == stage.Killed:
			i.deaths = append(i.deaths, death{at: time.Now(), attempt: n})
			i.killed()
			if ctx.Err() != nil {
				return nil
			}
		case how != "" || ctx.Err() == nil:
			return fmt.Errorf("%s ended by itself: %s", i.attemptName(n), how)
		default:
			return nil
		}
	}
}

// incarnation runs one process and returns how it ended: "" where it exited with 0.
func (i *instance) incarnation(ctx context.Context, n int, planned *fault.Kill) (how string, err error) {
	launch := stage.Launch{Role: i.role, Args: i.args, Env: i.env, Attempt: i.attemptName(n), Dir: i.dir}
	if planned != nil {
		launch.Failpoint = &failpoint.Failpoint{Step: planned.Step, Occurrence: planned.Passing, Action: failpoint.Kill}
	}
	member, err := stage.Start(launch)
	if err != nil {
		return "", fmt.Errorf("start %s: %w", i.attemptName(n), err)
	}
	stop := context.AfterFunc(ctx, func() {
		_ = member.Terminate(context.WithoutCancel(ctx)) // already gone is fine
	})
	defer stop()
	return member.Wait(context.WithoutCancel(ctx))
}
