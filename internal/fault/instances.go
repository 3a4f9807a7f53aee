package fault

import (
	"context"

	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/stage"
)

var secondInstance = Fault{
	Name: lane.SecondInstance,
	Says: "a second member joins in the middle of a stream of events, takes partitions over, and is gone again",
	Inject: func(ctx context.Context, s *stage.Stage) error {
		first, err := s.Enter(stage.Entry{SessionTimeout: stage.Impatient})
		if err != nil {
			return err
		}
		return underTrickle(ctx, s, func() error { return joinAndLeave(ctx, s, first) })
	},
}

func joinAndLeave(ctx context.Context, s *stage.Stage, first *stage.Member) error {
	if err := s.AwaitStep(ctx, first, lastStep(s.Lane), 2); err != nil {
		return err
	}
	second, err := s.Enter(stage.Entry{Instance: 1, SessionTimeout: stage.Impatient})
	if err != nil {
		return err
	}
	if err := s.AwaitMembers(ctx, 2); err != nil {
		return err
	}
	if err := s.AwaitStep(ctx, second, lastStep(s.Lane), 2); err != nil {
		return err
	}
	s.Struck()
	// A static member does not say goodbye: its partitions wait for its return, until
	// its session times out.
	if err := s.End(ctx, second); err != nil {
		return err
	}
	if err := s.AwaitMembers(ctx, 1); err != nil {
		return err
	}
	s.Struck()
	return nil
}

var rollingRestart = Fault{
	Name: lane.RollingRestart,
	Says: "two members are restarted one after the other in the middle of a stream of events",
	Inject: func(ctx context.Context, s *stage.Stage) error {
		var members []*stage.Member
		for instance := range 2 {
			m, err := s.Enter(stage.Entry{Instance: instance})
			if err != nil {
				return err
			}
			members = append(members, m)
		}
		if err := s.AwaitMembers(ctx, len(members)); err != nil {
			return err
		}
		return underTrickle(ctx, s, func() error { return restartInTurn(ctx, s, members) })
	},
}

func restartInTurn(ctx context.Context, s *stage.Stage, members []*stage.Member) error {
	for instance, m := range members {
		if err := s.AwaitStep(ctx, m, lastStep(s.Lane), 1); err != nil {
			return err
		}
		if err := s.End(ctx, m); err != nil {
			return err
		}
		s.Struck()
		successor, err := s.Enter(stage.Entry{Instance: instance})
		if err != nil {
			return err
		}
		if err := s.AwaitStep(ctx, successor, lastStep(s.Lane), 1); err != nil {
			return err
		}
	}
	return nil
}
