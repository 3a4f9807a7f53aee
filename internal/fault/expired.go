package fault

import (
	"context"
	"slices"

	"github.com/delivered-twice/delivered-twice/internal/kafkatx"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/sandbox"
	"github.com/delivered-twice/delivered-twice/internal/stage"
)

var expiredWhileDown = Fault{
	Name: lane.ExpiredWhileDown,
	Says: "a member dies (SIGKILL) between its decision and EndTxn, and is down until the broker has aborted the transaction (transaction.timeout.ms)",
	Unfit: func(l lane.Lane, _ *sandbox.Services) string {
		if !slices.Contains(l.Steps, string(kafkatx.Decided)) {
			return "nothing is decided before the transaction ends"
		}
		return ""
	},
	Inject: func(ctx context.Context, s *stage.Stage) error {
		m, err := s.Enter(stage.Entry{
			Failpoint: string(kafkatx.Decided) + ":2:kill",
			Args:      []string{"--transaction-timeout=" + shortTimeout.String()},
		})
		if err != nil {
			return err
		}
		if err := s.Publish(ctx, fewBatches); err != nil {
			return err
		}
		if err := s.AwaitDeath(ctx, m); err != nil {
			return err
		}
		if err := awaitAborted(ctx, s); err != nil {
			return err
		}
		// Whoever comes back finds the decision, and nothing to carry it out on.
		if _, err := s.Enter(stage.Entry{}); err != nil {
			return err
		}
		return s.AwaitConsumed(ctx)
	},
}
