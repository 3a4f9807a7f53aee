package stage

import (
	"context"
	"errors"
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
	here        int
	disturbance Disturbance
	ctx         context.Context
	done        chan struct{}
	struck      time.Time
	err         error
}

// Disturbance is something that is done to services, and is over again some time later.
type Disturbance struct {
	// Struck and Mended say that it was done and that it was undone, as for
	// [Stage.Happened].
	Struck, Mended string
	// Strike does it, and Mend undoes it, also where Strike has failed.
	Strike, Mend func(context.Context) error
}

// run returns when all is over, and when it was done.
func (d Disturbance) run(ctx context.Context) (struck time.Time, err error) {
	err = d.Strike(ctx)
	struck = time.Now()
	if d.Mend != nil {
		err = errors.Join(err, d.Mend(ctx))
	}
	return struck, err
}

// NewMeeting is one of so many members. Each must [Meeting.Leave] it in the end.
func NewMeeting(members int) *Meeting { return &Meeting{members: members} }

// Do waits until every member has called Do or has left. Then disturb of the one who
// came last is called, and all get its error.
func (m *Meeting) Do(ctx context.Context, disturb func(context.Context) error) error {
	_, err := m.do(ctx, Disturbance{Strike: disturb})
	return err
}

func (m *Meeting) do(ctx context.Context, d Disturbance) (struck time.Time, err error) {
	if m == nil {
		return d.run(ctx)
	}
	m.mu.Lock()
	if m.round == nil {
		m.round = &round{done: make(chan struct{})}
	}
	r := m.round
	r.here++
	r.ctx, r.disturbance = ctx, d
	m.proceed()
	m.mu.Unlock()
	select {
	case <-r.done:
		return r.struck, r.err
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
		r.struck, r.err = r.disturbance.run(r.ctx)
		close(r.done)
	}()
}
