package warehouse_test

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
	"github.com/delivered-twice/delivered-twice/internal/warehouse"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

var created = time.Date(2026, time.January, 5, 14, 2, 11, 120_000_000, time.UTC)

func effect(id, orderID string, sequence int64) warehouse.Effect {
	return warehouse.Effect{
		EventID:   id,
		Event:     order.Event{ID: id, OrderID: orderID, Customer: "cus_001", Sequence: sequence},
		CreatedAt: created,
	}
}

func migrated(t *testing.T) *pgxpool.Pool {
	t.Helper()
	url := sandboxtest.Database(t)
	require.NoError(t, warehouse.Migrate(t.Context(), url))
	return connect(t, url)
}

func connect(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// rows returns one string a row of a query with one text column.
func rows(t *testing.T, pool *pgxpool.Pool, sql string) []string {
	t.Helper()
	result, err := pool.Query(t.Context(), sql)
	require.NoError(t, err)
	all, err := pgx.CollectRows(result, pgx.RowTo[string])
	require.NoError(t, err)
	return all
}

const (
	orders = `SELECT format('%s %s %s', order_id, status, last_sequence) FROM orders ORDER BY order_id`
	tasks  = `SELECT format('%s %s %s %s', event_id, order_id, sequence, attempt) FROM pick_tasks ORDER BY id`
	points = `SELECT format('%s %s %s %s', event_id, customer, points, attempt) FROM loyalty_points ORDER BY id`
)

func TestPickIsAbsoluteOnOrdersAndInsertsATaskAnEvent(t *testing.T) {
	pool, ctx := migrated(t), t.Context()

	require.NoError(t, warehouse.Pick(ctx, pool, "inbox-0-1", []warehouse.Effect{
		effect("evt_1", "ord_2", 1), effect("evt_3", "ord_2", 3), effect("evt_2", "ord_2", 2), effect("evt_4", "ord_1", 1),
	}))
	require.Equal(t, []string{"ord_1 PICKING 1", "ord_2 PICKING 3"}, rows(t, pool, orders))
	require.Equal(t, []string{
		"evt_1 ord_2 1 inbox-0-1", "evt_3 ord_2 3 inbox-0-1", "evt_2 ord_2 2 inbox-0-1", "evt_4 ord_1 1 inbox-0-1",
	}, rows(t, pool, tasks))

	// An older event that comes again must not turn the order back, and its
	// second task must show.
	require.NoError(t, warehouse.Pick(ctx, pool, "inbox-0-2", []warehouse.Effect{effect("evt_1", "ord_2", 1)}))
	require.Equal(t, []string{"ord_1 PICKING 1", "ord_2 PICKING 3"}, rows(t, pool, orders))
	require.Equal(t, "evt_1 ord_2 1 inbox-0-2", rows(t, pool, tasks)[4])

	require.NoError(t, warehouse.Pick(ctx, pool, "inbox-0-2", []warehouse.Effect{effect("evt_5", "ord_1", 2)}))
	require.Equal(t, []string{"ord_1 PICKING 2", "ord_2 PICKING 3"}, rows(t, pool, orders))
}

func TestPickOnceLeavesOneTaskForEachNaturalKey(t *testing.T) {
	pool, ctx := migrated(t), t.Context()
	first := []warehouse.Effect{effect("evt_1", "ord_2", 1), effect("evt_1", "ord_2", 1), effect("evt_2", "ord_2", 2)}
	require.NoError(t, warehouse.PickOnce(ctx, pool, "a", first))
	require.NoError(t, warehouse.PickOnce(ctx, pool, "b", append(first, effect("evt_3", "ord_1", 1))))
	require.Equal(t, []string{"ord_1 PICKING 1", "ord_2 PICKING 2"}, rows(t, pool, orders))
	require.Equal(t, []string{"evt_1 ord_2 1 a", "evt_2 ord_2 2 a", "evt_3 ord_1 1 b"}, rows(t, pool, `SELECT format('%s %s %s %s', event_id, order_id, sequence, attempt) FROM pick_tasks ORDER BY event_id`))

	// Two ids under one natural key are one task: that is the price.
	require.NoError(t, warehouse.PickOnce(ctx, pool, "b", []warehouse.Effect{effect("evt_4", "ord_1", 1)}))
	require.Len(t, rows(t, pool, tasks), 3)

	// Whoever does not rely on the key must still be able to show a duplicate.
	require.NoError(t, warehouse.Pick(ctx, pool, "c", first))
	require.Len(t, rows(t, pool, tasks), 6)
}

func TestAwardAddsPointsAnEvent(t *testing.T) {
	pool, ctx := migrated(t), t.Context()
	twice := []warehouse.Effect{effect("evt_1", "ord_1", 1), effect("evt_2", "ord_1", 2)}
	require.NoError(t, warehouse.Award(ctx, pool, "eos-0-1", twice[:1]))
	require.NoError(t, warehouse.Award(ctx, pool, "eos-0-2", twice))
	require.Equal(t, []string{
		"evt_1 cus_001 50 eos-0-1", "evt_1 cus_001 50 eos-0-2", "evt_2 cus_001 50 eos-0-2",
	}, rows(t, pool, points))

	var at time.Time
	require.NoError(t, pool.QueryRow(ctx, `SELECT min(event_created_at) FROM loyalty_points`).Scan(&at))
	require.WithinDuration(t, created, at, 0)
}

func TestTheWorkBelongsToTheTransaction(t *testing.T) {
	pool, ctx := migrated(t), t.Context()
	tx, err := pool.Begin(ctx)
	require.NoError(t, err)
	require.NoError(t, warehouse.Pick(ctx, tx, "a", []warehouse.Effect{effect("evt_1", "ord_1", 1)}))
	require.NoError(t, warehouse.Award(ctx, tx, "a", []warehouse.Effect{effect("evt_1", "ord_1", 1)}))
	require.NoError(t, tx.Rollback(ctx))
	for _, sql := range []string{orders, tasks, points} {
		require.Empty(t, rows(t, pool, sql))
	}
}

func TestAnEmptyBatchDoesNothing(t *testing.T) {
	pool := migrated(t)
	require.NoError(t, warehouse.Pick(t.Context(), pool, "a", nil))
	require.NoError(t, warehouse.Award(t.Context(), pool, "a", nil))
}

func TestBatchesThatShareOrdersInOppositeOrderDoNotDeadlock(t *testing.T) {
	t.Run("pick", func(t *testing.T) { testNoDeadlock(t, warehouse.Pick) })
	t.Run("pick once", func(t *testing.T) { testNoDeadlock(t, warehouse.PickOnce) })
}

func testNoDeadlock(t *testing.T, pick func(context.Context, warehouse.DB, string, []warehouse.Effect) error) {
	pool := migrated(t)
	// The same orders, and with them the same natural keys, at the same time.
	batch := func(worker string, sequence int64, backward bool) []warehouse.Effect {
		var effects []warehouse.Effect
		for i := range 500 {
			effects = append(effects, effect(fmt.Sprintf("evt_%s%d", worker, i), fmt.Sprintf("ord_%03d", i), sequence))
		}
		if backward {
			slices.Reverse(effects)
		}
		return effects
	}
	errs := make(chan error, 40)
	var workers sync.WaitGroup
	for _, worker := range []string{"f", "b"} {
		workers.Go(func() {
			for i := range 20 {
				errs <- pick(t.Context(), pool, "a", batch(worker, int64(i+1), worker == "b"))
			}
		})
	}
	workers.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
}

func TestFromRecord(t *testing.T) {
	e := order.Event{ID: "evt_9f3k", OrderID: "ord_1", Customer: "cus_001", Sequence: 1, OccurredAt: created}
	r := e.Record("orders.paid")
	r.Timestamp = created
	got, err := warehouse.FromRecord(r)
	require.NoError(t, err)
	require.Equal(t, warehouse.Effect{EventID: "evt_9f3k", Event: e, CreatedAt: created}, got)

	_, err = warehouse.FromRecord(&kgo.Record{Value: []byte("{")})
	require.ErrorIs(t, err, order.ErrMalformed)
}

func TestMigrateByManyAtOnceAndAgain(t *testing.T) {
	url := sandboxtest.Database(t)
	errs := make(chan error, 8)
	var processes sync.WaitGroup
	for range cap(errs) {
		processes.Go(func() { errs <- warehouse.Migrate(t.Context(), url) })
	}
	processes.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	require.NoError(t, warehouse.Pick(t.Context(), connect(t, url), "a", []warehouse.Effect{effect("evt_1", "ord_1", 1)}))
	require.NoError(t, warehouse.Migrate(t.Context(), url))
}

func TestUpToDate(t *testing.T) {
	url := sandboxtest.Database(t)
	pool := connect(t, url)
	upToDate := func() bool {
		done, err := warehouse.UpToDate(t.Context(), pool)
		require.NoError(t, err)
		return done
	}
	require.False(t, upToDate())
	require.NoError(t, warehouse.Migrate(t.Context(), url))
	require.True(t, upToDate())
	_, err := pool.Exec(t.Context(), `DELETE FROM warehouse_versions WHERE version_id = 2`)
	require.NoError(t, err)
	require.False(t, upToDate(), "the last migration is missing")

	// Another schema of the path that has the tables is not the one that is meant.
	_, err = pool.Exec(t.Context(), `INSERT INTO warehouse_versions (version_id, is_applied) VALUES (2, true)`)
	require.NoError(t, err)
	other := connect(t, sandboxtest.Database(t))
	var schemas string
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT current_schema()`).Scan(&schemas))
	conn, err := other.Acquire(t.Context())
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `SELECT set_config('search_path', current_schema() || ',' || $1, false)`, schemas)
	require.NoError(t, err)
	conn.Release()
	done, err := warehouse.UpToDate(t.Context(), other)
	require.NoError(t, err)
	require.False(t, done)
}

func TestMigrateBesideAnotherPackagesMigrations(t *testing.T) {
	url := sandboxtest.Database(t)
	config, err := pgx.ParseConfig(url)
	require.NoError(t, err)
	db := stdlib.OpenDB(*config)
	defer db.Close()
	var other fs.FS = fstest.MapFS{"00001_other.sql": {Data: []byte("-- +goose Up\nCREATE TABLE other (id int);\n")}}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, other)
	require.NoError(t, err)
	_, err = provider.Up(t.Context())
	require.NoError(t, err)

	require.NoError(t, warehouse.Migrate(t.Context(), url))
	require.Equal(t, []string{
		"goose_db_version", "loyalty_points", "orders", "other", "pick_tasks", "warehouse_versions",
	}, rows(t, connect(t, url), `SELECT tablename::text FROM pg_tables WHERE schemaname = current_schema() ORDER BY 1`))
}

func TestMigrateNeedsASchema(t *testing.T) {
	config, err := pgx.ParseConfig(sandboxtest.Database(t))
	require.NoError(t, err)
	err = warehouse.Migrate(t.Context(), fmt.Sprintf("host=%s port=%d user=%s password='%s' dbname=%s sslmode=disable search_path=nowhere",
		config.Host, config.Port, config.User, config.Password, config.Database))
	require.ErrorContains(t, err, "its search_path names no schema that exists")
}

func TestAMigrationThatWaitsEndsWithItsContext(t *testing.T) {
	url := sandboxtest.Database(t)
	pool := connect(t, url)
	holder, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer holder.Release()
	const key = `hashtextextended('warehouse_versions ' || current_schema(), 0)`
	_, err = holder.Exec(t.Context(), `SELECT pg_advisory_lock(`+key+`)`)
	require.NoError(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, warehouse.Migrate(ctx, url), context.DeadlineExceeded)

	_, err = holder.Exec(t.Context(), `SELECT pg_advisory_unlock(`+key+`)`)
	require.NoError(t, err)
	require.NoError(t, warehouse.Migrate(t.Context(), url))
}
