package fault

import (
	"context"
	"fmt"

	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/outbox"
	"github.com/delivered-twice/delivered-twice/internal/stage"
)

var zombie = Fault{
	Name: lane.Zombie,
	Says: "a member stands still (SIGSTOP) with a batch in hand until another has taken its partitions over, and then goes on (SIGCONT)",
	Inject: func(ctx context.Context, s *stage.Stage) error {
		for _, step := range s.Lane.Pauses {
			if err := raise(ctx, s, step); err != nil {
				return fmt.Errorf("zombie at %s: %w", step, err)
			}
		}
		if !s.Lane.Outbox {
			return nil
		}
		if err := raiseRelay(ctx, s); err != nil {
			return fmt.Errorf("zombie that is a relay alone: %w", err)
		}
		return nil
	},
}

// raise makes a zombie that stands still at a step, and lets it go on.
func raise(ctx context.Context, s *stage.Stage, step string) error {
	if err := replenish(ctx, s); err != nil {
		return err
	}
	z, err := s.Enter(stage.Entry{Failpoint: step + ":2:pause", SessionTimeout: stage.Impatient})
	if err != nil {
		return err
	}
	passed, err := standsStill(ctx, s, z)
	if err != nil {
		return err
	}
	if _, err := s.Enter(stage.Entry{Instance: 1, SessionTimeout: stage.Impatient}); err != nil {
		return err
	}
	if err := wake(ctx, s, z); err != nil {
		return err
	}
	// It joins its group again when it is done with what it had in hand; a member of a
	// share group was not missed at all.
	if err := s.AwaitMembers(ctx, 2); err != nil {
		return err
	}
	if err := s.Publish(ctx, fewBatches); err != nil {
		return err
	}
	if err := s.AwaitPassings(ctx, z, passed+1); err != nil {
		return err
	}
	return s.Disband(ctx)
}

// raiseRelay makes a zombie of a relay that is a process of its own and has rows in hand
// which it has not sent, while a member goes on to write later ones of the same keys, and
// another relay publishes what it may.
func raiseRelay(ctx context.Context, s *stage.Stage) error {
	z, err := s.Enter(stage.Entry{
		Instance: 1, Failpoint: string(outbox.Claimed) + ":1:pause", SessionTimeout: stage.Impatient, Args: []string{"--relay=only"},
	})
	if err != nil {
		return err
	}
	if _, err := s.Enter(stage.Entry{Args: []string{"--relay=elsewhere"}}); err != nil {
		return err
	}
	if err := s.Publish(ctx, fewBatches); err != nil {
		return err
	}
	passed, err := standsStill(ctx, s, z)
	if err != nil {
		return err
	}
	if _, err := s.Enter(stage.Entry{Instance: 2, Args: []string{"--relay=only"}}); err != nil {
		return err
	}
	if err := wake(ctx, s, z); err != nil {
		return err
	}
	if err := s.AwaitPassings(ctx, z, passed+1); err != nil {
		return err
	}
	return s.Disband(ctx)
}

// standsStill waits until a zombie does, and returns how many steps it has passed.
func standsStill(ctx context.Context, s *stage.Stage, z *stage.Member) (passed int, err error) {
	if err := s.AwaitStopped(ctx, z); err != nil {
		return 0, err
	}
	return z.Passings()
}

// wake lets a zombie go on when others have done later events of the keys that it has in
// hand.
func wake(ctx context.Context, s *stage.Stage, z *stage.Member) error {
	if err := s.Publish(ctx, 2*fewBatches); err != nil {
		return err
	}
	if err := s.AwaitConsumed(ctx); err != nil {
		return err
	}
	s.Struck()
	return z.Continue()
}
