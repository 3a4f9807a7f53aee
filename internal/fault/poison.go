package fault

import (
	"context"

	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/stage"
)

var poison = Fault{
	Name:   lane.Poison,
	Says:   "one record among the events that no handler can take",
	Inject: func(ctx context.Context, s *stage.Stage) error { return poisoned(ctx, s, 1) },
}

var poisonBatch = Fault{
	Name:   lane.PoisonBatch,
	Says:   "more such records than a batch holds",
	Inject: func(ctx context.Context, s *stage.Stage) error { return poisoned(ctx, s, 2*stage.Batch) },
}

// poisoned has a member consume n records of poison with events before and after.
func poisoned(ctx context.Context, s *stage.Stage, n int) error {
	if err := s.Publish(ctx, stage.Batch); err != nil {
		return err
	}
	if err := s.Poison(ctx, n); err != nil {
		return err
	}
	for range n {
		s.Struck()
	}
	return consume(ctx, s)
}
