package pginbox_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/pginbox"
)

func TestPoisonInABatch(t *testing.T) {
	ids := numbered(40)
	five := []string{"evt_000", "evt_007", "evt_008", "evt_021", "evt_039"}
	for name, c := range map[string]struct {
		batch, poison []string
		permanent     bool
		maxAttempts   int
		calls         int // with a poison event alone
	}{
		"none":                  {ids, nil, false, 3, 0},
		"one":                   {ids, []string{"evt_017"}, false, 3, 3},
		"five":                  {ids, five, false, 3, 3},
		"five, one attempt":     {ids, five, false, 1, 1},
		"five, permanent":       {ids, five, true, 3, 1},
		"all":                   {ids, ids, false, 3, 3},
		"the only one":          {ids[:1], ids[:1], false, 3, 3},
		"the only one, at once": {ids[:1], ids[:1], true, 3, 1},
		"one of two":            {ids[:2], ids[:1], false, 2, 2},
	} {
		for _, keys := range bothKeys {
			t.Run(fmt.Sprintf("%s, %s", name, keys), func(t *testing.T) {
				t.Parallel()
				db := newDatabase(t)
				poisonous := make(map[string]bool)
				for _, id := range c.poison {
					poisonous[id] = true
				}
				var alone tally
				h := worker("warehouse")
				work := h.Handle
				h.Handle = func(ctx context.Context, tx pgx.Tx, events []pginbox.Event) error {
					if len(events) == 1 {
						alone.add(events[0].ID)
					}
					if err := work(ctx, tx, events); err != nil {
						return err
					}
					for _, e := range events {
						if poisonous[e.ID] {
							if c.permanent {
								return pginbox.Permanent(errBoom)
							}
							return errBoom
						}
					}
					return nil
				}
				in := db.inbox(pginbox.Options{Keys: keys, MaxAttempts: c.maxAttempts, Handlers: []pginbox.Handler{h}})
				require.NoError(t, in.Process(within(t), events(c.batch...)))

				require.ElementsMatch(t, without(c.batch, c.poison...), db.done("warehouse"), "the rest is done, once")
				require.ElementsMatch(t, c.poison, db.deadIDs())
				for _, l := range db.letters() {
					require.Equal(t, letter{
						Handler: "warehouse", EventID: l.EventID, Topic: "orders.paid", Partition: 2, RecordOffset: 7,
						RecordKey: []byte("ord_1"), RecordValue: []byte(`{"id":"` + string(l.EventID) + `"}`),
						HeaderNames: [][]byte{}, HeaderValues: [][]byte{}, Error: "boom", Attempts: c.calls,
					}, l)
				}
				for _, id := range c.poison {
					require.Equal(t, c.calls, alone.get(id), "calls with %s alone", id)
				}
				require.Equal(t, len(c.batch), db.inboxRows())

				// Whatever comes again is settled.
				require.NoError(t, in.Process(within(t), events(c.batch...)))
				require.Len(t, db.done("warehouse"), len(c.batch)-len(c.poison))
				require.Len(t, db.letters(), len(c.poison))
			})
		}
	}
}

// An event that fails for a while is done in the end, and keeps nobody waiting.
func TestAnEventThatRecovers(t *testing.T) {
	db := newDatabase(t)
	ids := numbered(20)
	var alone counter
	h := worker("warehouse")
	work := h.Handle
	h.Handle = func(ctx context.Context, tx pgx.Tx, events []pginbox.Event) error {
		if err := work(ctx, tx, events); err != nil {
			return err
		}
		for _, e := range events {
			if e.ID == "evt_011" && (len(events) > 1 || alone.next() < 3) {
				return errBoom
			}
		}
		return nil
	}
	in := db.inbox(pginbox.Options{Handlers: []pginbox.Handler{h}})
	require.NoError(t, in.Process(within(t), events(ids...)))
	done := db.done("warehouse")
	require.ElementsMatch(t, ids, done)
	require.Equal(t, without(ids, "evt_011"), done[:19], "the others first, in their order")
	require.Empty(t, db.letters())
}

