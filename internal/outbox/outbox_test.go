package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/outbox"
	"github.com/delivered-twice/delivered-twice/internal/pginbox"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

// What a record has arrives as it was, whatever bytes it is made of.
func TestRecordsArriveAsTheyWere(t *testing.T) {
	p := newPlace(t)
	created := time.Date(2026, time.January, 5, 14, 2, 11, 120_000_000, time.UTC)
	records := map[string]*kgo.Record{
		"plain":     {Key: []byte("ord_1"), Value: []byte(`{"a":1}`), Headers: []kgo.RecordHeader{{Key: eventID, Value: []byte("plain")}}, Timestamp: created},
		"no key":    {Value: []byte("v"), Timestamp: created},
		"tombstone": {Key: []byte("ord_1"), Timestamp: created},
		"empty":     {Key: []byte{}, Value: []byte{}, Timestamp: created},
		"binary": {Key: []byte{0, 0xff}, Value: []byte{0xfe, 0, 1}, Timestamp: created, Headers: []kgo.RecordHeader{
			{Key: "same", Value: []byte{0, 0xff}}, {Key: "same", Value: nil}, {Key: "\xff\x00", Value: []byte{}},
		}},
		"\xff\x00 id": {Key: []byte("k"), Value: []byte("odd id"), Timestamp: created},
	}
	var messages []outbox.Message
	for id, r := range records {
		r.Topic = p.topic
		messages = append(messages, outbox.Message{ID: id, Record: r})
	}
	p.enqueue(messages...)
	p.start(outbox.Options{})
	for _, got := range p.reader().until(len(records)) {
		found := false
		for _, want := range records {
			found = found || slices.Equal(want.Key, got.Key) && (want.Key == nil) == (got.Key == nil) &&
				slices.Equal(want.Value, got.Value) && (want.Value == nil) == (got.Value == nil) &&
				want.Timestamp.Equal(got.Timestamp) && slices.EqualFunc(want.Headers, got.Headers, func(a, b kgo.RecordHeader) bool {
				return a.Key == b.Key && slices.Equal(a.Value, b.Value) && (a.Value == nil) == (b.Value == nil)
			})
		}
		require.True(t, found, "nobody sent %+v", got)
	}
	p.awaitEmpty()
}

// What is not committed was never there.
func TestRolledBack(t *testing.T) {
	p := newPlace(t)
	p.start(outbox.Options{})
	tx, err := p.pool.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, outbox.Enqueue(t.Context(), tx, p.message("k", "undone")))
	require.NoError(t, tx.Rollback(t.Context()))
	p.enqueue(p.message("k", "done"))
	require.Equal(t, []string{"done"}, of(p.reader().until(1), "k"))
	p.awaitEmpty()
	require.Equal(t, []string{"done"}, p.stamped())
}

func TestUnfitMessages(t *testing.T) {
	p := newPlace(t)
	for says, m := range map[string]outbox.Message{
		"no id":        {Record: &kgo.Record{Topic: p.topic}},
		"no record":    {ID: "evt_1"},
		`topic ""`:     {ID: "evt_1", Record: &kgo.Record{}},
		`topic "a\x00`: {ID: "evt_1", Record: &kgo.Record{Topic: "a\x00b"}},
		`topic "a b"`:  {ID: "evt_1", Record: &kgo.Record{Topic: "a b"}},
		`topic ".."`:   {ID: "evt_1", Record: &kgo.Record{Topic: ".."}},
	} {
		err := pgx.BeginFunc(t.Context(), p.pool, func(tx pgx.Tx) error {
			return outbox.Enqueue(t.Context(), tx, p.message("k", "fine"), m)
		})
		require.ErrorContains(t, err, says)
	}
	// Whoever writes rows otherwise is told by the table.
	_, err := p.pool.Exec(t.Context(), `INSERT INTO outbox (event_id, topic) VALUES ('evt_1', 'a b')`)
	require.ErrorContains(t, err, "outbox_topic")
	require.Zero(t, p.backlog().Pending)
}

// Ids are drawn when rows are inserted. A transaction that drew the lower one and
// commits later is not forgotten, although a relay has passed by in between.
func TestLowerIDCommitsLater(t *testing.T) {
	for _, keys := range [][2]string{{"k", "k"}, {"k", "another"}} {
		t.Run(keys[1], func(t *testing.T) {
			p := newPlace(t)
			p.start(outbox.Options{})
			slow, err := p.pool.Begin(t.Context())
			require.NoError(t, err)
			require.NoError(t, outbox.Enqueue(t.Context(), slow, p.message(keys[0], "lower id")))
			p.enqueue(p.message(keys[1], "higher id"))
			topic := p.reader()
			require.Equal(t, []string{"higher id"}, of(topic.until(1), keys[1]))
			p.awaitEmpty()
			require.NoError(t, slow.Commit(t.Context()))
			require.Contains(t, of(topic.until(2), keys[0]), "lower id")
			p.awaitEmpty()
			require.Equal(t, []string{"lower id", "higher id"}, p.stamped(), "the order of their ids")
		})
	}
}

