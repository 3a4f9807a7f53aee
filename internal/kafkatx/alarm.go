package kafkatx

import (
	"context"
	"sync/atomic"
)

// alarm wakes the session up that waits for records, because a transaction has failed or
// a rebalance waits for all of them to end.
type alarm struct{ armed atomic.Pointer[armedAlarm] }

type armedAlarm struct {
	ctx    context.Context
	cancel context.CancelFunc
}

// arm silences the alarm. It must be armed before anything else.
func (a *alarm) arm(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	if before := a.armed.Swap(&armedAlarm{ctx, cancel}); before != nil {
		before.cancel()
	}
}

// context ends when the alarm rings, or with that which it was armed with.
func (a *alarm) context() context.Context { return a.armed.Load().ctx }

// ring may be called by any goroutine.
func (a *alarm) ring() { a.armed.Load().cancel() }
