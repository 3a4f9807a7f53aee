package fault

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/pginbox"
	"github.com/delivered-twice/delivered-twice/internal/sandbox"
	"github.com/delivered-twice/delivered-twice/internal/stage"
)

var purged = Fault{
	Name: lane.Purged,
	Says: "events come again when what the lane kept of them has been removed, or has expired",
	Unfit: func(l lane.Lane, _ *sandbox.Services) string {
		if l.Forgets == "" {
			return "the lane keeps nothing of an event that would be removed some day"
		}
		return ""
	},
	Inject: func(ctx context.Context, s *stage.Stage) error {
		if err := consume(ctx, s); err != nil {
			return err
		}
		if err := forget(ctx, s); err != nil {
			return err
		}
		return rewind(ctx, s)
	},
}

// forget removes what the lane has kept, and fails if that was nothing.
func forget(ctx context.Context, s *stage.Stage) error {
	remove := purge
	if s.Lane.Forgets == lane.RedisKeys {
		remove = expire
	}
	removed, err := remove(ctx, s)
	if err == nil && removed == 0 {
		err = errors.New("there were none, although everything was consumed")
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", s.Lane.Forgets, err)
	}
	s.Happened(fmt.Sprintf("all %s of the lane were removed", s.Lane.Forgets))
	return nil
}

// purge does what a purge does that comes too early, as a job of its own.
func purge(ctx context.Context, s *stage.Stage) (removed int64, err error) {
	pool, err := pgxpool.New(ctx, s.DatabaseURL)
	if err != nil {
		return 0, errors.New("the database address cannot be read") // the error would quote it, password included
	}
	defer pool.Close()
	rows, err := pool.Query(ctx, `SELECT DISTINCT handler FROM processed_messages`)
	if err != nil {
		return 0, err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return 0, err
	}
	var handlers []pginbox.Handler
	for _, name := range names {
		handlers = append(handlers, pginbox.Handler{
			Name:   name,
			Handle: func(context.Context, pgx.Tx, []pginbox.Event) error { return errors.New("nothing is handled here") },
		})
	}
	inbox, err := pginbox.New(pool, pginbox.Options{Handlers: handlers})
	if err != nil {
		return 0, err
	}
	// Shorter than the time that has passed since.
	return inbox.Purge(ctx, pginbox.PurgePolicy{Window: time.Microsecond, RedeliveryHorizon: time.Microsecond})
}

// expire removes the lane's keys, as their age would.
func expire(ctx context.Context, s *stage.Stage) (removed int64, err error) {
	options, err := redis.ParseURL(s.Services.RedisURL)
	if err != nil {
		return 0, errors.New("the address of Redis cannot be read") // the error may quote it, password included
	}
	client := redis.NewClient(options)
	defer client.Close()
	keys := client.Scan(ctx, 0, s.RedisPrefix()+"*", 1_000).Iterator()
	for keys.Next(ctx) {
		n, err := client.Del(ctx, keys.Val()).Result()
		if err != nil {
			return removed, err
		}
		removed += n
	}
	return removed, keys.Err()
}
