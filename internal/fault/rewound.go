package fault

import (
	"context"

	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/stage"
)

var offsetsRewound = Fault{
	Name: lane.OffsetsRewound,
	Says: "an operator sets the group's offsets back to the beginning",
	Inject: func(ctx context.Context, s *stage.Stage) error {
		if err := consume(ctx, s); err != nil {
			return err
		}
		if err := s.End(ctx, s.Running()...); err != nil {
			return err
		}
		return rewind(ctx, s)
	},
}

// rewind has everything come again that was consumed, from a group without members.
func rewind(ctx context.Context, s *stage.Stage) error {
	if err := s.Rewind(ctx); err != nil {
		return err
	}
	s.Struck()
	// One more batch, so that a lane that does not go by the group's offsets is seen
	// to go on, too.
	return s.Publish(ctx, stage.Batch)
}