// A relay that has a row of a key in hand has the key: another one does not publish
// what comes after it, though it is free to take it. Locking only the rows that are in
// hand would let it overtake.
func TestNobodyOvertakesARelay(t *testing.T) {
	for _, step := range []outbox.Step{outbox.Claimed, outbox.Published} {
		t.Run(string(step), func(t *testing.T) {
			p := newPlace(t)
			slow := newGate(step)
			p.enqueue(p.message("k", "1"))
			p.start(outbox.Options{Hook: slow.pass})
			t.Cleanup(slow.open)
			require.Equal(t, []string{"1"}, slow.await(t))

			var others []outbox.Message
			for i := range 100 {
				others = append(others, p.message(fmt.Sprintf("other %d", i), "other"))
			}
			p.enqueue(append([]outbox.Message{p.message("k", "2")}, others...)...)
			p.start(outbox.Options{})
			// All that are not in the shard of k.
			var ours int64
			require.NoError(t, p.pool.QueryRow(t.Context(), `SELECT count(*) FROM outbox WHERE shard = (SELECT shard FROM outbox WHERE record_key = 'k' LIMIT 1)`).Scan(&ours))
			require.Eventually(t, func() bool { return p.backlog().Pending == ours }, patience, time.Millisecond)

			slow.open()
			topic := p.reader()
			require.Equal(t, []string{"1", "2"}, of(topic.until(102), "k"))
			p.awaitEmpty()
		})
	}
}

