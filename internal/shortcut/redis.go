package shortcut

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delivered-twice/delivered-twice/internal/pginbox"
)

// Redis claims every id with SETNX, under a key that expires, and works on those that
// it could claim.
//
// It holds while nothing stops between the claim and the commit, and while an event
// comes again sooner than its key expires: two consumers that have the same event at
// the same moment are told apart, which [SelectFirst] can't do. But Redis and
// Postgres do not commit together, so the gap has only moved. A death after claimed,
// begun or worked loses the events: they come again, and find the keys of somebody
// who will never do the work. A claim whose answer is lost loses them too: when
// it is tried again, it meets itself. What comes again after its key has expired, or
// after a failover to a replica that did not have it, is done again, and so is the
// work of a COMMIT whose answer was lost.
//
// A delivery that is given up without a death (the process is told to stop while
// Postgres is away) takes its claims back, if Redis lets it.
const Redis Guard = "redis"

// Claimed: the ids that others have claimed have been left out. The passage has the
// other events, whose keys are in Redis now. A death here loses them.
const Claimed pginbox.Step = "claimed"

// RedisTTL is the default of [Options].RedisTTL: a day.
const RedisTTL = 24 * time.Hour

type claims struct {
	unguarded
	client *redis.Client
	ttl    time.Duration
	prefix string
}

func newClaims(o Options) (*claims, error) {
	switch {
	case o.Redis == nil:
		return nil, fmt.Errorf("the guard %s needs a client of Redis", Redis)
	case o.RedisTTL < time.Millisecond:
		return nil, fmt.Errorf("the keys in Redis expire after %v, must be at least 1ms", o.RedisTTL)
	}
	return &claims{client: o.Redis, ttl: o.RedisTTL, prefix: o.RedisPrefix}, nil
}

func (c *claims) before(ctx context.Context, d *delivery) ([]pginbox.Event, error) {
	answers := make([]*redis.BoolCmd, len(d.events))
	err := d.waitOut(ctx, func() error {
		_, err := c.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i, e := range d.events {
				// What was answered before an outage is not asked again: it would be
				// taken for the claim of somebody else.
				if answers[i] == nil || answers[i].Err() != nil {
					answers[i] = pipe.SetNX(ctx, c.prefix+e.ID, "", c.ttl)
				}
			}
			return nil
		})
		if err != nil {
			return &outage{fmt.Errorf("claim event ids in Redis: %w", err)}
		}
		return nil
	})
	var claimed []pginbox.Event
	for i, e := range d.events {
		if answers[i].Val() {
			claimed = append(claimed, e)
		}
	}
	if err == nil {
		err = d.waitOut(ctx, func() error { return d.pass(ctx, Claimed, "", claimed) })
	}
	return claimed, err
}

// releasePatience bounds how long a process that stops tries to take claims back.
const releasePatience = time.Second

// abandon takes claims back. One that has expired may be somebody else's by now, and
// is taken from them.
func (c *claims) abandon(undone []pginbox.Event) {
	if len(undone) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), releasePatience)
	defer cancel()
	keys := make([]string, len(undone))
	for i, e := range undone {
		keys[i] = c.prefix + e.ID
	}
	c.client.Del(ctx, keys...) // if it fails, the events are lost
}
