package twophase_test

import (
	"context"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/delivered-twice/delivered-twice/internal/kafkatx"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
	"github.com/delivered-twice/delivered-twice/internal/twophase"
)

// address is host and port of a database's address.
func address(t *testing.T, database string) string {
	config, err := pgx.ParseConfig(database)
	require.NoError(t, err)
	return net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
}

// through is a database's address at another one.
func through(t *testing.T, database, address string) string {
	u, err := url.Parse(database)
	require.NoError(t, err)
	u.Host = address
	return u.String()
}

// recovered is the coordinator of an instance that has just started.
func (p *place) recovered(o options) *twophase.Coordinator {
	p.t.Helper()
	c := twophase.New(p.pool, p.client, o.Options)
	require.NoError(p.t, c.Recover(p.t.Context()))
	return c
}

// What everything else stands on: what EndTxn version 5 answers when it is repeated, late
// or too late. From the first answers the log is needed to tell which one it was.
func TestAnswersToEndTxn(t *testing.T) {
	p := newPlace(t)
	end := func(o *owner, id int64, epoch int16) error {
		req := kmsg.NewPtrEndTxnRequest()
		req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = o.TransactionalID, id, epoch, true
		for {
			resp, err := req.RequestWith(t.Context(), p.client)
			require.NoError(t, err)
			require.EqualValues(t, 5, resp.Version)
			err = kerr.ErrorForCode(resp.ErrorCode)
			if err == nil {
				require.Equal(t, id, resp.ProducerID)
				require.Equal(t, epoch+1, resp.ProducerEpoch, "the epoch of the next transaction")
			}
			if err != kerr.ConcurrentTransactions {
				return err
			}
		}
	}
	o := p.open("a", time.Minute, "evt_1")
	id, first := o.ProducerID, o.ProducerEpoch
	require.NoError(t, end(o, id, first), "by somebody else")
	require.NoError(t, end(o, id, first), "again")
	require.NoError(t, o.client.EndTransaction(t.Context(), kgo.TryCommit), "by its owner, who goes on")
	o.begin(p, "evt_2")
	require.Equal(t, first+1, o.ProducerEpoch)
	require.ErrorIs(t, end(o, id, first), kerr.ProducerFenced, "late, and it does not end the next one")
	require.NoError(t, o.client.EndTransaction(t.Context(), kgo.TryCommit))

	p.takeOver("a")
	require.ErrorIs(t, end(o, id, first+1), kerr.ProducerFenced, "of a committed one, once the id was initialised again")

	short := p.open("b", time.Second, "evt_3")
	p.produced(p.output) // waits for the timeout
	err := end(short, short.ProducerID, short.ProducerEpoch)
	require.Error(t, err)
	require.Contains(t, []error{kerr.InvalidTxnState, kerr.ProducerFenced}, err, "of one that the broker has aborted")
	require.Equal(t, once([]string{"evt_1", "evt_2"}), p.produced(p.output))
}

// EndTxn is refused both for what was committed and for what was aborted. Finish tells
// them apart, even where another attempt was committed since.
func TestFinishTellsCommittedFromAborted(t *testing.T) {
	p := newPlace(t)
	c := p.recovered(p.options("a"))
	ctx := t.Context()

	committed := p.open("a", time.Minute, "evt_1")
	require.NoError(t, c.Decide(ctx, committed.Prepared))
	one, stored := p.decided("a")
	require.True(t, stored)
	require.NoError(t, committed.client.EndTransaction(ctx, kgo.TryCommit))
	committed.begin(p, "evt_2") // and evt_1's row is still there
	require.NoError(t, committed.client.EndTransaction(ctx, kgo.TryAbort))
	p.takeOver("a")
	require.NoError(t, c.Finish(ctx, one))
	p.requireNothingLeft()

	aborted := p.open("a", time.Minute, "evt_3")
	require.NoError(t, c.Decide(ctx, aborted.Prepared))
	one, _ = p.decided("a")
	again := p.open("a", time.Minute, "evt_3")
	require.NoError(t, again.client.EndTransaction(ctx, kgo.TryCommit))
	require.ErrorIs(t, c.Finish(ctx, one), twophase.ErrLost)
	require.ErrorIs(t, c.Finish(ctx, one), twophase.ErrLost, "by another one, at the same time")
	events, causes := p.lost()
	require.Equal(t, [][]string{{"evt_3"}}, events, "and is kept once")
	require.Contains(t, causes[0], "PRODUCER_FENCED")
	require.Equal(t, once([]string{"evt_1", "evt_3"}), p.produced(p.output))
}

