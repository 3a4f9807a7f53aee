package fault

import (
	"context"
	"errors"
	"fmt"
	"time"

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
	Says:  "the third party does what it is asked and, now and then, breaks the connection off in place of an answer",
	Unfit: noCalls,
	Inject: func(ctx context.Context, s *stage.Stage) error {
		if err := s.API.End(ctx); err != nil {
			return err
		}
		api, err := s.API.Start(ctx, "", "--drop-response-rate=0.1", fmt.Sprintf("--seed=%d", s.Random.Uint32()))
		if err != nil {
			return err
		}
		if err := consume(ctx, s); err != nil {
			return err
		}
		// What has been answered is passed a moment later than the answer is there: only of
		// one that has ended the count is exact.
		if err := s.API.End(ctx); err != nil {
			return err
		}
		if err := countDrops(s, api); err != nil {
			return err
		}
		_, err = s.API.Start(ctx, "")
		return err
	},
}

// countDrops has the stage know how many answers were lost: of requests that got there,
// and were not answered. None is an error.
func countDrops(s *stage.Stage, api *stage.Member) error {
	received, err := api.Passed(string(payments.Received))
	if err != nil {
		return err
	}
	answered, err := api.Passed(string(payments.Answered))
	if err != nil {
		return err
	}
	if received == answered {
		return fmt.Errorf("%s was to lose answers, and has answered all of %d requests", api.Attempt, received)
	}
	for range received - answered {
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
		if kept, err := keys(ctx, s, 24*time.Hour); err != nil || kept == 0 {
			return errors.Join(err, errors.New("the third party has no keys, although everything was consumed"))
		}
		if err := s.API.End(ctx); err != nil {
			return err
		}
		if _, err := s.API.Start(ctx, "", "--key-retention="+shortRetention.String()); err != nil {
			return err
		}
		err := s.Await(ctx, "the keys to expire", func(ctx context.Context) (bool, error) {
			kept, err := keys(ctx, s, shortRetention)
			return err == nil && kept == 0, err
		})
		if err != nil {
			return err
		}
		s.Happened("the third party forgot the keys of all calls")
		if s.Lane.Forgets != "" {
			if err := forget(ctx, s); err != nil {
				return err
			}
		}
		return rewind(ctx, s)
	},
}

// shortRetention of keys is soon over, and longer than a call takes.
const shortRetention = 500 * time.Millisecond

// keys counts those that the third party keeps, and that are younger than retention by
// the clock that it goes by: once purged or overlooked, an older one is as good as gone.
func keys(ctx context.Context, s *stage.Stage, retention time.Duration) (kept int, err error) {
	conn, err := pgx.Connect(ctx, s.API.DatabaseURL)
	if err == nil {
		defer conn.Close(ctx)
		err = conn.QueryRow(ctx, `SELECT count(*) FROM idempotency_keys WHERE created_at > now() - $1::interval`, retention).Scan(&kept)
	}
	if err != nil {
		return 0, fmt.Errorf("count the keys of the third party: %w", err)
	}
	return kept, nil
}
