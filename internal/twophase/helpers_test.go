package twophase_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/kafkatx"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
	"github.com/delivered-twice/delivered-twice/internal/twophase"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

// patience bounds every wait. It is no part of any claim: reaching it is a failure.
const patience = 30 * time.Second

// place is where engines work: topics, a group, a schema with a table for the work.
type place struct {
	t                      *testing.T
	input, output, letters string
	group                  string
	database               string
	client                 *kgo.Client
	admin                  *kadm.Client
	pool                   *pgxpool.Pool
	log                    *strings.Builder // of all coordinators
	logging                sync.Mutex
}

// newPlace lets the test run beside others: it has everything for itself, and does little
// but wait.
func newPlace(t *testing.T) *place {
	t.Parallel()
	p := &place{
		t:        t,
		input:    sandboxtest.Topic(t, 2),
		output:   sandboxtest.Topic(t, 2),
		letters:  sandboxtest.Topic(t, 1),
		group:    sandboxtest.Name(t),
		database: sandboxtest.Database(t),
		client:   sandboxtest.Client(t),
		log:      new(strings.Builder),
	}
	p.admin = kadm.NewClient(p.client)
	require.NoError(t, twophase.Migrate(t.Context(), p.database))
	p.pool = p.connect(p.database)
	_, err := p.pool.Exec(t.Context(), `CREATE TABLE work (event_id text NOT NULL CHECK (event_id <> 'poison'))`)
	require.NoError(t, err)
	return p
}

func (p *place) connect(database string) *pgxpool.Pool {
	pool, err := pgxpool.New(p.t.Context(), database)
	require.NoError(p.t, err)
	p.t.Cleanup(pool.Close)
	return pool
}

// Write is the log of the coordinators.
func (p *place) Write(line []byte) (int, error) {
	p.logging.Lock()
	defer p.logging.Unlock()
	p.log.Write(line)
	return p.t.Output().Write(line)
}

func (p *place) logged() string {
	p.logging.Lock()
	defer p.logging.Unlock()
	return p.log.String()
}

// send produces events with these ids.
func (p *place) send(ids ...string) {
	p.t.Helper()
	var records []*kgo.Record
	for _, id := range ids {
		records = append(records, &kgo.Record{Topic: p.input, Value: []byte(id)})
	}
	require.NoError(p.t, p.client.ProduceSync(p.t.Context(), records...).FirstErr())
}

func ids(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("evt_%d", i)
	}
	return all
}

// member is an engine with its coordinator.
type member struct {
	*twophase.Coordinator
	t    *testing.T
	stop context.CancelFunc
	done chan struct{}
	err  error
}

// options of a member, before it is started.
type options struct {
	twophase.Options
	engine kafkatx.Config
	pool   *pgxpool.Pool
}

func (p *place) options(instance string) options {
	logger := slog.New(slog.NewTextHandler(p, nil))
	o := options{
		pool: p.pool,
		Options: twophase.Options{
			Group: p.group, Instance: instance, TransactionTimeout: 10 * time.Second,
			Work:   work,
			ID:     func(r *kgo.Record) string { return string(r.Value) },
			Logger: logger,
		},
		engine: kafkatx.Config{
			// A session that is built anew may wait for the end of a fetch of the one before.
			Client: []kgo.Opt{kgo.SeedBrokers(sandboxtest.Brokers(p.t)...), kgo.FetchMaxWait(250 * time.Millisecond)},
			Group:  p.group, Instance: instance,
			Input: p.input, Output: p.output, DeadLetters: p.letters,
			CommitInterval: 20 * time.Millisecond, MaxTransactionRecords: 20, RetryBackoff: time.Millisecond,
			SessionTimeout: 6 * time.Second,
			Handler: kafkatx.Each(func(_ context.Context, in *kgo.Record) ([]*kgo.Record, error) {
				return []*kgo.Record{{Value: in.Value}}, nil
			}),
			Logger: logger,
		},
	}
	return o
}

