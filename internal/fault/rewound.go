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
		return rewind(ctx, s)
	},
}

// rewind ends the members and has everything come again that they have consumed.
func rewind(ctx context.Context, s *stage.Stage) error {
	if err := s.Disband(ctx); err != nil {
		return err
	}
	if err := s.Rewind(ctx); err != nil {
		return err
	}
	s.Struck()
	return nil
}
