package pginbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/pginbox"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

// patience bounds every wait. It is no part of any claim: reaching it is a failure.
const patience = 30 * time.Second

// within returns a context that ends when patience does.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

var bothKeys = []pginbox.Keys{pginbox.TextKeys, pginbox.HashKeys}

// database is a schema with the inbox's tables and one for work, in which an event
// that is done twice has two rows.
type database struct {
	t    *testing.T
	url  string
	name string // application_name of the inbox's connections
	pool *pgxpool.Pool
	// own are the test's own connections.
	own *pgxpool.Pool
	log *journal
}

func newDatabase(t *testing.T, adjust ...func(*pgxpool.Config)) *database {
	t.Helper()
	return newDatabaseAt(t, sandboxtest.Database(t), adjust...)
}

func newDatabaseAt(t *testing.T, url string, adjust ...func(*pgxpool.Config)) *database {
	t.Helper()
	db := &database{t: t, url: url, name: sandboxtest.Name(t), log: &journal{t: t}}
	require.NoError(t, pginbox.Migrate(t.Context(), db.url))
	db.own = db.connect()
	db.exec(`CREATE TABLE work (id bigint GENERATED ALWAYS AS IDENTITY, handler text NOT NULL, event bytea NOT NULL)`)
	db.pool = db.connect(append(adjust, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["application_name"] = db.name
	})...)
	return db
}

func (db *database) connect(adjust ...func(*pgxpool.Config)) *pgxpool.Pool {
	db.t.Helper()
	config, err := pgxpool.ParseConfig(db.url)
	require.NoError(db.t, err)
	for _, f := range adjust {
		f(config)
	}
	pool, err := pgxpool.NewWithConfig(db.t.Context(), config)
	require.NoError(db.t, err)
	db.t.Cleanup(pool.Close)
	return pool
}

func (db *database) exec(sql string, args ...any) {
	db.t.Helper()
	_, err := db.own.Exec(db.t.Context(), sql, args...)
	require.NoError(db.t, err)
}

func (db *database) inbox(o pginbox.Options) *pginbox.Inbox {
	db.t.Helper()
	if o.RetryBackoff == 0 {
		o.RetryBackoff = time.Millisecond
	}
	o.Logger = slog.New(db.log)
	in, err := pginbox.New(db.pool, o)
	require.NoError(db.t, err)
	return in
}

// worker is a handler that inserts one row an event, after each of them has passed
// the checks.
func worker(name string, checks ...func(ctx context.Context, tx pgx.Tx, e pginbox.Event) error) pginbox.Handler {
	return pginbox.Handler{Name: name, Handle: func(ctx context.Context, tx pgx.Tx, events []pginbox.Event) error {
		ids := make([][]byte, len(events))
		for i, e := range events {
			ids[i] = []byte(e.ID)
		}
		if _, err := tx.Exec(ctx, `INSERT INTO work (handler, event) SELECT $1, unnest($2::bytea[])`, name, ids); err != nil {
			return err
		}
		for _, e := range events {
			for _, check := range checks {
				if err := check(ctx, tx, e); err != nil {
					return err
				}
			}
		}
		return nil
	}}
}

// done returns the ids of the events of which a handler has done the work, in the
// order in which it was done, as often as it was.
func (db *database) done(handler string) []string {
	db.t.Helper()
	rows, err := db.own.Query(db.t.Context(), `SELECT event FROM work WHERE handler = $1 ORDER BY id`, handler)
	require.NoError(db.t, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	require.NoError(db.t, err)
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = string(id)
	}
	return texts
}

type letter struct {
	Handler      string
	EventID      []byte
	Topic        string
	Partition    int32
	RecordOffset int64
	RecordKey    []byte
	RecordValue  []byte
	HeaderNames  [][]byte
	HeaderValues [][]byte
	Error        string
	Attempts     int
}

func (db *database) letters() []letter {
	db.t.Helper()
	rows, err := db.own.Query(db.t.Context(), `
SELECT handler, event_id, topic, partition, record_offset, record_key, record_value, header_names, header_values, error, attempts
FROM dead_letters ORDER BY id`)
	require.NoError(db.t, err)
	letters, err := pgx.CollectRows(rows, pgx.RowToStructByPos[letter])
	require.NoError(db.t, err)
	return letters
}