// hook has both call it at their steps.
func (o *options) hook(h kafkatx.Hook) { o.Hook, o.engine.Hook = h, h }

// work is an accumulating write: harmful twice.
func work(ctx context.Context, tx pgx.Tx, records []*kgo.Record) error {
	all := make([]string, len(records))
	for i, r := range records {
		all[i] = string(r.Value)
	}
	_, err := tx.Exec(ctx, `INSERT INTO work SELECT unnest($1::text[])`, all)
	return err
}

func (p *place) start(o options) *member {
	p.t.Helper()
	m := &member{Coordinator: twophase.New(o.pool, p.client, o.Options), t: p.t, done: make(chan struct{})}
	o.engine.Participant = m.Coordinator
	o.engine.TransactionTimeout = o.TransactionTimeout
	engine, err := kafkatx.New(o.engine)
	require.NoError(p.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	m.stop = cancel
	var watcher sync.WaitGroup
	watcher.Go(func() { m.Watch(ctx) })
	go func() {
		defer close(m.done)
		m.err = engine.Run(ctx)
		watcher.Wait()
	}()
	p.t.Cleanup(func() { cancel(); <-m.done })
	return m
}

func (m *member) end() {
	m.t.Helper()
	m.stop()
	select {
	case <-m.done:
		require.NoError(m.t, m.err)
	case <-time.After(patience):
		require.Fail(m.t, "the engine does not end")
	}
}

func (p *place) awaitConsumed() {
	p.t.Helper()
	ends, err := p.admin.ListEndOffsets(p.t.Context(), p.input)
	require.NoError(p.t, err)
	require.Eventually(p.t, func() bool {
		committed, err := p.admin.FetchOffsets(p.t.Context(), p.group)
		if err != nil {
			return false
		}
		all := true
		ends.Each(func(end kadm.ListedOffset) {
			at, ok := committed.Lookup(end.Topic, end.Partition)
			all = all && (end.Offset == 0 || ok && at.At == end.Offset)
		})
		return all
	}, patience, 5*time.Millisecond, "the group does not get to the end of the input")
}

// worked returns how often each event's work was done.
func (p *place) worked() map[string]int {
	p.t.Helper()
	rows, err := p.pool.Query(p.t.Context(), `SELECT event_id FROM work`)
	require.NoError(p.t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(p.t, err)
	return count(all)
}

// produced returns how often a read_committed reader sees each event in a topic.
func (p *place) produced(topic string) map[string]int {
	p.t.Helper()
	var ends kadm.ListedOffsets
	require.Eventually(p.t, func() bool {
		var err error
		if ends, err = p.admin.ListEndOffsets(p.t.Context(), topic); err != nil {
			return false
		}
		stable, err := p.admin.ListCommittedOffsets(p.t.Context(), topic)
		met := err == nil
		ends.Each(func(end kadm.ListedOffset) {
			s, ok := stable.Lookup(topic, end.Partition)
			met = met && ok && s.Offset == end.Offset
		})
		return met
	}, patience, 5*time.Millisecond, "a transaction stays open")
	from, left := make(map[int32]kgo.Offset), make(map[int32]int64)
	ends.Each(func(end kadm.ListedOffset) {
		if end.Offset > 0 {
			from[end.Partition], left[end.Partition] = kgo.NewOffset().AtStart(), end.Offset
		}
	})
	if len(left) == 0 {
		return map[string]int{}
	}
	reader := sandboxtest.Client(p.t, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	var all []string
	for len(left) > 0 {
		fetches := reader.PollFetches(ctx)
		require.NoError(p.t, fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
			if !r.Attrs.IsControl() {
				all = append(all, string(r.Value))
			}
		})
	}
	return count(all)
}

func count(all []string) map[string]int {
	n := make(map[string]int)
	for _, one := range all {
		n[one]++
	}
	return n
}

func once(all []string) map[string]int { return count(all) }

// lost returns the ids and the cause of every lost transaction.
func (p *place) lost() (events [][]string, causes []string) {
	p.t.Helper()
	rows, err := p.pool.Query(p.t.Context(), `SELECT event_ids, cause FROM lost_transactions ORDER BY id`)
	require.NoError(p.t, err)
	defer rows.Close()
	for rows.Next() {
		var ids [][]byte
		var cause string
		require.NoError(p.t, rows.Scan(&ids, &cause))
		var one []string
		for _, id := range ids {
			one = append(one, string(id))
		}
		events, causes = append(events, one), append(causes, cause)
	}
	require.NoError(p.t, rows.Err())
	return events, causes
}

// decided returns the stored decision of an instance.
func (p *place) decided(instance string) (twophase.Decision, bool) {
	p.t.Helper()
	one, ok, err := p.decisions().Of(p.t.Context(), kafkatx.TransactionalID(p.group, instance, 0))
	require.NoError(p.t, err)
	return one, ok
}

func (p *place) decisions() *twophase.Decisions {
	return twophase.NewDecisions(p.pool, p.client, slog.New(slog.NewTextHandler(p, nil)))
}

// gate holds one passing of a step.
type gate struct{ reached, open chan struct{} }

func newGate() *gate { return &gate{make(chan struct{}), make(chan struct{})} }

// at holds the n-th passing of a step until the gate is opened.
func (g *gate) at(step kafkatx.Step, n int) kafkatx.Hook {
	passed := 0
	return func(ctx context.Context, passage kafkatx.Passage) error {
		if passage.Step != step {
			return nil
		}
		if passed++; passed != n {
			return nil
		}
		close(g.reached)
		select {
		case <-g.open:
			return nil
		case <-ctx.Done(): // of a test that has failed
			return ctx.Err()
		}
	}
}

func (g *gate) await(t *testing.T) {
	t.Helper()
	select {
	case <-g.reached:
	case <-time.After(patience):
		require.Fail(t, "the step is not reached")
	}
}

var errOnPurpose = errors.New("failed on purpose")

// failing fails at the first and the third passing of a step.
func failing(step kafkatx.Step) kafkatx.Hook {
	passed := 0
	return func(_ context.Context, passage kafkatx.Passage) error {
		if passage.Step == step {
			if passed++; passed == 1 || passed == 3 {
				return errOnPurpose
			}
		}
		return nil
	}
}

// owner is a producer with an open transaction.
type owner struct {
	kafkatx.Prepared
	client *kgo.Client
}

// open opens a transaction of an instance with one record for each id.
func (p *place) open(instance string, timeout time.Duration, ids ...string) *owner {
	p.t.Helper()
	id := kafkatx.TransactionalID(p.group, instance, 0)
	o := &owner{client: sandboxtest.Client(p.t, kgo.TransactionalID(id), kgo.TransactionTimeout(timeout))}
	o.begin(p, ids...)
	return o
}

// begin opens the next one.
func (o *owner) begin(p *place, ids ...string) {
	p.t.Helper()
	ctx := p.t.Context()
	require.NoError(p.t, o.client.BeginTransaction())
	o.Prepared = kafkatx.Prepared{Begun: time.Now()}
	for _, id := range ids {
		r := &kgo.Record{Topic: p.output, Value: []byte(id)}
		require.NoError(p.t, o.client.ProduceSync(ctx, r).FirstErr())
		o.Records, o.Output = append(o.Records, r), r
	}
	o.TransactionalID, _ = o.client.OptValue(kgo.TransactionalID).(string)
	var err error
	o.ProducerID, o.ProducerEpoch, err = o.client.ProducerID(ctx)
	require.NoError(p.t, err)
}

// takeOver is what another process does that initialises a transactional id.
func (p *place) takeOver(instance string) {
	p.t.Helper()
	thief := sandboxtest.Client(p.t, kgo.TransactionalID(kafkatx.TransactionalID(p.group, instance, 0)))
	_, _, err := thief.ProducerID(p.t.Context())
	require.NoError(p.t, err)
}
