package twophase_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/kafkatx"
	"github.com/delivered-twice/delivered-twice/internal/twophase"
	"github.com/delivered-twice/delivered-twice/internal/wire"
)

// requireOnce asserts that all is done once on both sides, and nothing is left over.
func (p *place) requireOnce(all []string) {
	p.t.Helper()
	require.Equal(p.t, once(all), p.worked())
	require.Equal(p.t, once(all), p.produced(p.output))
	p.requireNothingLeft()
}

// finishAll ends what is decided. An engine that fails at its last step and is told to
// stop leaves the row of a transaction that is committed.
func (p *place) finishAll() {
	p.t.Helper()
	left, err := p.decisions().All(p.t.Context())
	require.NoError(p.t, err)
	for _, one := range left {
		require.NoError(p.t, p.decisions().Finish(p.t.Context(), one))
	}
}

func (p *place) requireNothingLeft() {
	p.t.Helper()
	left, err := p.decisions().All(p.t.Context())
	require.NoError(p.t, err)
	require.Empty(p.t, left)
	_, causes := p.lost()
	require.Empty(p.t, causes)
}

func TestFailureAtEveryStep(t *testing.T) {
	for _, step := range append(twophase.Steps(), "none") {
		t.Run(string(step), func(t *testing.T) {
			p := newPlace(t)
			p.send(ids(120)...)
			o := p.options("a")
			o.hook(failing(step))
			m := p.start(o)
			p.awaitConsumed()
			m.end()
			p.finishAll()
			p.requireOnce(ids(120))
		})
	}
}

// What produces nothing is one commit with its offsets all the same.
func TestNoOutput(t *testing.T) {
	for _, step := range []kafkatx.Step{"none", kafkatx.OffsetsSent, twophase.Worked, kafkatx.Decided, kafkatx.Committed} {
		t.Run(string(step), func(t *testing.T) {
			p := newPlace(t)
			p.send(ids(60)...)
			o := p.options("a")
			o.engine.Handler = func(context.Context, []*kgo.Record) ([]*kgo.Record, error) { return nil, nil }
			o.hook(failing(step))
			m := p.start(o)
			p.awaitConsumed()
			m.end()
			p.finishAll()
			require.Equal(t, once(ids(60)), p.worked())
			require.Empty(t, p.produced(p.output))
			p.requireNothingLeft()
		})
	}
}

// An event whose work Postgres refuses becomes a dead letter, and the others of its batch
// are done once, with output and without.
func TestPoison(t *testing.T) {
	for name, handler := range map[string]kafkatx.Handler{
		"output": nil,
		"none":   func(context.Context, []*kgo.Record) ([]*kgo.Record, error) { return nil, nil },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			p.send(append(append(ids(30), "poison"), "last")...)
			o := p.options("a")
			if handler != nil {
				o.engine.Handler = handler
			}
			m := p.start(o)
			p.awaitConsumed()
			m.end()
			good := append(ids(30), "last")
			require.Equal(t, once(good), p.worked())
			require.Equal(t, once([]string{"poison"}), p.produced(p.letters))
			if handler == nil {
				require.Equal(t, once(good), p.produced(p.output))
			}
			p.requireNothingLeft()
		})
	}
}

// A member stands still with a decision and is given up by its group: another one ends
// its transaction, without which it could not go on from its offsets. When it wakes up,
// its own EndTxn finds that done, and it goes on.
func TestAnotherMemberFinishes(t *testing.T) {
	p := newPlace(t)
	p.send(ids(60)...)
	g := newGate()
	o := p.options("a")
	o.TransactionTimeout *= 10 // nobody waits this out
	o.hook(g.at(kafkatx.Decided, 2))
	a := p.start(o)
	g.await(t)
	_, err := p.admin.LeaveGroup(t.Context(), kadm.LeaveGroup(p.group).InstanceIDs("a"))
	require.NoError(t, err)
	b := p.start(p.options("b"))
	p.awaitConsumed()
	_, stored := p.decided("a")
	require.False(t, stored)
	require.Contains(t, p.logged(), "finished what another member has decided")

	close(g.open)
	more := ids(100)
	p.send(more[60:]...)
	p.awaitConsumed()
	a.end()
	b.end()
	p.requireOnce(more)
}

// Another process initialises the transactional id between the decision and its end:
// that is a loss, and is told with the ids of its events, which come again.
func TestLossIsTold(t *testing.T) {
	p := newPlace(t)
	p.send(ids(60)...)
	g := newGate()
	o := p.options("a")
	o.hook(g.at(kafkatx.Decided, 2))
	m := p.start(o)
	g.await(t)
	one, stored := p.decided("a")
	require.True(t, stored)
	require.NotEmpty(t, one.EventIDs)
	p.takeOver("a")
	close(g.open)
	p.awaitConsumed()
	m.end()

	events, causes := p.lost()
	require.Equal(t, [][]string{one.EventIDs}, events)
	require.Contains(t, causes[0], "the broker has aborted it")
	require.Contains(t, p.logged(), "a transaction is lost")
	require.Contains(t, p.logged(), one.EventIDs[0])
	require.Equal(t, once(ids(60)), p.produced(p.output))
	twice := once(ids(60))
	for _, id := range one.EventIDs {
		twice[id]++
	}
	require.Equal(t, twice, p.worked(), "their work is done twice")
}

// The connection is cut while COMMIT is in flight: whether it was done is looked up.
func TestCommitInDoubt(t *testing.T) {
	for _, when := range []wire.When{wire.BeforeForward, wire.BeforeAnswer} {
		t.Run(fmt.Sprint(when), func(t *testing.T) {
			p := newPlace(t)
			p.send(ids(60)...)
			proxy, err := wire.Postgres(address(t, p.database))
			require.NoError(t, err)
			defer proxy.Close()
			cut := proxy.At(wire.Trigger{On: wire.Commit, Nth: 2, When: when, Do: (*wire.Strike).Cut})
			o := p.options("a")
			o.pool = p.connect(through(t, p.database, proxy.Addrs()[0]))
			m := p.start(o)
			p.awaitConsumed()
			<-cut
			m.end()
			p.requireOnce(ids(60))
			if when == wire.BeforeAnswer {
				require.Contains(t, p.logged(), "finished what an earlier incarnation has decided")
			}
		})
	}
}

// An error of the work that may pass is nobody's fault.
func TestPostgresAway(t *testing.T) {
	p := newPlace(t)
	p.send(ids(40)...)
	o := p.options("a")
	calls, ended := 0, 0
	o.hook(func(ctx context.Context, passage kafkatx.Passage) error {
		if passage.Step != twophase.Worked {
			return nil
		}
		if calls++; calls < 2 || calls > 5 { // that is more often than an event may fail
			return nil
		}
		// The session whose last statement has stored the decision.
		done, err := p.pool.Exec(ctx, `
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE state = 'idle in transaction' AND pid IN (SELECT pid FROM pg_locks WHERE relation = 'decided_transactions'::regclass)`)
		ended += int(done.RowsAffected())
		return err
	})
	m := p.start(o)
	p.awaitConsumed()
	m.end()
	require.Equal(t, 4, ended)
	p.requireOnce(ids(40))
	require.Empty(t, p.produced(p.letters))
}

func TestParticipantNeedsTransactions(t *testing.T) {
	p := newPlace(t)
	o := p.options("a")
	o.engine.Participant = twophase.New(p.pool, p.client, o.Options)
	o.engine.Guarantee = kafkatx.AtLeastOnce
	_, err := kafkatx.New(o.engine)
	require.ErrorContains(t, err, "no transaction to take part in")
}
