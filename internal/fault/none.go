package fault

import (
	"context"

	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/stage"
)

var none = Fault{
	Name:   lane.NoFault,
	Says:   "nothing is done to the lane",
	Inject: func(ctx context.Context, s *stage.Stage) error { return consume(ctx, s) },
}

// fewBatches is how many events are enough where it is enough that there are some.
const fewBatches = 4 * stage.Batch

// consume publishes a few batches of events and has a member consume them. The member
// goes on running.
func consume(ctx context.Context, s *stage.Stage) error {
	if _, err := s.Enter(stage.Entry{}); err != nil {
		return err
	}
	if err := s.Publish(ctx, fewBatches); err != nil {
		return err
	}
	return s.AwaitConsumed(ctx)
}
