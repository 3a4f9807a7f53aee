package wire

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"
)

// Kind is a kind of request.
type Kind string

// The kinds of requests of Kafka's protocol.
const (
	// Produce is a Produce request; with acks=0 it has no answer.
	Produce Kind = "produce"
	// OffsetCommit commits a group's offsets outside of a transaction.
	OffsetCommit Kind = "offset-commit"
	// TxnOffsetCommit adds a group's offsets to a transaction.
	TxnOffsetCommit Kind = "txn-offset-commit"
	// EndTxn is an EndTxn request that commits. One that aborts does not count.
	EndTxn Kind = "end-txn"
	// ShareAcknowledge is a request that acknowledges records of a share group, as
	// accepted, released, rejected or renewed: a ShareAcknowledge, or a ShareFetch
	// that carries acknowledgements along (KIP-932). Those that carry none do not
	// count.
	ShareAcknowledge Kind = "share-acknowledge"
)

// Commit is a message that makes PostgreSQL commit a transaction by name: a Query
// that contains the statement COMMIT, END or COMMIT PREPARED, or the Execute of one
// that was prepared. A Query counts once, however many of them it contains; its
// answer is then that of the first one. Not seen are commits without such a
// statement: of a single statement outside of a transaction block, and within a
// procedure.
const Commit Kind = "commit"

// When is a moment in the life of a request.
type When string

const (
	// BeforeForward is before the server gets any of it: a connection that is cut
	// now leaves it not done.
	BeforeForward When = "before-forward"
	// AfterForward is right after it was sent to the server: whether it was done is
	// open.
	AfterForward When = "after-forward"
	// BeforeAnswer is when the server has answered, and the client has not got any of
	// the answer: unless the answer is a refusal, it was done, and the client cannot
	// know.
	BeforeAnswer When = "before-answer"
	// AfterAnswer is right after the answer was sent to the client; from PostgreSQL,
	// after the ReadyForQuery that follows.
	AfterAnswer When = "after-answer"
)

// Trigger says what to do at which request. It strikes once.
type Trigger struct {
	// On is the kind of request.
	On Kind
	// Nth counts the requests of that kind on all connections together, from 1, from
	// when At is called; 0 means 1.
	Nth int
	// When is the moment. A request that has no answer, see [Produce], does not count
	// for moments around the answer. If the connection ends before a request of the
	// right number is answered, the trigger takes the next one in its place.
	When When
	// Match, if set, restricts counting to some connections. It is called on each
	// request of the kind, and must not block.
	Match func(Conn) bool
	// Do is called at the moment, on the goroutine of that direction of the
	// connection. Until it returns, everything behind the request, or behind the
	// answer, on the same connection waits, and nothing on others does. It may freeze
	// a server or kill a process; to cut the connection alone, (*[Strike]).Cut is a Do.
	Do func(*Strike)
}

// Strike is a trigger that found its request.
type Strike struct {
	// Kind is the kind of the request, and Conn its connection.
	Kind Kind
	Conn Conn

	conn *conn
}

// Cut closes the connection to the client and the one to the server. What has not
// been forwarded yet, request or answer, never will be. What has, arrives, and then
// both sides see the end of the stream, or a reset if they went on sending: what the
// kernel of a killed process does.
func (s *Strike) Cut() { s.conn.cut() }

// Hold waits until release is closed, or receives, and keeps back the request, or
// the answer, so long. If the client closes its connection meanwhile, a held request
// still gets to the server, late, as from a network that took its time. Hold also
// ends when the connection is cut or the proxy closed.
func (s *Strike) Hold(release <-chan struct{}) {
	select {
	case <-release:
	case <-s.conn.alive.Done():
	}
}

// Left returns a channel that is closed when the client has closed its side of the
// connection, or the connection has ended altogether: when the client has given up
// waiting for an answer, for example. It is not noticed while a Do at a moment around
// the request, not the answer, has not returned.
func (s *Strike) Left() <-chan struct{} { return s.conn.left }

// armed is a trigger at work.
type armed struct {
	Trigger
	left   atomic.Int64
	struck chan struct{}
}

// At arms a trigger. The channel that it returns is closed when the trigger has
// struck and its Do has returned. Triggers that share a moment strike in the order
// in which they were armed.
//
// It panics on a trigger that could never strike: a kind that is not of this proxy's
// protocol, no such moment, a negative number, no Do. A test that waits for nothing
// would otherwise pass.
func (p *Proxy) At(t Trigger) <-chan struct{} {
	if !slices.Contains(p.kinds, t.On) {
		panic(fmt.Sprintf("wire: no request here is of kind %q; there are %q", t.On, p.kinds))
	}
	if moments := []When{BeforeForward, AfterForward, BeforeAnswer, AfterAnswer}; !slices.Contains(moments, t.When) {
		panic(fmt.Sprintf("wire: there is no moment %q; there are %q", t.When, moments))
	}
	if t.Nth < 0 || t.Do == nil {
		panic(fmt.Sprintf("wire: a trigger at request %d of kind %s, with Do set: %t; numbers begin at 1, and Do must be set", t.Nth, t.On, t.Do != nil))
	}
	a := &armed{Trigger: t, struck: make(chan struct{})}
	a.left.Store(int64(cmp.Or(t.Nth, 1)))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = append(p.armed, a)
	return a.struck
}

// rearm lets a trigger choose the next request of its kind.
func (p *Proxy) rearm(a *armed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = append(p.armed, a)
	a.left.Store(1)
}

// due are the triggers that chose one request. The zero value is none.
type due struct {
	strike   Strike
	triggers []*armed
}

// count counts a request of the connection and returns the triggers that chose it.
// The empty kind is that of all requests that no trigger can choose.
func (c *conn) count(kind Kind, answered bool) due {
	d := due{strike: Strike{Kind: kind, Conn: c.Conn, conn: c}}
	if kind == "" {
		return d
	}
	p := c.proxy
	p.mu.Lock()
	all := slices.Clone(p.armed)
	p.mu.Unlock()
	for _, a := range all {
		if a.On != kind || !answered && (a.When == BeforeAnswer || a.When == AfterAnswer) ||
			a.Match != nil && !a.Match(c.Conn) || a.left.Add(-1) != 0 {
			continue
		}
		p.mu.Lock()
		p.armed = slices.DeleteFunc(p.armed, func(other *armed) bool { return other == a })
		p.mu.Unlock()
		d.triggers = append(d.triggers, a)
		c.mu.Lock()
		c.owed[a] = struct{}{}
		c.mu.Unlock()
	}
	return d
}

// awaits reports whether some trigger waits for the request's answer.
func (d due) awaits() bool {
	return slices.ContainsFunc(d.triggers, func(a *armed) bool { return a.When == BeforeAnswer || a.When == AfterAnswer })
}

// at strikes with the triggers of the moment, when all that was written to s before
// has been sent. It returns an error if the connection was cut.
func (d due) at(when When, s *stream) error {
	for _, a := range d.triggers {
		if a.When != when {
			continue
		}
		if err := s.to.Flush(); err != nil {
			return err
		}
		d.strike.conn.mu.Lock()
		delete(d.strike.conn.owed, a)
		d.strike.conn.mu.Unlock()
		strike := d.strike
		a.Do(&strike)
		close(a.struck)
	}
	if d.strike.conn == nil {
		return nil
	}
	return d.strike.conn.alive.Err()
}
