package fault

import (
	"context"
	"fmt"
	"syscall"

	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/stage"
)

var sigterm = Fault{
	Name:   lane.SIGTERM,
	Says:   "SIGTERM at every step, in the middle of a stream of events",
	Inject: injectSIGTERM,
}

// injectSIGTERM holds one incarnation after the other still at a step, and tells it
// there to end: so the signal comes in the middle of a batch each time, and not by
// luck.
func injectSIGTERM(ctx context.Context, s *stage.Stage) (err error) {
	stop := s.Trickle(ctx)
	defer func() { err = firstOf(err, stop()) }()
	for _, step := range s.Lane.Steps {
		m, err := s.Enter(stage.Entry{Failpoint: step + ":2:pause"})
		if err != nil {
			return err
		}
		if err := s.AwaitStopped(ctx, m); err != nil {
			return err
		}
		if err := m.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		if err := m.Continue(); err != nil {
			return err
		}
		if err := s.AwaitEnd(ctx, m); err != nil {
			return fmt.Errorf("SIGTERM at %s: %w", step, err)
		}
		s.Struck()
	}
	return nil
}

// firstOf returns the first error that is one.
func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
