package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/shirou/gopsutil/v4/process"
)

// killFamily sends SIGKILL to a process and its children, so that none of them
// does anything about the death of another, and returns when all are gone.
func killFamily(ctx context.Context, parent *process.Process) error {
	// Stopped, the parent starts no more children. That takes effect a moment
	// after the signal; from there on there is no way back.
	if err := parent.Suspend(); err != nil {
		return err
	}
	err := await(context.WithoutCancel(ctx), func() error {
		if !gone(parent) && !hasStatus(parent, process.Stop) {
			return fmt.Errorf("process %d does not stop", parent.Pid)
		}
		return nil
	})
	if err != nil {
		return err
	}
	family, err := parent.Children()
	if err != nil {
		return fmt.Errorf("list the children of process %d: %w", parent.Pid, err)
	}
	family = append(family, parent)
	for _, member := range family {
		if err := member.Kill(); err != nil && !gone(member) {
			return fmt.Errorf("kill process %d: %w", member.Pid, err)
		}
	}
	return awaitEnd(ctx, family...)
}

// awaitEnd returns when all processes are gone.
func awaitEnd(ctx context.Context, processes ...*process.Process) error {
	return await(ctx, func() error {
		for _, p := range processes {
			if !gone(p) {
				return fmt.Errorf("process %d has not ended", p.Pid)
			}
		}
		return nil
	})
}

// gone reports whether a process has ended, even if nobody has collected it yet.
// The zombie of a process with many threads may be only its first one: while the
// others are ending, files and ports are still held.
func gone(p *process.Process) bool {
	if running, err := p.IsRunning(); err == nil && !running {
		return true
	}
	if !hasStatus(p, process.Zombie) {
		return false
	}
	threads, err := p.NumThreads()
	return err != nil || threads <= 1
}

func hasStatus(p *process.Process, status string) bool {
	all, err := p.Status()
	return err == nil && slices.Contains(all, status)
}

// await tries something until it works, fails for good (backoff.Permanent), or ctx
// ends.
func await(ctx context.Context, try func() error) error {
	var last error
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		last = try()
		return struct{}{}, last
	}, backoff.WithBackOff(backoff.NewConstantBackOff(interval)), backoff.WithMaxElapsedTime(0))
	if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return fmt.Errorf("%w: %w", err, last)
	}
	return err
}

// interval is how often something is looked at that does not tell by itself.
const interval = 20 * time.Millisecond
