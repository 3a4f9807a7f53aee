package stage

import (
	"context"
	"sync"
	"time"
)

// Meeting is where stages meet that share services which are to be disturbed: what
// disturbs them is done once, when all are there. It may be used again and again. A
// nil *Meeting is one of a single stage.
type Meeting struct {
	mu      sync.Mutex
	members int
	round   *round
}

type round struct {
	here    int
	disturb func(context.Context) error
	ctx     context.Context
	done    chan struct{}
	began   time.Time // the disturbance
	err     error
}

// NewMeeting is one of so many members. Each must [Meeting.Leave] it in the end.
func NewMeeting(members int) *Meeting { return &Meeting{members: members} }

// Do waits until every member has called Do or has left. Then disturb of the one who
// came last is called, and all get its error.
func (m *Meeting) Do(ctx context.Context, disturb func(context.Context) error) error {
	_, err := m.do(ctx, disturb)
	return err
}

// do is Do, and says when the disturbance began.
func (m *Meeting) do(ctx context.Context, disturb func(context.Context) error) (began time.Time, err error) {
	if m == nil {
		began = time.Now()
		return began, disturb(ctx)
	}
	m.mu.Lock()
	if m.round == nil {
		m.round = &round{done: make(chan struct{})}
	}
	r := m.round
	r.here++
	r.ctx, r.disturb = ctx, disturb
	m.proceed()
	m.mu.Unlock()
	select {
	case <-r.done:
		return r.began, r.err
	case <-ctx.Done():
		return time.Time{}, ctx.Err()
	}
}

// Leave says that one member will not come any more.
func (m *Meeting) Leave() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.members--
	m.proceed()
}

// proceed begins the disturbance if everybody is here.
func (m *Meeting) proceed() {
	r := m.round
	if r == nil || r.here < m.members {
		return
	}
	m.round = nil
	go func() {
		r.began = time.Now()
		r.err = r.disturb(r.ctx)
		close(r.done)
	}()
}
