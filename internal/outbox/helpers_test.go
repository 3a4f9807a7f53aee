package outbox_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/outbox"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

// patience bounds every wait. It is no part of any claim: reaching it is a failure.
const patience = 30 * time.Second

// never is a poll interval that nobody waits out.
const never = time.Hour

const eventID = "event-id"

var errBoom = errors.New("boom")

// place is an outbox, and a topic for what is in it.
type place struct {
	t     *testing.T
	url   string
	pool  *pgxpool.Pool
	topic string
}

func newPlace(t *testing.T, configs ...map[string]string) *place {
	t.Helper()
	p := &place{t: t, url: sandboxtest.Database(t), topic: sandboxtest.Topic(t, 3, configs...)}
	require.NoError(t, outbox.Migrate(t.Context(), p.url))
	pool, err := pgxpool.New(t.Context(), p.url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	p.pool = pool
	return p
}

// message is one of a key. Its id is its value, too.
func (p *place) message(key, id string) outbox.Message {
	return outbox.Message{ID: id, Record: &kgo.Record{
		Topic: p.topic, Key: []byte(key), Value: []byte(id),
		Headers: []kgo.RecordHeader{{Key: eventID, Value: []byte(id)}},
	}}
}

// enqueue writes messages in a transaction of their own.
func (p *place) enqueue(messages ...outbox.Message) {
	p.t.Helper()
	require.NoError(p.t, pgx.BeginFunc(p.t.Context(), p.pool, func(tx pgx.Tx) error {
		return outbox.Enqueue(p.t.Context(), tx, messages...)
	}))
}

func (p *place) exec(sql string, args ...any) {
	p.t.Helper()
	_, err := p.pool.Exec(p.t.Context(), sql, args...)
	require.NoError(p.t, err)
}

// relay is a running relay.
type relay struct {
	t     *testing.T
	stop  context.CancelFunc
	ended chan error
	log   *journal
}

// start starts a relay that finds rows by being told of them, unless the options say
// otherwise, and ends it when the test does.
func (p *place) start(o outbox.Options) *relay {
	p.t.Helper()
	r := &relay{t: p.t, ended: make(chan error, 1), log: &journal{t: p.t}}
	if o.Client == nil {
		o.Client = []kgo.Opt{kgo.SeedBrokers(sandboxtest.Brokers(p.t)...)}
	}
	if o.PollInterval == 0 {
		o.PollInterval = never
	}
	if o.RetryBackoff == 0 {
		o.RetryBackoff = time.Millisecond
	}
	o.Logger = slog.New(slog.NewTextHandler(r.log, nil))
	built, err := outbox.NewRelay(p.pool, o)
	require.NoError(p.t, err)
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() { r.ended <- built.Run(ctx) }()
	p.t.Cleanup(r.end)
	return r
}

// end tells the relay to end, and waits until it has.
func (r *relay) end() {
	r.t.Helper()
	r.stop()
	select {
	case err := <-r.ended:
		require.NoError(r.t, err)
		r.ended <- nil
	case <-time.After(patience):
		require.Fail(r.t, "the relay does not end")
	}
}

// journal is a log that can be read.
type journal struct {
	t     *testing.T
	mu    sync.Mutex
	lines []string
}

func (j *journal) Write(line []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, string(line))
	return len(line), nil
}

func (j *journal) mentions(parts ...string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.ContainsFunc(j.lines, func(line string) bool {
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) })
	})
}

// reader reads a topic from its beginning.
type reader struct {
	t      *testing.T
	client *kgo.Client
	read   []*kgo.Record
}

func (p *place) reader() *reader {
	return &reader{t: p.t, client: sandboxtest.Client(p.t, kgo.ConsumeTopics(p.topic))}
}

// until reads until there are n records in all.
func (r *reader) until(n int) []*kgo.Record {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	for len(r.read) < n {
		fetches := r.client.PollFetches(ctx)
		require.NoError(r.t, ctx.Err(), "%d of %d records", len(r.read), n)
		fetches.EachRecord(func(record *kgo.Record) { r.read = append(r.read, record) })
	}
	return r.read
}

// of returns the ids of the records of a key, in their order, as often as they are
// there.
func of(records []*kgo.Record, key string) []string {
	var ids []string
	for _, r := range records {
		if string(r.Key) == key {
			ids = append(ids, string(r.Value))
		}
	}
	return ids
}

// firsts drops all copies of an id but the first.
func firsts(ids []string) []string {
	var distinct []string
	for _, id := range ids {
		if !slices.Contains(distinct, id) {
			distinct = append(distinct, id)
		}
	}
	return distinct
}

func (p *place) backlog() outbox.Backlog {
	p.t.Helper()
	b, err := outbox.ReadBacklog(p.t.Context(), p.pool)
	require.NoError(p.t, err)
	return b
}

// awaitEmpty waits until nothing is pending.
func (p *place) awaitEmpty() {
	p.t.Helper()
	require.Eventually(p.t, func() bool { return p.backlog().Pending == 0 }, patience, 5*time.Millisecond, "rows stay pending")
}

// stamped returns the ids of the events that are published, in the order of their
// rows.
func (p *place) stamped() []string {
	p.t.Helper()
	rows, err := p.pool.Query(p.t.Context(), `SELECT convert_from(event_id, 'UTF8') FROM outbox WHERE published_at IS NOT NULL ORDER BY id`)
	require.NoError(p.t, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(p.t, err)
	return ids
}

// gate is a hook that stands still at a step, the first time that it is passed, until
// it is opened, at the latest when the test ends.
type gate struct {
	step    outbox.Step
	reached chan []string // the ids that are there
	opened  chan struct{}
	open    func()
	once    sync.Once
}

func newGate(step outbox.Step) *gate {
	g := &gate{step: step, reached: make(chan []string, 1), opened: make(chan struct{})}
	g.open = sync.OnceFunc(func() { close(g.opened) })
	return g
}

func (g *gate) pass(_ context.Context, p outbox.Passage) error {
	if p.Step == g.step {
		g.once.Do(func() {
			g.reached <- ids(p)
			<-g.opened
		})
	}
	return nil
}

// await waits until the relay stands still there.
func (g *gate) await(t *testing.T) []string {
	t.Helper()
	select {
	case there := <-g.reached:
		return there
	case <-time.After(patience):
		require.Fail(t, "step is not reached", g.step)
		return nil
	}
}

func ids(p outbox.Passage) []string {
	all := make([]string, len(p.Messages))
	for i, m := range p.Messages {
		all[i] = m.ID
	}
	return all
}