// What a handler can do wrong, other than to return an error, is the fault of the
// event that makes it do so.
func TestHandlersThatMisbehave(t *testing.T) {
	const bad = "evt_004"
	query := func(sql string, args ...any) func(context.Context, pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, sql, args...)
			return err
		}
	}
	leaveOpen := func(result error) func(context.Context, pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, `SELECT generate_series(1, 1000000)`)
			if err != nil || !rows.Next() {
				return errors.Join(err, errors.New("no row"))
			}
			return result
		}
	}
	for name, c := range map[string]struct {
		misbehave func(context.Context, pgx.Tx) error
		want      string // in the dead letter; "" for none, because no harm is done
	}{
		"panics": {func(context.Context, pgx.Tx) error { panic("no such order") }, "panic: no such order\ngoroutine"},
		"swallows an error": {func(ctx context.Context, tx pgx.Tx) error {
			_ = query(`SELECT 1/0`)(ctx, tx)
			return nil
		}, "a statement of its had failed"},
		"leaves rows open":                 {leaveOpen(nil), "close its rows"},
		"leaves rows open and fails":       {leaveOpen(errBoom), "boom"},
		"executes ROLLBACK":                {query(`ROLLBACK`), "it must not execute COMMIT or ROLLBACK"},
		"executes COMMIT":                  {query(`COMMIT`), ""}, // with the inbox rows: what's done is done
		"stores NUL in a text":             {query(`SELECT $1::text`, "a\x00b"), "22021"},
		"stores invalid UTF-8 in a text":   {query(`SELECT $1::text`, "a\xffb"), "22021"},
		"stores NUL in a jsonb":            {query(`SELECT $1::jsonb`, `{"a":"\u0000"}`), "22P05"},
		"breaks a deferred constraint":     {query(`INSERT INTO child (parent) VALUES (1)`), "23503"},
		"calls Commit":                     {func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) }, "the inbox ends the transaction"},
		"calls Rollback, as a defer would": {func(ctx context.Context, tx pgx.Tx) error { _ = tx.Rollback(ctx); return nil }, ""},
		"uses savepoints": {func(ctx context.Context, tx pgx.Tx) error {
			return pgx.BeginFunc(ctx, tx, func(pgx.Tx) error { return nil })
		}, ""},
		"uses a savepoint, and fails inside it": {func(ctx context.Context, tx pgx.Tx) error {
			return pgx.BeginFunc(ctx, tx, func(pgx.Tx) error { return errBoom })
		}, "boom"},
		"relies on a deferred constraint": {func(ctx context.Context, tx pgx.Tx) error {
			return errors.Join(query(`INSERT INTO child (parent) VALUES (2)`)(ctx, tx), query(`INSERT INTO parent VALUES (2)`)(ctx, tx))
		}, ""},
	} {
		for _, others := range [][]string{without(numbered(10), bad), {"evt_000"}, nil} {
			t.Run(fmt.Sprintf("%s, beside %d others", name, len(others)), func(t *testing.T) {
				t.Parallel()
				db := newDatabase(t)
				db.exec(`CREATE TABLE parent (id int PRIMARY KEY)`)
				db.exec(`CREATE TABLE child (parent int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)`)
				in := db.inbox(pginbox.Options{Handlers: []pginbox.Handler{worker("warehouse", func(ctx context.Context, tx pgx.Tx, e pginbox.Event) error {
					if e.ID != bad {
						return nil
					}
					return c.misbehave(ctx, tx)
				})}})
				require.NoError(t, in.Process(within(t), events(append([]string{bad}, others...)...)))
				if c.want == "" {
					require.ElementsMatch(t, append([]string{bad}, others...), db.done("warehouse"))
					require.Empty(t, db.letters())
					return
				}
				require.ElementsMatch(t, others, db.done("warehouse"))
				letters := db.letters()
				require.Len(t, letters, 1)
				require.Equal(t, bad, string(letters[0].EventID))
				require.Contains(t, letters[0].Error, c.want)
				require.Equal(t, 3, letters[0].Attempts)
			})
		}
	}
}

// A deferred constraint that a good event relies on must still be deferred for it
// when a poison event in its batch makes the batch be taken apart.
func TestDeferredConstraintsStayDeferred(t *testing.T) {
	db := newDatabase(t)
	db.exec(`CREATE TABLE parent (id text PRIMARY KEY)`)
	db.exec(`CREATE TABLE child (parent text REFERENCES parent DEFERRABLE INITIALLY DEFERRED)`)
	in := db.inbox(pginbox.Options{Handlers: []pginbox.Handler{worker("warehouse", func(ctx context.Context, tx pgx.Tx, e pginbox.Event) error {
		if _, err := tx.Exec(ctx, `INSERT INTO child VALUES ($1)`, e.ID); err != nil {
			return err
		}
		if e.ID == "evt_002" || e.ID == "evt_006" {
			return nil // an orphan
		}
		_, err := tx.Exec(ctx, `INSERT INTO parent VALUES ($1)`, e.ID)
		return err
	})}})
	ids := numbered(10)
	require.NoError(t, in.Process(within(t), events(ids...)))
	require.ElementsMatch(t, without(ids, "evt_002", "evt_006"), db.done("warehouse"))
	require.ElementsMatch(t, []string{"evt_002", "evt_006"}, db.deadIDs())
}

