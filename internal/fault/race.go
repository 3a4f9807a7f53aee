package fault

import (
	"context"

	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/sandbox"
	"github.com/delivered-twice/delivered-twice/internal/stage"
)

var race = Fault{
	Name: lane.Race,
	Says: "two consumers get the same events at the same moment: one stands still in the middle of its first batch while the other does all; then both begin the same batch at once",
	Unfit: func(l lane.Lane, _ *sandbox.Services) string {
		if l.Transactional || !l.Writes(lane.Postgres) {
			return "a second group is another consumer: it is meant to process every record, too"
		}
		return ""
	},
	Inject: func(ctx context.Context, s *stage.Stage) error {
		if s.Lane.Progress == lane.Webhooks {
			return atOnce(ctx, s)
		}
		rival := s.Resources.Group(s.Group + ".rival")
		if err := overtake(ctx, s, rival); err != nil {
			return err
		}
		return headToHead(ctx, s, rival)
	},
}

// overtake has a member of the stage's group do all the work that a rival has just
// begun.
func overtake(ctx context.Context, s *stage.Stage, rival string) error {
	if err := s.Publish(ctx, depth*stage.Batch); err != nil {
		return err
	}
	slow, err := s.Enter(stage.Entry{Instance: 1, Group: rival, Failpoint: s.Lane.Pauses[0] + ":1:pause"})
	if err != nil {
		return err
	}
	if err := s.AwaitStopped(ctx, slow); err != nil {
		return err
	}
	if _, err := s.Enter(stage.Entry{}); err != nil {
		return err
	}
	if err := s.AwaitConsumed(ctx); err != nil {
		return err
	}
	s.Struck()
	return goOn(ctx, s, rival, slow)
}

// headToHead has two rivals go on at the same moment with a batch that each has just
// got.
func headToHead(ctx context.Context, s *stage.Stage, rival string) error {
	if err := s.End(ctx, s.Running()...); err != nil {
		return err
	}
	if err := s.Publish(ctx, stage.Batch); err != nil {
		return err
	}
	var rivals []*stage.Member
	for instance, group := range []string{s.Group, rival} {
		m, err := s.Enter(stage.Entry{Instance: instance, Group: group, Failpoint: s.Lane.Pauses[0] + ":1:pause"})
		if err != nil {
			return err
		}
		rivals = append(rivals, m)
	}
	for _, m := range rivals {
		if err := s.AwaitStopped(ctx, m); err != nil {
			return err
		}
	}
	s.Struck()
	return goOn(ctx, s, rival, rivals...)
}

// atOnce has two receivers begin with the same webhook at the same moment, and then
// sends them more, each to both.
func atOnce(ctx context.Context, s *stage.Stage) error {
	var rivals []*stage.Member
	for instance := range 2 {
		m, err := s.Enter(stage.Entry{Instance: instance, Failpoint: s.Lane.Pauses[0] + ":1:pause"})
		if err != nil {
			return err
		}
		rivals = append(rivals, m)
	}
	if err := s.SendToEach(ctx, s.Draw(1)...); err != nil {
		return err
	}
	for _, m := range rivals {
		if err := s.AwaitStopped(ctx, m); err != nil {
			return err
		}
	}
	s.Struck()
	for _, m := range rivals {
		if err := m.Continue(); err != nil {
			return err
		}
	}
	if err := s.SendToEach(ctx, s.Draw(fewBatches)...); err != nil {
		return err
	}
	s.Struck()
	return s.AwaitConsumed(ctx)
}

// goOn lets members go on and waits until both groups have consumed everything.
func goOn(ctx context.Context, s *stage.Stage, rival string, members ...*stage.Member) error {
	for _, m := range members {
		if err := m.Continue(); err != nil {
			return err
		}
	}
	if err := s.AwaitConsumed(ctx); err != nil {
		return err
	}
	return s.AwaitConsumedBy(ctx, rival)
}