// Where the record is gone that could tell, it counts as lost.
func TestFinishWithoutALog(t *testing.T) {
	p := newPlace(t)
	c := p.recovered(p.options("a"))
	o := p.open("a", time.Minute, "evt_1")
	require.NoError(t, c.Decide(t.Context(), o.Prepared))
	one, _ := p.decided("a")
	require.NoError(t, o.client.EndTransaction(t.Context(), kgo.TryCommit))
	p.takeOver("a")
	_, err := p.admin.DeleteTopic(t.Context(), p.output)
	require.NoError(t, err)
	require.ErrorIs(t, c.Finish(t.Context(), one), twophase.ErrLost)
	_, causes := p.lost()
	require.Len(t, causes, 1)
	require.Contains(t, causes[0], "nobody can tell any more")
}

// A transaction without records has only the group's offsets to tell what became of it.
func TestFinishWithoutOutput(t *testing.T) {
	p := newPlace(t)
	p.send(ids(5)...)
	o := p.options("a")
	o.engine.Handler = func(context.Context, []*kgo.Record) ([]*kgo.Record, error) { return nil, nil }
	g := newGate()
	o.hook(g.at(kafkatx.Decided, 1))
	m := p.start(o)
	g.await(t)
	p.takeOver("a")
	close(g.open)
	p.awaitConsumed()
	m.end()
	events, causes := p.lost()
	require.Len(t, events, 1)
	require.NotEmpty(t, events[0])
	require.Contains(t, causes[0], "the broker has aborted it: group")
}

// A later incarnation refuses what an earlier one still wants to decide.
func TestFenced(t *testing.T) {
	p := newPlace(t)
	earlier := p.recovered(p.options("a"))
	o := p.open("a", time.Minute, "evt_1")
	p.recovered(p.options("a"))
	require.ErrorIs(t, earlier.Decide(t.Context(), o.Prepared), twophase.ErrFenced)
	require.Empty(t, p.worked())
	p.requireNothingLeft()
}

// Decisions in flight are waited for: what is not there then never will be.
func TestRecoverWaitsForADecisionInFlight(t *testing.T) {
	p := newPlace(t)
	g := newGate()
	o := p.options("a")
	o.hook(g.at(twophase.Worked, 1))
	earlier := p.recovered(o)
	tx := p.open("a", time.Minute, "evt_1")
	decided := make(chan error, 1)
	go func() { decided <- earlier.Decide(t.Context(), tx.Prepared) }()
	g.await(t)

	recovered := make(chan error, 1)
	go func() { recovered <- twophase.New(p.pool, p.client, p.options("a").Options).Recover(t.Context()) }()
	require.Eventually(t, func() bool {
		var waiting int
		err := p.pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%INSERT INTO transactional_ids%' AND pid <> pg_backend_pid()`).Scan(&waiting)
		return err == nil && waiting > 0
	}, patience, 5*time.Millisecond, "it does not wait")
	close(g.open)
	require.NoError(t, <-decided)
	require.NoError(t, <-recovered)
	p.requireNothingLeft()
	require.Equal(t, once([]string{"evt_1"}), p.worked())
	require.Equal(t, once([]string{"evt_1"}), p.produced(p.output), "it was carried out")
}

// Too late for its EndTxn, nothing is decided.
func TestLate(t *testing.T) {
	p := newPlace(t)
	c := p.recovered(p.options("a"))
	o := p.open("a", time.Minute, "evt_1")
	o.Begun = time.Now().Add(-6 * time.Second) // of 10
	require.ErrorIs(t, c.Decide(t.Context(), o.Prepared), twophase.ErrLate)
	require.Empty(t, p.worked())
	p.requireNothingLeft()
}