func TestIDsThatPostgresCannotStore(t *testing.T) {
	long := func(n int) string { // incompressible, so that the index entry is as large as it gets
		b := make([]byte, (n+1)/2)
		_, _ = rand.Read(b)
		return fmt.Sprintf("%x", b)[:n]
	}
	longest := long(pginbox.MaxIDBytes)
	refused := map[string]string{ // id → cause
		"evt_\x00":                   "the event id has a NUL byte, which text can't hold",
		"evt_\x00\x00":               "the event id has a NUL byte, which text can't hold",
		"evt_\xff":                   "the event id is not valid UTF-8, which text must be",
		long(pginbox.MaxIDBytes + 1): "the event id has 2049 bytes, at most 2048 can be indexed",
		long(100_000):                "the event id has 100000 bytes, at most 2048 can be indexed",
	}
	storable := []string{"evt_1", longest, "évt_😀", " ", strings.Repeat("é", pginbox.MaxIDBytes/2)}
	ids := append([]string{}, storable...)
	for id := range refused {
		ids = append(ids, id)
	}
	name := long(pginbox.MaxNameBytes)

	t.Run(string(pginbox.TextKeys), func(t *testing.T) {
		db := newDatabase(t)
		in := db.inbox(pginbox.Options{Handlers: []pginbox.Handler{worker(name)}})
		for range 3 { // however often they come
			require.NoError(t, in.Process(within(t), events(append(ids, ids...)...)))
		}
		require.ElementsMatch(t, storable, db.done(name))
		letters := db.letters()
		require.Len(t, letters, len(refused))
		for _, l := range letters {
			require.Equal(t, refused[string(l.EventID)], l.Error)
			require.Zero(t, l.Attempts)
		}
		require.Equal(t, len(ids), db.inboxRows())
		var digests int
		require.NoError(t, db.own.QueryRow(t.Context(), `SELECT count(*) FROM processed_messages WHERE event_id LIKE 'sha256:%'`).Scan(&digests))
		require.Equal(t, len(refused), digests)
	})
	t.Run(string(pginbox.HashKeys), func(t *testing.T) {
		db := newDatabase(t)
		in := db.inbox(pginbox.Options{Keys: pginbox.HashKeys, Handlers: []pginbox.Handler{worker(name)}})
		for range 3 {
			require.NoError(t, in.Process(within(t), events(append(ids, ids...)...)))
		}
		require.ElementsMatch(t, ids, db.done(name))
		require.Empty(t, db.letters())
	})
	t.Run("alone", func(t *testing.T) {
		db := newDatabase(t)
		in := db.inbox(pginbox.Options{Handlers: []pginbox.Handler{worker("warehouse")}})
		require.NoError(t, in.Process(within(t), events("evt_\x00")))
		require.Empty(t, db.done("warehouse"))
		require.Equal(t, []string{"evt_\x00"}, db.deadIDs())
	})
}

func TestADeadLetterKeepsEveryByte(t *testing.T) {
	large := make([]byte, 3<<20)
	_, _ = rand.Read(large)
	for name, r := range map[string]*kgo.Record{
		"any bytes": {Topic: "t", Partition: 3, Offset: 1 << 40, Key: []byte("k\x00\xff"), Value: []byte("\x00\xfe"), Headers: []kgo.RecordHeader{
			{Key: "a\x00\xff", Value: []byte("\x00")}, {Key: "a\x00\xff", Value: nil}, {Key: "", Value: []byte{}},
		}},
		"tombstone": {Topic: "t", Key: []byte("k")},
		"empty":     {Topic: "t", Key: []byte{}, Value: []byte{}},
		"large":     {Topic: "t", Key: large[:1<<20], Value: large, Headers: []kgo.RecordHeader{{Key: "h", Value: large[1<<20:]}}},
		"no record": nil,
	} {
		t.Run(name, func(t *testing.T) {
			db := newDatabase(t)
			in := db.inbox(pginbox.Options{Handlers: []pginbox.Handler{worker("warehouse", func(context.Context, pgx.Tx, pginbox.Event) error {
				return pginbox.Permanent(fmt.Errorf("a\x00\xffé %s", strings.Repeat("é", 10_000)))
			})}})
			require.NoError(t, in.Process(within(t), []pginbox.Event{{ID: "evt_1", Record: r}}))
			letters := db.letters()
			require.Len(t, letters, 1)
			l := letters[0]
			if r == nil {
				r = &kgo.Record{}
			}
			require.Equal(t, []any{r.Topic, r.Partition, r.Offset}, []any{l.Topic, l.Partition, l.RecordOffset})
			equal := func(want, got []byte) { // an empty value is not a missing one
				t.Helper()
				require.Equal(t, want == nil, got == nil)
				require.True(t, bytes.Equal(want, got))
			}
			equal(r.Key, l.RecordKey)
			equal(r.Value, l.RecordValue)
			require.Len(t, l.HeaderNames, len(r.Headers))
			require.Len(t, l.HeaderValues, len(r.Headers))
			for i, h := range r.Headers {
				require.Equal(t, h.Key, string(l.HeaderNames[i]))
				equal(h.Value, l.HeaderValues[i])
			}
			require.True(t, strings.HasPrefix(l.Error, "a\uFFFD\uFFFDé é"), l.Error[:20])
			require.Less(t, len(l.Error), 9_000)
		})
	}
}
