package fault

import (
	"context"
	"fmt"

	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/outbox"
	"github.com/delivered-twice/delivered-twice/internal/sandbox"
	"github.com/delivered-twice/delivered-twice/internal/stage"
)

var relayKilled = Fault{
	Name: lane.RelayKilled,
	Says: "kill -9 of the outbox's relay between publishing rows and stamping them: in its own process again and again, and alone while another one takes over",
	Unfit: func(l lane.Lane, _ *sandbox.Services) string {
		if !l.Outbox {
			return "there is no outbox"
		}
		return ""
	},
	Inject: func(ctx context.Context, s *stage.Stage) error {
		for passing := range depth {
			m, err := s.Enter(stage.Entry{Failpoint: published(passing + 1)})
			if err != nil {
				return err
			}
			if err := replenish(ctx, s); err != nil {
				return err
			}
			if err := s.AwaitDeath(ctx, m); err != nil {
				return fmt.Errorf("kill the relay inside: %w", err)
			}
		}
		return takeOver(ctx, s)
	},
}

// published is a failpoint between publishing and stamping.
func published(passing int) string { return fmt.Sprintf("%s:%d:kill", outbox.Published, passing) }

// takeOver has relays die that are processes of their own, while a member writes rows,
// and one that lives takes over from each.
func takeOver(ctx context.Context, s *stage.Stage) error {
	if _, err := s.Enter(stage.Entry{Args: []string{"--relay=elsewhere"}}); err != nil {
		return err
	}
	err := underTrickle(ctx, s, func() error {
		for passing := range depth {
			victim, err := s.Enter(stage.Entry{Instance: 1, Failpoint: published(passing + 1), Args: []string{"--relay=only"}})
			if err != nil {
				return err
			}
			if err := s.AwaitDeath(ctx, victim); err != nil {
				return fmt.Errorf("kill the relay alone: %w", err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if _, err := s.Enter(stage.Entry{Instance: 2, Args: []string{"--relay=only"}}); err != nil {
		return err
	}
	return s.AwaitConsumed(ctx)
}
