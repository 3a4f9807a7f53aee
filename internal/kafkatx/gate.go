package kafkatx

import (
	"context"
	"errors"
	"sync"
)

// errBefore is why a transaction fails with which nothing is wrong: what it follows will
// not be there.
var errBefore = errors.New("a transaction before this one has failed")

// gate is something that a transaction has got done or never will, and that the next one
// waits for.
type gate struct {
	once    sync.Once
	settled chan struct{}
	failed  bool
}

func newGate() *gate { return &gate{settled: make(chan struct{})} }

// settle opens the gate or, if it is never to open, tells those who wait. Only the first
// call counts.
func (g *gate) settle(done bool) {
	g.once.Do(func() {
		g.failed = !done
		close(g.settled)
	})
}

// wait returns nil once the gate is open, and errBefore if it never will be.
func (g *gate) wait(ctx context.Context) error {
	select {
	case <-g.settled:
	case <-ctx.Done():
		return ctx.Err()
	}
	if g.failed {
		return errBefore
	}
	return nil
}

// gates are what the next transaction waits for, each at the point where it would
// overtake this one otherwise.
type gates struct {
	// produced: every record is acknowledged. Requests of two producers may overtake each
	// other, so the next transaction's records are not sent before.
	produced *gate
	// offsets: the group's coordinator has accepted the input offsets.
	offsets *gate
	// committed: the transaction's coordinator has answered EndTxn, and will finish what it
	// has begun, whatever happens.
	committed *gate
}

func newGates() gates { return gates{newGate(), newGate(), newGate()} }

// openGates are those before a first transaction.
func openGates() gates {
	g := newGates()
	g.settle(true)
	return g
}

func (g gates) settle(done bool) {
	g.produced.settle(done)
	g.offsets.settle(done)
	g.committed.settle(done)
}
