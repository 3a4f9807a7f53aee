package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/delivered-twice/delivered-twice/internal/endpoint"
	"github.com/delivered-twice/delivered-twice/internal/outbox"
)

// Where the relay of --publish=outbox is.
const (
	relayInside    = "inside"
	relayElsewhere = "elsewhere"
	relayOnly      = "only"
)

func (p *inboxPipeline) hasOutbox() bool { return p.publish == publishOutbox }

// hasRelay says whether this process publishes what is in the outbox.
func (p *inboxPipeline) hasRelay() bool { return p.hasOutbox() && p.relay != relayElsewhere }

// consumes says whether it does anything else.
func (p *inboxPipeline) consumes() bool { return !p.hasOutbox() || p.relay != relayOnly }

// relayHandler stands for the relay in traces and failpoints, where handlers stand.
const relayHandler = "relay"

// newRelay returns the relay of this process.
func (p *inboxPipeline) newRelay(pool *pgxpool.Pool, pass passStep) (*outbox.Relay, error) {
	r, err := outbox.NewRelay(pool, outbox.Options{
		Client: p.client(),
		// A relay that stands still loses its rows when a member would lose its partitions.
		PublishTimeout: p.sessionTimeout / 2,
		Hook: func(_ context.Context, passage outbox.Passage) error {
			ids := make([]string, len(passage.Messages))
			for i, m := range passage.Messages {
				ids[i] = m.ID
			}
			return pass(string(passage.Step), relayHandler, ids)
		},
		Logger: p.logger(),
	})
	if err != nil {
		return nil, Usage(err)
	}
	return r, nil
}

// runRelay publishes what is in the outbox until ctx ends, and then what is left.
func (p *inboxPipeline) runRelay(ctx context.Context, pool *pgxpool.Pool, pass passStep) error {
	relay, err := p.newRelay(pool, pass)
	if err != nil {
		return err
	}
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error {
		p.lookAfterOutbox(ctx, pool)
		return nil
	})
	both.Go(func() error { return relay.Run(ctx) })
	return both.Wait()
}

// runRelayOnly does nothing else. It asks for no topic and no group: which topics there
// must be, only the rows can tell.
func (p *inboxPipeline) runRelayOnly(ctx context.Context, pass passStep) error {
	if _, err := endpoint.Kafka(ctx, p.brokers); err != nil {
		return err
	}
	pool, err := p.openDatabase(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	return p.runRelay(ctx, pool, pass)
}

// lookAfterOutbox removes rows that were published long enough ago, and says so if
// others are not published, until ctx ends.
func (p *inboxPipeline) lookAfterOutbox(ctx context.Context, pool *pgxpool.Pool) {
	tick := time.NewTicker(purgeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		removed, err := outbox.Purge(ctx, pool, p.outboxRetention)
		if removed > 0 {
			p.logger().Info("purged the outbox", "rows", removed, "published longer ago than", p.outboxRetention)
		}
		backlog, also := outbox.ReadBacklog(ctx, pool)
		if err := errors.Join(err, also); err != nil && ctx.Err() == nil {
			p.logger().Warn("looking after the outbox failed; it is tried again later", "cause", err)
		}
		if backlog.Oldest > purgeEvery || backlog.Refused > 0 {
			p.logger().Warn("rows of the outbox are not published", "pending", backlog.Pending, "the oldest for", backlog.Oldest, "refused by Kafka", backlog.Refused)
		}
	}
}

// checkOutbox refuses flags of the outbox that mean nothing.
func (p *inboxPipeline) checkOutbox(given func(flag string) bool) error {
	for _, rule := range []struct {
		broken bool
		says   string
	}{
		{p.relay != relayInside && p.relay != relayElsewhere && p.relay != relayOnly,
			fmt.Sprintf("--%s is %q, must be %s, %s or %s", flagRelay, p.relay, relayInside, relayElsewhere, relayOnly)},
		{p.outboxRetention < 0,
			fmt.Sprintf("--%s is %v, must not be negative", flagOutboxRetention, p.outboxRetention)},
		{!p.hasOutbox() && given(flagRelay),
			fmt.Sprintf("--%s is for --publish=%s", flagRelay, publishOutbox)},
		{!p.hasRelay() && given(flagOutboxRetention),
			fmt.Sprintf("--%s is for --publish=%s with a relay: whoever publishes rows removes them", flagOutboxRetention, publishOutbox)},
		{p.hasOutbox() && p.asyncCommit,
			fmt.Sprintf("--async-commit does not go with --publish=%s: the relay would publish what a crash of Postgres takes back", publishOutbox)},
	} {
		if rule.broken {
			return Usage(errors.New(rule.says))
		}
	}
	return nil
}
