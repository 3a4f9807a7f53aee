package fault

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/sandbox"
	"github.com/delivered-twice/delivered-twice/internal/stage"
	"github.com/delivered-twice/delivered-twice/internal/warehouse"
	"github.com/delivered-twice/delivered-twice/internal/webhook"
)

var senderRetries = Fault{
	Name: lane.SenderRetries,
	Says: "the sender of a webhook gives up waiting for an answer, and sends again what is being worked on: to the same instance and to another",
	Unfit: func(l lane.Lane, _ *sandbox.Services) string {
		if l.Progress != lane.Webhooks {
			return "there is no sender that would wait for an answer"
		}
		return ""
	},
	Inject: func(ctx context.Context, s *stage.Stage) error {
		var members []*stage.Member
		for instance := range 2 {
			m, err := s.Enter(stage.Entry{Instance: instance, Args: []string{"--answer-within=20s"}})
			if err != nil {
				return err
			}
			members = append(members, m)
		}
		if err := s.AwaitMembers(ctx, len(members)); err != nil {
			return err
		}
		if err := s.Publish(ctx, fewBatches); err != nil {
			return err
		}
		if err := s.AwaitConsumed(ctx); err != nil {
			return err
		}
		return holdingUp(ctx, s, warehouse.PickTasks, func() error { return sendAnyway(ctx, s, members) })
	},
}

// impatience is how long the sender waits: longer than an event takes to arrive, and
// much shorter than its work takes.
const impatience = 250 * time.Millisecond

// repetitions is how often each instance is to get what is being worked on.
const repetitions = 2

// sendAnyway sends one event whose work is held up, until each member has got it
// several times.
func sendAnyway(ctx context.Context, s *stage.Stage, members []*stage.Member) error {
	before := make([]int, len(members))
	for i, m := range members {
		var err error
		if before[i], err = m.Passed(string(webhook.Received)); err != nil {
			return err
		}
	}
	if err := s.SendImpatiently(ctx, impatience, s.Draw(1)...); err != nil {
		return err
	}
	for i, m := range members {
		if err := s.AwaitStep(ctx, m, string(webhook.Received), before[i]+repetitions); err != nil {
			return err
		}
		s.Struck()
	}
	return nil
}

// holdingUp does something while nobody can write to a table, and then lets all go on
// and waits until they are done.
func holdingUp(ctx context.Context, s *stage.Stage, table string, do func() error) error {
	conn, err := pgx.Connect(ctx, s.DatabaseURL)
	if err != nil {
		return fmt.Errorf("hold up table %s: %w", table, err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, `BEGIN; LOCK TABLE `+pgx.Identifier{table}.Sanitize()+` IN SHARE MODE`); err != nil {
		return fmt.Errorf("hold up table %s: %w", table, err)
	}
	s.Happened("table " + table + " was locked, so that nobody could write to it")
	err = do()
	s.Happened("table " + table + " was unlocked")
	if _, released := conn.Exec(ctx, `ROLLBACK`); released != nil {
		err = errors.Join(err, fmt.Errorf("let table %s go: %w", table, released))
	}
	if err != nil {
		return err
	}
	return s.AwaitConsumed(ctx)
}