func (db *database) deadIDs() []string {
	db.t.Helper()
	ids := []string{}
	for _, l := range db.letters() {
		ids = append(ids, string(l.EventID))
	}
	return ids
}

func (db *database) inboxRows() (n int) {
	db.t.Helper()
	require.NoError(db.t, db.own.QueryRow(db.t.Context(),
		`SELECT (SELECT count(*) FROM processed_messages) + (SELECT count(*) FROM processed_keys)`).Scan(&n))
	return n
}

// terminate ends all connections of the inbox.
func (db *database) terminate(ctx context.Context) error {
	_, err := db.own.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1`, db.name)
	return err
}

// awaitWaiting waits until n connections of the inbox wait for a lock.
func (db *database) awaitWaiting(n int) {
	db.t.Helper()
	require.Eventually(db.t, func() bool {
		var waiting int
		err := db.own.QueryRow(db.t.Context(),
			`SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'`, db.name).Scan(&waiting)
		return err == nil && waiting == n
	}, patience, time.Millisecond)
}

func event(id string) pginbox.Event {
	return pginbox.Event{ID: id, Record: &kgo.Record{Topic: topic, Partition: 2, Offset: 7, Key: []byte("ord_1"), Value: []byte(`{"id":"` + id + `"}`)}}
}

func events(ids ...string) []pginbox.Event {
	all := make([]pginbox.Event, len(ids))
	for i, id := range ids {
		all[i] = event(id)
	}
	return all
}

const topic = "orders.paid"

// sequence returns events whose records follow each other in one partition.
func sequence(from int64, ids ...string) []pginbox.Event {
	all := events(ids...)
	for i, e := range all {
		e.Record.Offset = from + int64(i)
	}
	return all
}

var (
	allRemember     = []pginbox.Remember{pginbox.RememberIDs, pginbox.RememberOffsets, pginbox.RememberBoth}
	rememberOffsets = []pginbox.Remember{pginbox.RememberOffsets, pginbox.RememberBoth}
)

// claim resumes the partition of sequence, where offsets are remembered, and returns
// the offset to begin with.
func claim(t *testing.T, in *pginbox.Inbox) int64 {
	t.Helper()
	starts, err := in.Resume(within(t), map[string][]int32{topic: {2}})
	require.NoError(t, err)
	require.Len(t, starts, 1)
	require.Len(t, starts[topic], 1)
	return starts[topic][2]
}

// stored returns the stored offset of a handler in the partition of sequence.
func (db *database) stored(handler string) (next int64) {
	db.t.Helper()
	require.NoError(db.t, db.own.QueryRow(db.t.Context(),
		`SELECT next_offset FROM stored_offsets WHERE handler = $1 AND topic = $2 AND partition = 2`, handler, topic).Scan(&next))
	return next
}

// numbered returns the ids evt_000, evt_001, …
func numbered(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("evt_%03d", i)
	}
	return ids
}

func without(ids []string, removed ...string) []string {
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return slices.Contains(removed, id) })
}

var errBoom = errors.New("boom")

// journal keeps what an inbox logs.
type journal struct {
	t     *testing.T
	mu    sync.Mutex
	lines []string
}

func (j *journal) Enabled(context.Context, slog.Level) bool { return true }
func (j *journal) WithAttrs([]slog.Attr) slog.Handler       { return j }
func (j *journal) WithGroup(string) slog.Handler            { return j }
func (j *journal) Handle(ctx context.Context, r slog.Record) error {
	var line bytes.Buffer
	err := slog.NewTextHandler(&line, nil).Handle(ctx, r)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line.String())
	return err
}

func (j *journal) text() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return fmt.Sprint(j.lines)
}

// counter counts, for handlers that run concurrently.
type counter struct{ atomic.Int64 }

func (c *counter) next() int { return int(c.Add(1)) }

// tally counts by name.
type tally struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *tally) add(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = make(map[string]int)
	}
	c.n[name]++
	return c.n[name]
}

func (c *tally) get(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[name]
}
