package fault

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/delivered-twice/delivered-twice/internal/kafkatx"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/sandbox"
	"github.com/delivered-twice/delivered-twice/internal/stage"
	"github.com/delivered-twice/delivered-twice/internal/twophase"
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
		decided, err := decidedEvents(ctx, s)
		if err != nil {
			return err
		}
		if err := awaitAborted(ctx, s); err != nil {
			return err
		}
		// Whoever comes back finds the decision, and nothing to carry it out on.
		if _, err := s.Enter(stage.Entry{}); err != nil {
			return err
		}
		if err := s.AwaitConsumed(ctx); err != nil {
			return err
		}
		return toldAsLost(ctx, s, decided)
	},
}

// decidedEvents returns the ids of the events whose work is committed, and whose Kafka
// transaction is not. There must be some.
func decidedEvents(ctx context.Context, s *stage.Stage) ([]string, error) {
	pool, err := pgxpool.New(ctx, s.DatabaseURL)
	if err != nil {
		return nil, errors.New("the database address cannot be read") // the error would quote it, password included
	}
	defer pool.Close()
	// Nobody is asked anything of Kafka here.
	all, err := twophase.NewDecisions(pool, nil, slog.New(slog.DiscardHandler)).All(ctx)
	if err != nil {
		return nil, err
	}
	if len(all) != 1 || len(all[0].EventIDs) == 0 {
		return nil, fmt.Errorf("a member died when it had decided, and there are %d decisions with events", len(all))
	}
	return all[0].EventIDs, nil
}

// toldAsLost returns an error unless whoever came back has kept the events where an
// operator finds them: that they come again, and are done again, is no secret then.
func toldAsLost(ctx context.Context, s *stage.Stage, decided []string) error {
	conn, err := pgx.Connect(ctx, s.DatabaseURL)
	if err != nil {
		return fmt.Errorf("look for what is lost: %w", err)
	}
	defer conn.Close(ctx)
	rows, _ := conn.Query(ctx, `SELECT convert_from(unnest(event_ids), 'UTF8') FROM lost_transactions`) // its error is in the rows, too
	lost, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("look for what is lost: %w", err)
	}
	if missing := slices.DeleteFunc(decided, func(id string) bool { return slices.Contains(lost, id) }); len(missing) > 0 {
		return fmt.Errorf("the broker has aborted a transaction that was decided, and %d of its events are not told as lost: table lost_transactions does not have them", len(missing))
	}
	return nil
}
