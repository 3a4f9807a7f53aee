package cli

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/pginbox"
	"github.com/delivered-twice/delivered-twice/internal/shortcut"
)

// consumer brings events to a guard until its context ends.
type consumer interface {
	Run(context.Context) error
}

// consumer returns what --source names, for one of the workers.
func (p *inboxPipeline) consumer(worker int, guard openGuard, pool *pgxpool.Pool, hook pginbox.Hook) (consumer, error) {
	if p.source == sourceWebhook {
		return p.webhook(guard, hook)
	}
	if p.source == sourceShareGroup {
		c, err := pginbox.NewShareConsumer(pginbox.ShareConsumerOptions{
			Client:     p.client(),
			Group:      p.group,
			Topics:     []string{p.input},
			RetryTopic: p.retryTopic,
			BatchSize:  p.batchSize,
			Identify:   order.ID,
			Process:    guard.process,
			Hook:       hook,
			Logger:     p.logger(),
		})
		if err != nil {
			return nil, Usage(err)
		}
		return c, nil
	}
	options := pginbox.ConsumerOptions{
		Client:           p.client(),
		Group:            p.group,
		Topics:           []string{p.input},
		InstanceID:       p.worker(worker),
		SessionTimeout:   p.sessionTimeout,
		BatchSize:        p.batchSize,
		Identify:         order.ID,
		Process:          guard.process,
		Resume:           guard.resume,
		AcknowledgeFirst: p.guard == string(shortcut.AckFirst),
		Hook:             hook,
		Logger:           p.logger(),
	}
	if p.ackAfterFlush {
		options.AcknowledgeAfterFlush = pool
	}
	c, err := pginbox.NewConsumer(options)
	if err != nil {
		return nil, Usage(err)
	}
	return c, nil
}
