package fault

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/payments"
	"github.com/delivered-twice/delivered-twice/internal/sandbox"
	"github.com/delivered-twice/delivered-twice/internal/stage"
)

// noCalls says why a fault of a third party is no fault of a lane.
func noCalls(l lane.Lane, _ *sandbox.Services) string {
	if !l.Writes(lane.HTTP) {
		return "the lane calls no third party"
	}
	return ""
}

var apiKilled = Fault{
	Name:  lane.APIKilled,
	Says:  "kill -9 of the third party at each of its steps, with calls in flight; it is started again at the same address",
	Unfit: noCalls,
	Inject: func(ctx context.Context, s *stage.Stage) error {
		if _, err := s.Enter(stage.Entry{}); err != nil {
			return err
		}
		if err := s.API.End(ctx); err != nil {
			return err
		}
		steps := make([]string, 0, len(payments.Steps()))
		for _, step := range payments.Steps() {
			steps = append(steps, string(step))
		}
		for _, blow := range blowsAt(s, steps, stage.Batch, 1) {
			if err := replenish(ctx, s); err != nil {
				return err
			}
			api, err := s.API.Start(ctx, blow)
			if err != nil {
				return err
			}
			if err := s.AwaitDeath(ctx, api); err != nil {
				return fmt.Errorf("kill at %s: %w", blow, err)
			}
		}
		_, err := s.API.Start(ctx, "")
		return err
	},
}

var responseDropped = Fault{
	Name:  lane.ResponseDropped,
	Says:  "the third party does what it is asked and breaks the connection off in place of an answer, now and then",
	Unfit: noCalls,
	Inject: func(ctx context.Context, s *stage.Stage) error {
		if err := s.API.End(ctx); err != nil {
			return err
		}
		api, err := s.API.Start(ctx, "", "--drop-response-rate=0.1", fmt.Sprintf("--seed=%d", 1+s.Random.Uint32()))
		if err != nil {
			return err
		}
		if _, err := s.Enter(stage.Entry{}); err != nil {
			return err
		}
		for s.Injections() < fewDrops {
			if err := s.Publish(ctx, fewBatches); err != nil {
				return err
			}
			if err := s.AwaitConsumed(ctx); err != nil {
				return err
			}
			if err := countDrops(s, api); err != nil {
				return err
			}
		}
		return nil
	},
}

// fewDrops are enough answers that were lost.
const fewDrops = 5

// countDrops has the stage know how many answers were lost so far: of charges that were
// committed, and not answered.
func countDrops(s *stage.Stage, api *stage.Member) error {
	committed, err := api.Passed(string(payments.Committed))
	if err != nil {
		return err
	}
	answered, err := api.Passed(string(payments.Answered))
	if err != nil {
		return err
	}
	for s.Injections() < committed-answered {
		s.Struck()
	}
	return nil
}

var keyExpired = Fault{
	Name: lane.KeyExpired,
	Says: "events come again when the third party has forgotten the keys of their calls, and the lane what it kept of them, if anything",
	Unfit: func(l lane.Lane, s *sandbox.Services) string {
		if reason := noCalls(l, s); reason != "" {
			return reason
		}
		if !l.SendsKey() {
			return "the lane sends no key that could expire"
		}
		return ""
	},
	Inject: func(ctx context.Context, s *stage.Stage) error {
		if err := consume(ctx, s); err != nil {
			return err
		}
		if kept, err := keys(ctx, s); err != nil || kept == 0 {
			return errors.Join(err, errors.New("the third party has no keys, although everything was consumed"))
		}
		if err := s.API.End(ctx); err != nil {
			return err
		}
		if _, err := s.API.Start(ctx, "", "--key-retention=1ms"); err != nil {
			return err
		}
		err := s.Await(ctx, "the third party to forget all keys", func(ctx context.Context) (bool, error) {
			kept, err := keys(ctx, s)
			return err == nil && kept == 0, err
		})
		if err != nil {
			return err
		}
		if s.Lane.Forgets != "" {
			if err := forget(ctx, s); err != nil {
				return err
			}
		}
		return rewind(ctx, s)
	},
}

// keys counts those that the third party keeps.
func keys(ctx context.Context, s *stage.Stage) (kept int, err error) {
	conn, err := pgx.Connect(ctx, s.API.DatabaseURL)
	if err != nil {
		return 0, fmt.Errorf("count the keys of the third party: %w", err)
	}
	defer conn.Close(ctx)
	if err := conn.QueryRow(ctx, `SELECT count(*) FROM idempotency_keys`).Scan(&kept); err != nil {
		return 0, fmt.Errorf("count the keys of the third party: %w", err)
	}
	return kept, nil
}
