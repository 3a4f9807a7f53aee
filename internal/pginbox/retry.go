package pginbox

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// maxBackoff is the longest pause, as a multiple of the first one.
const maxBackoff = 100

// newBackoff returns pauses that start at about first and double; each is stretched
// or shortened by up to a half at random, so that many members that failed together
// do not come again together.
func newBackoff(first time.Duration) *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval = first
	b.Multiplier = 2
	b.MaxInterval = maxBackoff * first
	return b
}

// sleep returns early, with the context's error, when ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return ctx.Err()
	}
}
