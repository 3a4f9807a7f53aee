package pginbox_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/pginbox"
)

// statements counts those that remove inbox rows.
type statements struct{ deletes counter }

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, "DELETE FROM processed_") {
		s.deletes.next()
	}
	return ctx
}
func (s *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

var inboxTables = map[pginbox.Keys]string{pginbox.TextKeys: "processed_messages", pginbox.HashKeys: "processed_keys"}

func TestPurge(t *testing.T) {
	for keys, table := range inboxTables {
		t.Run(string(keys), func(t *testing.T) {
			traced := &statements{}
			db := newDatabase(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = traced })
			poison := worker("warehouse", func(_ context.Context, _ pgx.Tx, e pginbox.Event) error {
				if e.ID == "evt_000" {
					return pginbox.Permanent(errBoom)
				}
				return nil
			})
			in := db.inbox(pginbox.Options{Keys: keys, Handlers: []pginbox.Handler{poison, worker("loyalty")}})
			another := db.inbox(pginbox.Options{Keys: keys, Handlers: []pginbox.Handler{worker("another")}})
			policy := pginbox.PurgePolicy{Window: 48 * time.Hour, RedeliveryHorizon: 24 * time.Hour, BatchRows: 7}

			old, young := numbered(25)[:15], numbered(25)[15:]
			require.NoError(t, in.Process(within(t), events(old...)))
			require.NoError(t, another.Process(within(t), events(old...)))
			db.exec(`UPDATE ` + table + ` SET seen_at = now() - interval '49 hours'`)
			require.NoError(t, in.Process(within(t), events(young...)))
			db.exec(`UPDATE ` + table + ` SET seen_at = now() - interval '47 hours' WHERE seen_at > now() - interval '40 hours'`)
			require.Equal(t, 2*25+15, db.inboxRows())

			// Rows that somebody else is purging are passed over.
			other, err := db.own.Begin(t.Context())
			require.NoError(t, err)
			t.Cleanup(func() { _ = other.Rollback(context.Background()) })
			_, err = other.Exec(t.Context(), `SELECT FROM `+table+` WHERE seen_at < now() - interval '48 hours' ORDER BY seen_at, ctid LIMIT 4 FOR UPDATE`)
			require.NoError(t, err)
			removed, err := in.Purge(t.Context(), policy)
			require.NoError(t, err)
			require.EqualValues(t, 30-4, removed)
			require.EqualValues(t, 4, traced.deletes.Load(), "7 + 7 + 7 + 5 rows")
			require.NoError(t, other.Rollback(t.Context()))

			removed, err = in.Purge(t.Context(), policy)
			require.NoError(t, err)
			require.EqualValues(t, 4, removed)
			removed, err = in.Purge(t.Context(), policy)
			require.NoError(t, err)
			require.Zero(t, removed)
			require.Equal(t, 2*10+15, db.inboxRows(), "the young ones, and those of a handler of another inbox")
			require.Len(t, db.letters(), 1, "dead letters stay")

			// The edge of the guarantee: what comes again after the purge is done again.
			require.NoError(t, in.Process(within(t), events("evt_001", "evt_020")))
			require.ElementsMatch(t, append(numbered(25)[1:], "evt_001"), db.done("warehouse"))
		})
	}
}

// Old rows are found wherever in a large table they are, and between young ones.
func TestPurgeReadsTheWholeTable(t *testing.T) {
	fill := map[pginbox.Keys]string{
		pginbox.TextKeys: `INSERT INTO processed_messages (handler, event_id, seen_at) SELECT 'warehouse', gen_random_uuid()::text,`,
		pginbox.HashKeys: `INSERT INTO processed_keys (handler_id, event_key, seen_at) SELECT (SELECT id FROM inbox_handlers), gen_random_uuid(),`,
	}
	for keys, table := range inboxTables {
		t.Run(string(keys), func(t *testing.T) {
			db := newDatabase(t)
			in := db.inbox(pginbox.Options{Keys: keys, Handlers: []pginbox.Handler{worker("warehouse")}})
			require.NoError(t, in.Process(within(t), events("evt_young"))) // which numbers the handler
			db.exec(fill[keys] + ` now() - interval '1 hour' * (i % 2) FROM generate_series(1, 100000) AS i`)
			var pages int
			require.NoError(t, db.own.QueryRow(t.Context(), `SELECT pg_relation_size($1::text::regclass) / current_setting('block_size')::int`, table).Scan(&pages))
			require.Greater(t, pages, 2*256, "so that no statement reads all of it")
			removed, err := in.Purge(t.Context(), pginbox.PurgePolicy{Window: 30 * time.Minute, RedeliveryHorizon: 30 * time.Minute, BatchRows: 1_000})
			require.NoError(t, err)
			require.EqualValues(t, 50_000, removed)
			require.Equal(t, 50_001, db.inboxRows())
		})
	}
}

func TestPurgeWithoutRows(t *testing.T) {
	for _, keys := range bothKeys {
		db := newDatabase(t)
		in := db.inbox(pginbox.Options{Keys: keys, Handlers: []pginbox.Handler{worker("warehouse")}})
		removed, err := in.Purge(t.Context(), pginbox.PurgePolicy{Window: time.Hour, RedeliveryHorizon: time.Hour})
		require.NoError(t, err)
		require.Zero(t, removed)

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = in.Purge(ctx, pginbox.PurgePolicy{Window: time.Hour, RedeliveryHorizon: time.Hour})
		require.ErrorIs(t, err, context.Canceled)
	}
}

func TestPurgeRefuses(t *testing.T) {
	for want, p := range map[string]pginbox.PurgePolicy{
		"purge window of 23h0m0s is shorter than the redelivery horizon of 24h0m0s": {Window: 23 * time.Hour, RedeliveryHorizon: 24 * time.Hour},
		"purge window of 0s is shorter than the redelivery horizon of 1h0m0s":       {RedeliveryHorizon: time.Hour},
		"redelivery horizon is 0s, must be positive":                                {Window: time.Hour},
		"redelivery horizon is -1s, must be positive":                               {Window: time.Hour, RedeliveryHorizon: -time.Second},
		"purge batch of -1 rows, must not be negative":                              {Window: time.Hour, RedeliveryHorizon: time.Hour, BatchRows: -1},
	} {
		require.ErrorContains(t, p.Validate(), want)
		in, err := pginbox.New(nil, pginbox.Options{Handlers: []pginbox.Handler{worker("warehouse")}})
		require.NoError(t, err)
		_, err = in.Purge(t.Context(), p)
		require.ErrorContains(t, err, want)
	}
	require.NoError(t, pginbox.PurgePolicy{Window: time.Hour, RedeliveryHorizon: time.Hour}.Validate())
}