// Several relays on one outbox, which fail all the time after they have published,
// under writers of many keys: nothing is lost, and for whoever drops the copies of
// what he has seen before, each key is in order.
func TestManyRelaysKeepEachKeyInOrder(t *testing.T) {
	const (
		relays = 3
		keys   = 20
		each   = 60
	)
	p := newPlace(t)
	var failures atomic.Int64
	for i := range relays {
		random := rand.New(rand.NewPCG(7, uint64(i)))
		p.start(outbox.Options{BatchRows: 17, PollInterval: 10 * time.Millisecond, Hook: func(_ context.Context, passage outbox.Passage) error {
			if passage.Step == outbox.Published && random.IntN(4) == 0 {
				failures.Add(1)
				return errBoom
			}
			return nil
		}})
	}
	var writers sync.WaitGroup
	errs := make(chan error, keys)
	for k := range keys {
		writers.Go(func() {
			for i := range each {
				// The writers of a key must exclude each other: here each key has one.
				err := pgx.BeginFunc(t.Context(), p.pool, func(tx pgx.Tx) error {
					return outbox.Enqueue(t.Context(), tx, p.message(fmt.Sprintf("k%d", k), fmt.Sprintf("%03d", i)))
				})
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	writers.Wait()
	select {
	case err := <-errs:
		require.NoError(t, err)
	default:
	}
	p.awaitEmpty()
	require.Positive(t, failures.Load())

	// Something that comes last, in every partition.
	end := sandboxtest.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	topic, ends := p.reader(), 0
	for partition := range int32(3) {
		require.NoError(t, end.ProduceSync(t.Context(), &kgo.Record{Topic: p.topic, Partition: partition, Value: []byte("end")}).FirstErr())
	}
	for ends < 3 {
		before := len(topic.read)
		for _, r := range topic.until(before + 1)[before:] {
			if string(r.Value) == "end" {
				ends++
			}
		}
	}
	copies := 0
	for k := range keys {
		all := of(topic.read, fmt.Sprintf("k%d", k))
		distinct := firsts(all)
		copies += len(all) - len(distinct)
		require.Len(t, distinct, each, "key %d", k)
		require.True(t, slices.IsSorted(distinct), "key %d: %v", k, distinct)
	}
	require.Positive(t, copies, "a relay that fails after it has published leaves copies")
}

// The whole way: outbox, Kafka, inbox, table. The relay fails between publishing and
// stamping, so that every event is in the topic twice, under one id; the inbox does its
// work once.
func TestTheNextInboxAbsorbsTheCopies(t *testing.T) {
	p := newPlace(t)
	require.NoError(t, pginbox.Migrate(t.Context(), p.url))
	p.exec(`CREATE TABLE work (event_id text NOT NULL)`)
	const events = 50
	var messages []outbox.Message
	var want []string
	for i := range events {
		id := fmt.Sprintf("evt_%02d", i)
		want = append(want, id)
		messages = append(messages, p.message(fmt.Sprintf("k%d", i%7), id))
	}
	p.enqueue(messages...)
	failed := make(map[string]bool)
	p.start(outbox.Options{Hook: func(_ context.Context, passage outbox.Passage) error {
		if passage.Step != outbox.Published || failed[passage.Messages[0].ID] {
			return nil
		}
		for _, id := range ids(passage) {
			failed[id] = true
		}
		return errBoom
	}})
	p.awaitEmpty()
	p.reader().until(2 * events)

	inbox, err := pginbox.New(p.pool, pginbox.Options{Handlers: []pginbox.Handler{{Name: "work", Handle: func(ctx context.Context, tx pgx.Tx, events []pginbox.Event) error {
		for _, e := range events {
			if _, err := tx.Exec(ctx, `INSERT INTO work VALUES ($1)`, e.ID); err != nil {
				return err
			}
		}
		return nil
	}}}})
	require.NoError(t, err)
	acknowledged := make(chan int, 2*events)
	consumer, err := pginbox.NewConsumer(pginbox.ConsumerOptions{
		Client:   []kgo.Opt{kgo.SeedBrokers(sandboxtest.Brokers(t)...)},
		Group:    sandboxtest.Name(t),
		Topics:   []string{p.topic},
		Identify: order.ID,
		Process:  inbox.Process,
		Hook: func(_ context.Context, passage pginbox.Passage) error {
			if passage.Step == pginbox.Acknowledged {
				acknowledged <- len(passage.Events)
			}
			return nil
		},
	})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- consumer.Run(ctx) }()
	for n := 0; n < 2*events; {
		select {
		case more := <-acknowledged:
			n += more
		case <-time.After(patience):
			require.Fail(t, "not all records are consumed", "%d of %d", n, 2*events)
		}
	}
	stop()
	require.NoError(t, <-ended)
	rows, err := p.pool.Query(t.Context(), `SELECT event_id FROM work ORDER BY event_id`)
	require.NoError(t, err)
	done, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Equal(t, want, done)
}

// A relay is told of rows, on a connection that it opens again when it is lost; it
// finds those of which it was not told when it has begun to listen again.
func TestWokenByNotification(t *testing.T) {
	p := newPlace(t)
	p.start(outbox.Options{}) // polls never
	topic := p.reader()
	for n := range 3 {
		p.enqueue(p.message("k", fmt.Sprint(n)))
		topic.until(n + 1)
		p.awaitEmpty()
	}
	listeners := `FROM pg_stat_activity WHERE query = 'LISTEN "outbox_' || md5(current_schema()) || '"' AND pid <> pg_backend_pid()`
	tx, err := p.pool.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, outbox.Enqueue(t.Context(), tx, p.message("k", "3")))
	var ended int
	require.NoError(t, p.pool.QueryRow(t.Context(), `SELECT count(pg_terminate_backend(pid)) `+listeners).Scan(&ended))
	require.Equal(t, 1, ended)
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, []string{"0", "1", "2", "3"}, of(topic.until(4), "k"))
}

// Without notifications rows are found by looking.
func TestFoundByLooking(t *testing.T) {
	p := newPlace(t)
	p.exec(`ALTER TABLE outbox DISABLE TRIGGER outbox_wake`)
	p.start(outbox.Options{PollInterval: 5 * time.Millisecond})
	topic := p.reader()
	for n := range 3 {
		p.enqueue(p.message("k", fmt.Sprint(n)))
		topic.until(n + 1)
	}
}

// Another schema's outbox in the same database wakes nobody here.
func TestNotificationsAreOfOneSchema(t *testing.T) {
	p, q := newPlace(t), newPlace(t)
	conn, err := pgx.Connect(t.Context(), p.url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	var channel string
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT 'outbox_' || md5(current_schema())`).Scan(&channel))
	_, err = conn.Exec(t.Context(), "LISTEN "+channel)
	require.NoError(t, err)
	q.enqueue(q.message("k", "theirs"))
	p.enqueue(p.message("k", "ours"), p.message("k", "ours, too"))
	p.exec(`SELECT pg_notify($1, 'last')`, channel)
	var payloads []string
	for !slices.Contains(payloads, "last") {
		n, err := conn.WaitForNotification(t.Context())
		require.NoError(t, err)
		payloads = append(payloads, n.Payload)
	}
	require.Equal(t, []string{"", "last"}, payloads, "one a transaction")
}

// Told to end, a relay publishes what is pending.
func TestEndsWithNothingPending(t *testing.T) {
	p := newPlace(t)
	first := newGate(outbox.Claimed)
	p.enqueue(p.message("k", "0"))
	r := p.start(outbox.Options{BatchRows: 10, StopGrace: patience, Hook: first.pass})
	t.Cleanup(first.open)
	first.await(t)
	var messages []outbox.Message
	for n := range 200 {
		messages = append(messages, p.message(fmt.Sprint("k", n), "v"))
	}
	p.enqueue(messages...)
	r.stop()
	first.open()
	r.end()
	require.Zero(t, p.backlog().Pending)
	require.Len(t, p.stamped(), 201)
}

// A relay that stands still with rows in hand loses them, and can't stamp them
// any more.
func TestStandsStillForTooLong(t *testing.T) {
	p := newPlace(t)
	still := newGate(outbox.Published)
	p.enqueue(p.message("k", "1"), p.message("k", "2"))
	zombie := p.start(outbox.Options{PublishTimeout: 500 * time.Millisecond, Hook: still.pass})
	t.Cleanup(still.open)
	still.await(t)
	p.enqueue(p.message("k", "3"))
	p.start(outbox.Options{PollInterval: 20 * time.Millisecond})
	p.awaitEmpty()
	still.open()
	require.Equal(t, []string{"1", "2", "1", "2", "3"}, of(p.reader().until(5), "k"))
	require.Eventually(t, func() bool { return zombie.log.mentions("taken up again") }, patience, time.Millisecond)
	require.Equal(t, []string{"1", "2", "3"}, p.stamped())
}

func TestBacklogAndPurge(t *testing.T) {
	p := newPlace(t)
	require.Equal(t, outbox.Backlog{}, p.backlog())
	p.enqueue(p.message("k", "old"), p.message("k", "young"), p.message("k", "pending"), p.message("k", "refused"))
	p.exec(`UPDATE outbox SET created_at = now() - interval '3 days'`)
	p.exec(`UPDATE outbox SET published_at = now() - interval '25 hours' WHERE event_id = 'old'`)
	p.exec(`UPDATE outbox SET published_at = now() - interval '23 hours' WHERE event_id = 'young'`)
	p.exec(`UPDATE outbox SET refused_at = now() - interval '2 days', refusal = 'too large' WHERE event_id = 'refused'`)
	b := p.backlog()
	require.EqualValues(t, 1, b.Pending)
	require.EqualValues(t, 1, b.Refused)
	require.GreaterOrEqual(t, b.Oldest, 72*time.Hour)

	removed, err := outbox.Purge(t.Context(), p.pool, 24*time.Hour)
	require.NoError(t, err)
	require.EqualValues(t, 1, removed)
	require.Equal(t, []string{"young"}, p.stamped())
	removed, err = outbox.Purge(t.Context(), p.pool, 0)
	require.NoError(t, err)
	require.EqualValues(t, 1, removed)
	require.EqualValues(t, 1, p.backlog().Pending)
	require.EqualValues(t, 1, p.backlog().Refused)

	p.exec(`INSERT INTO outbox (event_id, topic, published_at) SELECT int8send(n), 't', now() - interval '2 days' FROM generate_series(1, 25000) AS n`)
	removed, err = outbox.Purge(t.Context(), p.pool, 24*time.Hour)
	require.NoError(t, err)
	require.EqualValues(t, 25_000, removed, "in batches, and all")
	_, err = outbox.Purge(t.Context(), p.pool, -time.Hour)
	require.ErrorContains(t, err, "negative")
}

// Of several that migrate at once one does it; and then there is nothing to do.
func TestMigrate(t *testing.T) {
	url := sandboxtest.Database(t)
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	done, err := outbox.UpToDate(t.Context(), pool)
	require.NoError(t, err)
	require.False(t, done)
	var all sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		all.Go(func() { errs[i] = outbox.Migrate(t.Context(), url) })
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))
	done, err = outbox.UpToDate(t.Context(), pool)
	require.NoError(t, err)
	require.True(t, done)
}

func TestOptions(t *testing.T) {
	for says, o := range map[string]outbox.Options{
		"from 1 to 10000":   {BatchRows: 10_001},
		"-1 bytes":          {BatchBytes: -1},
		"poll interval is":  {PollInterval: -time.Second},
		"publish timeout":   {PublishTimeout: time.Microsecond},
		"retry backoff is ": {RetryBackoff: -1},
		"stop grace is":     {StopGrace: -1},
	} {
		_, err := outbox.NewRelay(nil, o)
		require.ErrorContains(t, err, says)
	}
}

// A table that is missing is nothing to wait for.
func TestNoTables(t *testing.T) {
	p := newPlace(t)
	p.exec(`DROP TABLE outbox_shards`)
	r, err := outbox.NewRelay(p.pool, outbox.Options{Client: []kgo.Opt{kgo.SeedBrokers(sandboxtest.Brokers(t)...)}})
	require.NoError(t, err)
	require.ErrorContains(t, r.Run(t.Context()), "outbox_shards")
}
