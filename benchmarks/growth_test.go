package benchmarks_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/pginbox"
)

// growthEnv asks for an inbox of 10^6 and one of 10^7 rows, too, and -all for the first:
// filling them takes minutes.
const growthEnv = "INBOX_10M"

// BenchmarkInboxGrowth: an inbox of so many rows, of which the oldest are purged as fast
// as new ones come, in batches of 1,000. No Kafka; the work is one row an event. Ids have
// 32 hexadecimal digits, at random or beginning with the time; hashed, all are random.
//
// inbox-MB is the size of the table and its indexes in the end, purged/op how many rows
// were purged for each that came, vacuums how often autovacuum has run since the first
// row, dead-rows what it has left.
func BenchmarkInboxGrowth(b *testing.B) {
	printEnvironment(b)
	sizes := []int{100_000}
	if tenMillion := os.Getenv(growthEnv) != ""; *all || tenMillion {
		sizes = append(sizes, 1_000_000)
		if tenMillion {
			sizes = append(sizes, 10_000_000)
		}
	}
	for _, g := range []growth{
		{keys: pginbox.TextKeys, ids: "time"},
		{keys: pginbox.TextKeys, ids: "random"},
		{keys: pginbox.HashKeys, ids: "random"},
	} {
		b.Run(fmt.Sprintf("keys=%s/ids=%s", g.keys, g.ids), func(b *testing.B) {
			g.open(b)
			for _, rows := range sizes {
				b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) {
					g.fill(b, rows)
					g.measure(b)
				})
			}
		})
	}
}

type growth struct {
	keys pginbox.Keys
	ids  string // time, or random

	pool  *pgxpool.Pool
	inbox *pginbox.Inbox
	rows  int // in the inbox
}

func (g *growth) open(b *testing.B) {
	g.pool = inboxOf(b)
	var err error
	g.inbox, err = pginbox.New(g.pool, pginbox.Options{Keys: g.keys, Handlers: []pginbox.Handler{{Name: "bench", Handle: insertWork}}})
	if err == nil {
		err = g.inbox.Process(b.Context(), g.events(1)) // which numbers the handler
	}
	if err != nil {
		b.Fatal(err)
	}
}

func (g *growth) events(n int) []pginbox.Event {
	events := make([]pginbox.Event, n)
	for i := range events {
		first := rand.Uint64()
		if g.ids == "time" {
			first = uint64(time.Now().UnixNano())
		}
		events[i] = pginbox.Event{ID: fmt.Sprintf("%016x%016x", first, rand.Uint64()), Record: &kgo.Record{}}
	}
	return events
}

// age is how old the oldest rows of a filled inbox are.
const age = time.Hour

// fill fills the inbox up, row by row and so with the index that it would have, and
// spreads the instants at which its rows came evenly over the last hour.
func (g *growth) fill(b *testing.B, rows int) {
	const chunk = 100_000
	insert := map[string]string{
		"text/time":   `INSERT INTO processed_messages (handler, event_id, seen_at) SELECT 'bench', lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1e9)::bigint), 16, '0') || substr(md5(i::text), 1, 16)`,
		"text/random": `INSERT INTO processed_messages (handler, event_id, seen_at) SELECT 'bench', replace(gen_random_uuid()::text, '-', '')`,
		"hash/random": `INSERT INTO processed_keys (handler_id, event_key, seen_at) SELECT 1, gen_random_uuid()`,
	}[string(g.keys)+"/"+g.ids]
	missing := rows - g.rows
	for done := 0; done < missing; done += chunk {
		g.exec(b, insert+`, now() - $1::interval * (1 - ($2::int + i)::float / $3::int) FROM generate_series(1, least($4::int, $3::int - $2::int)) AS i`, age, done, missing, chunk)
	}
	g.rows = rows
	g.exec(b, `TRUNCATE work`)
	g.exec(b, `ANALYZE `+g.table())
	g.exec(b, `CHECKPOINT`)
}

func (g *growth) table() string {
	if g.keys == pginbox.HashKeys {
		return "processed_keys"
	}
	return "processed_messages"
}

func (g *growth) exec(b *testing.B, sql string, args ...any) {
	b.Helper()
	if _, err := g.pool.Exec(b.Context(), sql, args...); err != nil {
		b.Fatal(err)
	}
}

// purgeEvery is how many batches there are to a purge, which reads the whole table: a
// pipeline purges every hour, and so far less often.
const purgeEvery = 150

