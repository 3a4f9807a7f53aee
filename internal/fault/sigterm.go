package fault

import (
	"context"
	"errors"
	"fmt"

	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/stage"
)

var sigterm = Fault{
	Name: lane.SIGTERM,
	Says: "SIGTERM at every step, in the middle of a stream of events",
	Inject: func(ctx context.Context, s *stage.Stage) error {
		return underTrickle(ctx, s, func() error { return terminate(ctx, s) })
	},
}

// terminate holds one incarnation after the other still at a step, and tells it there
// to end: so the signal comes in the middle of a batch each time, and not by luck.
func terminate(ctx context.Context, s *stage.Stage) error {
	for _, step := range s.Lane.Steps {
		m, err := s.Enter(stage.Entry{Failpoint: step + ":2:pause"})
		if err != nil {
			return err
		}
		if err := s.AwaitStopped(ctx, m); err != nil {
			return err
		}
		if err := errors.Join(m.Terminate(ctx), m.Continue()); err != nil {
			return err
		}
		if err := s.AwaitEnd(ctx, m); err != nil {
			return fmt.Errorf("SIGTERM at %s: %w", step, err)
		}
		s.Struck()
	}
	return nil
}

// underTrickle does something while events are sent.
func underTrickle(ctx context.Context, s *stage.Stage, do func() error) error {
	stop := s.Trickle(ctx)
	return errors.Join(do(), stop())
}

// lastStep is the one that a batch passes when it is done with.
func lastStep(l lane.Lane) string { return l.Steps[len(l.Steps)-1] }
