package shortcut

import (
	"context"
	"sync"

	"github.com/delivered-twice/delivered-twice/internal/pginbox"
)

// Memory keeps the ids that are done in a set in the process, and works on what is
// not in it. An id goes in when its transaction is committed.
//
// It holds while one process gets every delivery of an event, and gets the second one
// while the first is among the last million ids (at most two million are kept). It
// stops at the first restart, and at the second member of the group: neither knows
// what the dead process, or the other member, has done. So a death after committed
// and before acknowledged duplicates the batch, as under [None]; a death anywhere else
// costs nothing. A COMMIT whose answer is lost was not remembered, and is done again.
const Memory Guard = "memory"

// Checked: the ids that are in the process's memory have been left out. The passage
// has the other events. A death here costs nothing.
const Checked pginbox.Step = "checked"

// memoryIDs is how many of the last ids are kept for certain. Twice as many take some
// 200 MB.
const memoryIDs = 1_000_000

// memory is a set of ids in two generations. When the younger one is full, the older
// one is forgotten.
type memory struct {
	unguarded
	size int // of a generation

	mu             sync.Mutex
	younger, older map[string]struct{}
}

func newMemory(size int) *memory {
	return &memory{size: size, younger: make(map[string]struct{})}
}

func (m *memory) before(ctx context.Context, d *delivery) ([]pginbox.Event, error) {
	unknown := firsts(d.events, m.has)
	return unknown, d.waitOut(ctx, func() error { return d.pass(ctx, Checked, "", unknown) })
}

func (m *memory) has(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, young := m.younger[id]
	_, old := m.older[id]
	return young || old
}

func (m *memory) after(done []pginbox.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range done {
		if len(m.younger) >= m.size {
			m.younger, m.older = make(map[string]struct{}), m.younger
		}
		m.younger[e.ID] = struct{}{}
	}
}