// measure delivers b.N events, while as many old rows are purged.
func (g *growth) measure(b *testing.B) {
	const batch = 1_000
	var oldest time.Time
	if err := g.pool.QueryRow(b.Context(), `SELECT min(seen_at) FROM `+g.table()).Scan(&oldest); err != nil {
		b.Fatal(err)
	}
	var (
		events  = g.events(b.N)
		latency = hdrhistogram.New(1, time.Minute.Microseconds(), 3)
		arrived = make(chan int, b.N/batch/purgeEvery+1)
		purged  int64
		purging sync.WaitGroup
	)
	purging.Go(func() {
		for n := range arrived {
			// As many as have arrived are older than that, for as long as there are old ones.
			window := max(time.Since(oldest.Add(time.Duration(float64(age)*float64(n)/float64(g.rows)))), time.Minute)
			removed, err := g.inbox.Purge(b.Context(), pginbox.PurgePolicy{Window: window, RedeliveryHorizon: window})
			if err != nil {
				b.Error(err)
			}
			purged += removed
		}
	})
	b.ResetTimer()
	for done := 0; done < b.N; {
		n := min(b.N-done, batch)
		begin := time.Now()
		if err := g.inbox.Process(b.Context(), events[done:done+n]); err != nil {
			b.Fatal(err)
		}
		_ = latency.RecordValue(max(1, time.Since(begin).Microseconds()))
		if done += n; done%(purgeEvery*batch) == 0 {
			arrived <- done
		}
	}
	b.StopTimer()
	close(arrived)
	purging.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64(latency.ValueAtPercentile(50))/1000, "p50-ms")
	b.ReportMetric(float64(latency.ValueAtPercentile(99))/1000, "p99-ms")
	b.ReportMetric(float64(purged)/float64(b.N), "purged/op")
	g.report(b)
}

func (g *growth) report(b *testing.B) {
	var bytes, vacuums, dead int64
	err := g.pool.QueryRow(b.Context(), `
SELECT pg_total_relation_size(relid), autovacuum_count, n_dead_tup
FROM pg_stat_user_tables WHERE relid = $1::regclass`, g.table()).Scan(&bytes, &vacuums, &dead)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(bytes)/1e6, "inbox-MB")
	b.ReportMetric(float64(vacuums), "vacuums")
	b.ReportMetric(float64(dead), "dead-rows")
}

// purgedRows is how many rows BenchmarkPurge removes at a time.
const purgedRows = 100_000

// BenchmarkPurge: 100,000 rows out of an inbox, by the purge and by dropping the partition
// of a day. The partitioned table is cut by a day that the event itself carries, which
// every redelivery repeats; the day on which the row came would let an id in twice.
//
// An operation is to fill and to empty it; only the latter is in rows/s and WAL-B/row.
func BenchmarkPurge(b *testing.B) {
	printEnvironment(b)
	b.Run("by=delete", func(b *testing.B) {
		g := growth{keys: pginbox.HashKeys, ids: "random"}
		g.open(b)
		g.emptied(b, func() { g.fill(b, purgedRows) }, func() {
			if _, err := g.inbox.Purge(b.Context(), pginbox.PurgePolicy{Window: 1, RedeliveryHorizon: 1}); err != nil {
				b.Fatal(err)
			}
			g.rows = 0
		})
	})
	b.Run("by=drop", func(b *testing.B) {
		g := growth{pool: inboxOf(b)}
		g.exec(b, `CREATE TABLE by_day (day date, handler_id smallint, event_key uuid, PRIMARY KEY (event_key, handler_id, day)) PARTITION BY LIST (day)`)
		g.emptied(b, func() {
			g.exec(b, `CREATE TABLE today PARTITION OF by_day FOR VALUES IN ('2026-01-05')`)
			g.exec(b, `INSERT INTO by_day SELECT '2026-01-05', 1, gen_random_uuid() FROM generate_series(1, $1)`, purgedRows)
		}, func() { g.exec(b, `DROP TABLE today`) })
	})
}

func (g *growth) emptied(b *testing.B, fill, empty func()) {
	var (
		took time.Duration
		wal  int64
	)
	for range b.N {
		fill()
		before, begin := g.wal(b), time.Now()
		empty()
		took += time.Since(begin)
		wal += g.wal(b) - before
	}
	rows := float64(purgedRows * b.N)
	b.ReportMetric(rows/took.Seconds(), "rows/s")
	b.ReportMetric(float64(wal)/rows, "WAL-B/row")
	b.ReportMetric(0, "ns/op") // of both together: says nothing
}

// wal returns how many bytes of write-ahead log there have been.
func (g *growth) wal(b *testing.B) (bytes int64) {
	b.Helper()
	if err := g.pool.QueryRow(b.Context(), `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`).Scan(&bytes); err != nil {
		b.Fatal(err)
	}
	return bytes
}
