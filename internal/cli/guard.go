package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/delivered-twice/delivered-twice/internal/nearest"
	"github.com/delivered-twice/delivered-twice/internal/pginbox"
	"github.com/delivered-twice/delivered-twice/internal/shortcut"
)

// The guards of package pginbox. The others are those of package shortcut.
const (
	guardInbox   = "inbox"
	guardOffsets = "offsets"
	guardBoth    = "inbox+offsets"
)

var remember = map[string]pginbox.Remember{
	guardInbox:   pginbox.RememberIDs,
	guardOffsets: pginbox.RememberOffsets,
	guardBoth:    pginbox.RememberBoth,
}

// guards returns the names that --guard may have.
func guards() []string {
	names := []string{guardInbox, guardOffsets, guardBoth}
	for _, g := range shortcut.Guards() {
		names = append(names, string(g))
	}
	return names
}

func (p *inboxPipeline) shortcut() bool {
	return slices.Contains(shortcut.Guards(), shortcut.Guard(p.guard))
}

func (p *inboxPipeline) keepsIDs() bool { return p.guard == guardInbox || p.guard == guardBoth }

func (p *inboxPipeline) keepsOffsets() bool { return p.guard == guardOffsets || p.guard == guardBoth }

// check refuses flags that mean nothing, alone or together: what is typed and has no
// effect would be taken for what was tried. given says whether a flag was typed.
func (p *inboxPipeline) check(given func(flag string) bool) error {
	p.withoutKafka = p.source == sourceWebhook
	if err := p.complete(); err != nil {
		return err
	}
	if !slices.Contains(guards(), p.guard) {
		return Usage(fmt.Errorf("--guard is %q%s; all: %s", p.guard, nearest.Hint(p.guard, guards()), strings.Join(guards(), ", ")))
	}
	if err := p.checkOutbox(given); err != nil {
		return err
	}
	for _, rule := range []struct {
		broken bool
		says   string
	}{
		{p.calls.payments() && p.shortcut() && p.guard != string(shortcut.None),
			fmt.Sprintf("--call=%s is for the guards %s, %s, %s and %s, not for --guard=%s", callPayments, guardInbox, guardOffsets, guardBoth, shortcut.None, p.guard)},
		{p.calls.payments() && given(flagHandlers) && !slices.Contains(p.handlers, handlerPayment),
			fmt.Sprintf("--call=%s is done by the handler %s, which --handlers leaves out", callPayments, handlerPayment)},
		{!p.calls.payments() && slices.Contains(p.handlers, handlerPayment),
			fmt.Sprintf("--handlers has %s, which needs --call=%s", handlerPayment, callPayments)},
		{p.publish != publishNothing && p.publish != publishDirect && p.publish != publishOutbox,
			fmt.Sprintf("--publish is %q, must be %s, %s or %s", p.publish, publishNothing, publishDirect, publishOutbox)},
		{p.source != sourceGroup && p.source != sourceShareGroup && p.source != sourceWebhook,
			fmt.Sprintf("--source is %q, must be %s, %s or %s", p.source, sourceGroup, sourceShareGroup, sourceWebhook)},
		{p.batchSize < 1,
			fmt.Sprintf("--batch-size is %d, must be at least 1", p.batchSize)},
		{p.workers < 1,
			fmt.Sprintf("--%s is %d, must be at least 1", flagWorkers, p.workers)},
		{p.workers > 1 && p.source != sourceGroup,
			fmt.Sprintf("--%s is for --source=%s", flagWorkers, sourceGroup)},
		{p.redisTTL < time.Millisecond,
			fmt.Sprintf("--redis-ttl is %v, must be at least 1ms", p.redisTTL)},

		{p.asyncCommit && p.shortcut(),
			fmt.Sprintf("--async-commit is for the guards %s, %s and %s: --guard=%s has holes enough without it", guardInbox, guardOffsets, guardBoth, p.guard)},
		{p.ackAfterFlush && !p.asyncCommit,
			"--ack-after-flush needs --async-commit: without it every commit is on disk before it is acknowledged"},
		{p.ackAfterFlush && p.keepsOffsets(),
			fmt.Sprintf("--ack-after-flush does nothing for --guard=%s: a crash takes the stored offset back with the work, whatever Kafka was told", p.guard)},
		{p.source == sourceShareGroup && p.keepsOffsets(),
			fmt.Sprintf("--source=%s has no offsets to store: it goes with --guard=%s", sourceShareGroup, guardInbox)},
		{p.source == sourceShareGroup && p.ackAfterFlush,
			fmt.Sprintf("--ack-after-flush is for --source=%s", sourceGroup)},
		{p.source != sourceShareGroup && p.retryTopic != "",
			fmt.Sprintf("--retry-topic is for --source=%s: a consumer group gets a record again until it is acknowledged", sourceShareGroup)},
		{p.source == sourceShareGroup && p.guard == string(shortcut.AckFirst),
			fmt.Sprintf("--guard=%s is for --source=%s", p.guard, sourceGroup)},
		{p.publish != publishNothing && p.shortcut() && p.guard != string(shortcut.None),
			fmt.Sprintf("--publish=%s is for the guards %s, %s, %s and %s, not for --guard=%s", p.publish, guardInbox, guardOffsets, guardBoth, shortcut.None, p.guard)},

		{!p.keepsIDs() && given(flagEventKey), p.idle(flagEventKey, guardInbox, guardBoth)},
		{!p.keepsIDs() && given(flagPurgeAfter), p.idle(flagPurgeAfter, guardInbox, guardBoth)},
		{!p.keepsIDs() && given(flagRedeliveryHorizon), p.idle(flagRedeliveryHorizon, guardInbox, guardBoth)},
		{p.guard != string(shortcut.Redis) && given(flagRedisURL), p.idle(flagRedisURL, string(shortcut.Redis))},
		{p.guard != string(shortcut.Redis) && given(flagRedisTTL), p.idle(flagRedisTTL, string(shortcut.Redis))},
	} {
		if rule.broken {
			return Usage(errors.New(rule.says))
		}
	}
	if err := p.calls.check(p.logger()); err != nil {
		return err
	}
	if p.calls.payments() && !given(flagHandlers) {
		p.handlers = append(p.handlers, handlerPayment)
	}
	p.shareGroup = p.source == sourceShareGroup
	if err := p.checkWebhook(given); err != nil {
		return err
	}
	if err := p.purgePolicy().Validate(); err != nil {
		return Usage(err)
	}
	return nil
}

