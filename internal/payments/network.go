package payments

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// Network says how bad the way to the API is. It concerns POST requests only.
type Network struct {
	// Latency is how long new work takes on top, while its key is in flight.
	Latency time.Duration
	// FailRate is the share of requests, from 0 to 1, that get a 500 before any work.
	// It is not stored: a retry is worked on.
	FailRate float64
	// DropResponseRate is the share of requests, from 0 to 1, whose answer is lost when
	// everything is done: the connection is closed without one.
	DropResponseRate float64
	// Seed decides which ones, in the order in which they come.
	Seed uint64
}

// Validate says what is wrong with it, if anything.
func (n Network) Validate() error {
	switch {
	case n.Latency < 0:
		return fmt.Errorf("latency is %v, must not be negative", n.Latency)
	case !(n.FailRate >= 0 && n.FailRate <= 1):
		return fmt.Errorf("fail rate is %v, must be from 0 to 1", n.FailRate)
	case !(n.DropResponseRate >= 0 && n.DropResponseRate <= 1):
		return fmt.Errorf("rate of dropped responses is %v, must be from 0 to 1", n.DropResponseRate)
	}
	return nil
}

// delay waits as long as new work takes on top.
func (n Network) delay(ctx context.Context) error {
	if n.Latency == 0 {
		return nil
	}
	timer := time.NewTimer(n.Latency)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// luck decides by a seed. Each kind of mishap has one of its own, so that the one
// rate does not change what the other hits.
type luck struct {
	mu     sync.Mutex
	random *rand.Rand
}

func newLuck(seed, kind uint64) *luck { return &luck{random: rand.New(rand.NewPCG(seed, kind))} }

// strikes says whether this one is hit.
func (l *luck) strikes(rate float64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.random.Float64() < rate
}