func TestAbort(t *testing.T) {
	p := newPlace(t)
	d := p.decisions()
	id := kafkatx.TransactionalID(p.group, "a", 0)
	require.ErrorIs(t, d.Abort(t.Context(), id, false), twophase.ErrNotOpen)

	c := p.recovered(p.options("a"))
	undecided := p.open("a", time.Minute, "evt_1")
	require.NoError(t, d.Abort(t.Context(), id, false))
	require.ErrorIs(t, c.Decide(t.Context(), undecided.Prepared), twophase.ErrFenced, "its owner may not decide on it any more")

	c = p.recovered(p.options("a"))
	decided := p.open("a", time.Minute, "evt_2")
	require.NoError(t, c.Decide(t.Context(), decided.Prepared))
	require.ErrorIs(t, d.Abort(t.Context(), id, false), twophase.ErrDecided)
	_, stored := p.decided("a")
	require.True(t, stored)
	require.NoError(t, d.Abort(t.Context(), id, true))
	events, causes := p.lost()
	require.Equal(t, [][]string{{"evt_2"}}, events)
	require.Equal(t, []string{"aborted by an operator"}, causes)
	require.Empty(t, p.produced(p.output))
}

// An id may hold bytes that no text column takes.
func TestStrangeIDs(t *testing.T) {
	p := newPlace(t)
	o := p.options("a")
	o.Work = func(context.Context, pgx.Tx, []*kgo.Record) error { return nil }
	c := p.recovered(o)
	tx := p.open("a", time.Minute, "evt\x00\xff")
	require.NoError(t, c.Decide(t.Context(), tx.Prepared))
	one, _ := p.decided("a")
	require.Equal(t, []string{"evt\x00\xff"}, one.EventIDs)
	require.NoError(t, c.Finish(t.Context(), one))
}

func TestMigrateAgain(t *testing.T) {
	database := sandboxtest.Database(t)
	require.NoError(t, twophase.Migrate(t.Context(), database))
	require.NoError(t, twophase.Migrate(t.Context(), database))
}

// looked calls a function once, when the decision on a transaction has been looked for.
type looked struct{ then func() }

type lookedFor struct{}

func (l *looked) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, lookedFor{}, strings.Contains(q.SQL, "FROM decided_transactions"))
}

func (l *looked) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if is, _ := ctx.Value(lookedFor{}).(bool); is && l.then != nil {
		then := l.then
		l.then = nil
		then()
	}
}

// An owner that has noticed that its right was taken begins a transaction anew and
// decides on that, while the abort is still on its way. That one is not aborted.
func TestAbortOfAnOwnerThatGoesOn(t *testing.T) {
	p := newPlace(t)
	id := kafkatx.TransactionalID(p.group, "a", 0)
	p.recovered(p.options("a"))
	p.open("a", time.Minute, "evt_1")

	config, err := pgxpool.ParseConfig(p.database)
	require.NoError(t, err)
	config.ConnConfig.Tracer = &looked{then: func() {
		c := p.recovered(p.options("a"))
		next := p.open("a", time.Minute, "evt_1")
		require.NoError(t, c.Decide(t.Context(), next.Prepared))
	}}
	slow, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(slow.Close)
	require.Error(t, twophase.NewDecisions(slow, p.client, slog.New(slog.DiscardHandler)).Abort(t.Context(), id, false))

	one, stored := p.decided("a")
	require.True(t, stored)
	require.NoError(t, p.decisions().Finish(t.Context(), one))
	require.Equal(t, once([]string{"evt_1"}), p.worked())
	require.Equal(t, once([]string{"evt_1"}), p.produced(p.output))
}

// A decision is on disk before Kafka is told, also in a database that is set up to
// forget the last commits in a crash.
func TestDecisionsAreDurable(t *testing.T) {
	p := newPlace(t)
	config, err := pgxpool.ParseConfig(p.database)
	require.NoError(t, err)
	config.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
	p.pool, err = pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(p.pool.Close)
	o := p.options("a")
	var setting string
	o.Work = func(ctx context.Context, tx pgx.Tx, _ []*kgo.Record) error {
		return tx.QueryRow(ctx, `SELECT current_setting('synchronous_commit')`).Scan(&setting)
	}
	c := p.recovered(o)
	require.NoError(t, c.Decide(t.Context(), p.open("a", time.Minute, "evt_1").Prepared))
	require.Equal(t, "on", setting)
}