// idle says that a flag does nothing under this guard.
func (p *inboxPipeline) idle(flag string, uses ...string) string {
	return fmt.Sprintf("--%s does nothing for --guard=%s: it is for --guard=%s", flag, p.guard, strings.Join(uses, " and "))
}

// openGuard is a guard that is ready to work.
type openGuard struct {
	process func(context.Context, []pginbox.Event) error
	// resume says where a partition goes on; nil where the group's offsets do.
	resume func(ctx context.Context, assigned map[string][]int32) (map[string]map[int32]int64, error)
	purge  func(context.Context) // until the context ends
	close  func()
}

func (p *inboxPipeline) openGuard(ctx context.Context, pool *pgxpool.Pool, handlers []pginbox.Handler, hook pginbox.Hook) (openGuard, error) {
	if p.shortcut() {
		return p.openShortcut(ctx, pool, handlers, hook)
	}
	inbox, err := pginbox.New(pool, pginbox.Options{
		Handlers:           handlers,
		Remember:           remember[p.guard],
		Keys:               pginbox.Keys(p.eventKey),
		AsynchronousCommit: p.asyncCommit,
		MaxAttempts:        p.maxAttempts,
		Hook:               hook,
		Logger:             p.logger(),
	})
	if err != nil {
		return openGuard{}, Usage(err)
	}
	opened := openGuard{process: inbox.Process, purge: func(context.Context) {}, close: func() {}}
	if p.keepsOffsets() {
		opened.resume = inbox.Resume
	}
	if p.keepsIDs() {
		opened.purge = func(ctx context.Context) { p.purgeNowAndThen(ctx, inbox) }
	}
	return opened, nil
}

func (p *inboxPipeline) openShortcut(ctx context.Context, pool *pgxpool.Pool, handlers []pginbox.Handler, hook pginbox.Hook) (openGuard, error) {
	opened := openGuard{purge: func(context.Context) {}, close: func() {}}
	options := shortcut.Options{
		Guard:       shortcut.Guard(p.guard),
		Handlers:    handlers,
		RedisTTL:    p.redisTTL,
		RedisPrefix: p.input + "/", // not the group: an event is the same event in every group
		MaxAttempts: p.maxAttempts,
		Hook:        hook,
		Logger:      p.logger(),
	}
	switch options.Guard {
	case shortcut.Redis:
		client, err := p.openRedis(ctx)
		if err != nil {
			return opened, err
		}
		options.Redis = client
		opened.close = func() { _ = client.Close() }
	case shortcut.SelectFirst:
		if err := shortcut.Migrate(ctx, pool); err != nil {
			return opened, err
		}
	}
	s, err := shortcut.New(pool, options)
	if err != nil {
		opened.close()
		return opened, Usage(err)
	}
	opened.process = s.Process
	return opened, nil
}

// redisPatience bounds the first answer of Redis.
const redisPatience = 10 * time.Second

// openRedis connects to Redis. Its errors never quote the address as it was given: it
// may hold a password.
func (p *inboxPipeline) openRedis(ctx context.Context) (*redis.Client, error) {
	address := p.redisURL
	if address == "" {
		address = os.Getenv("REDIS_URL")
	}
	if address == "" {
		return nil, Usage(errors.New("no Redis: set --redis-url or REDIS_URL"))
	}
	options, err := redis.ParseURL(address)
	if err != nil {
		return nil, Usage(errors.New("the address of Redis is not readable; write redis://user:password@host:6379/0, with the special characters of the password percent-encoded"))
	}
	logging.Disable() // what it has to say comes back as errors, too
	client := redis.NewClient(options)
	ctx, cancel := context.WithTimeout(ctx, redisPatience)
	defer cancel()
	if err := client.Ping(ctx).Err(); err != nil {
		_ = client.Close()
		return nil, fmt.Errorf("no answer from Redis at %s: %w; check the address, the password, and that the server is up", options.Addr, err)
	}
	return client, nil
}

const (
	// purgeEvery is how often rows that are old enough are looked for.
	purgeEvery = time.Minute
	// purgeInboxEvery is the same for an inbox, which is read from end to end.
	purgeInboxEvery = time.Hour
)

func (p *inboxPipeline) purgePolicy() pginbox.PurgePolicy {
	return pginbox.PurgePolicy{Window: p.purgeAfter, RedeliveryHorizon: p.redeliveryHorizon}
}

// purgeNowAndThen removes old inbox rows until ctx ends. A purge that fails is
// tried again later: until then the table is only larger than it need be.
func (p *inboxPipeline) purgeNowAndThen(ctx context.Context, inbox *pginbox.Inbox) {
	tick := time.NewTicker(purgeInboxEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			removed, err := inbox.Purge(ctx, p.purgePolicy())
			if err != nil && ctx.Err() == nil {
				p.logger().Warn("purging the inbox failed; it is tried again later", "cause", err)
			} else if removed > 0 {
				p.logger().Info("purged the inbox", "rows", removed, "older than", p.purgeAfter)
			}
		}
	}
}
