package fault

import (
	"context"

	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/stage"
)

var publisherDuplicates = Fault{
	Name: lane.PublisherDuplicates,
	Says: "the publisher sends every event twice: two records with one event id",
	Inject: func(ctx context.Context, s *stage.Stage) error {
		if err := consume(ctx, s); err != nil {
			return err
		}
		return sendAgain(ctx, s)
	},
}

var publisherDuplicatesTwoInstances = Fault{
	Name: lane.PublisherDuplicatesTwoInstances,
	Says: "the same, and before the second records come a second member has taken partitions over",
	Inject: func(ctx context.Context, s *stage.Stage) error {
		if err := consume(ctx, s); err != nil {
			return err
		}
		if _, err := s.Enter(stage.Entry{Instance: 1}); err != nil {
			return err
		}
		if err := s.AwaitMembers(ctx, 2); err != nil {
			return err
		}
		return sendAgain(ctx, s)
	},
}

// sendAgain sends everything that was sent once more.
func sendAgain(ctx context.Context, s *stage.Stage) error {
	sent := s.Sent()
	s.Happened("the publisher sent every event once more")
	if err := s.Send(ctx, sent...); err != nil {
		return err
	}
	for range sent {
		s.Struck()
	}
	return nil
}
