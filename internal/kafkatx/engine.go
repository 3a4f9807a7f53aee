package kafkatx

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// stopGrace bounds how long an engine that is told to stop may take to finish or
// abort what is open.
const stopGrace = 10 * time.Second

// Engine runs the loop of one group member.
type Engine struct {
	config   Config
	suspects *suspects
}

// New returns an engine, or an error that says what is wrong with the
// configuration. It connects to nothing.
func New(c Config) (*Engine, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("kafkatx: %w", err)
	}
	return &Engine{config: c, suspects: newSuspects(c.MaxAttempts)}, nil
}

// Run consumes until ctx ends; then it commits what is open, or aborts it if that
// doesn't succeed within 10 seconds, and returns nil. Nothing is left to the
// transaction timeout. The member does not leave its group: it is static, and its
// partitions wait for its return for as long as the session timeout.
//
// Whatever goes wrong in between — fenced by another producer of the same
// TransactionalID, a TransactionalID that the broker has forgotten
// (INVALID_PRODUCER_ID_MAPPING), offsets refused because of a rebalance or a
// coordinator that crashed, an EndTxn of unknown outcome — is answered in one way,
// the way a new process would: the open transaction is aborted, both clients are
// built anew, and work goes on from the committed offsets. What a [Participant] has
// decided, or perhaps has, is left to its Recover.
//
// It returns an error only for what another try cannot mend: missing permissions,
// a transaction timeout above the broker's maximum, or another process that runs
// as the same instance of the group.
func (e *Engine) Run(ctx context.Context) error {
	pause := newBackoff(e.config)
	for {
		progress, err := e.runSession(ctx)
		if err == nil {
			return nil
		}
		if fatal := fatalError(e.config, err); fatal != nil {
			return fatal
		}
		if ctx.Err() != nil {
			// The new session's InitProducerID would have aborted what is open, or its
			// participant committed it.
			e.config.Logger.Warn("stopped without finishing the open transaction", "cause", err)
			return nil
		}
		if progress {
			pause.Reset()
		}
		wait := pause.NextBackOff()
		e.config.Logger.Warn("building the Kafka clients anew, going on from the committed offsets",
			"cause", err, "after", wait)
		sleep(ctx, wait)
	}
}

// runSession runs until ctx ends (nil) or something fails. progress says that at
// least one transaction was committed.
func (e *Engine) runSession(ctx context.Context) (progress bool, err error) {
	work, done := withGrace(ctx, stopGrace)
	defer done()
	s, err := openSession(ctx, work, e)
	if err != nil {
		if ctx.Err() != nil {
			return false, nil
		}
		return false, err
	}
	err = s.run(ctx)
	if closeErr := s.close(); closeErr != nil {
		err = errors.Join(err, closeErr)
	}
	return s.committed > 0, err
}

func newBackoff(c Config) *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval = c.RetryBackoff
	b.Multiplier = 2
	b.MaxInterval = 100 * c.RetryBackoff
	return b
}

// withGrace returns a context that ends so long after ctx has: for work that is to
// be finished rather than cut off.
func withGrace(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })
	return work, func() { stop(); cancel() }
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
