// Package warehouse is what the running example does in Postgres: the warehouse
// handler moves an order to PICKING and creates a pick task, the loyalty handler
// adds points. Each does a whole batch in one statement.
//
// The functions here do the work as often as they are called. Not being called
// twice is the business of whoever calls them.
package warehouse

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/order"
)

// The tables whose rows are effects, one row for each time that the work of an
// event was done. Both have the columns id, event_id and attempt.
const (
	PickTasks     = "pick_tasks"
	LoyaltyPoints = "loyalty_points"
)

// DB is what the functions need: a pgx.Tx, so that the work commits with
// whatever else is in that transaction, or a *pgxpool.Pool, so that it commits by
// itself.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Effect is the work that one event asks for.
type Effect struct {
	// EventID is the stable identity by which the event was delivered.
	EventID string
	// Event is what it says.
	Event order.Event
	// CreatedAt is the time of the record: when the publisher sent it, in
	// milliseconds.
	CreatedAt time.Time
}

// FromRecord reads the effect that a delivered record asks for. A record that is
// no OrderPaid event is an error that wraps [order.ErrMalformed].
func FromRecord(r *kgo.Record) (Effect, error) {
	e, err := order.Decode(r.Value)
	if err != nil {
		return Effect{}, err
	}
	return Effect{EventID: order.ID(r), Event: e, CreatedAt: r.Timestamp}, nil
}

// pickOrders locks the order rows in one order (bytes, whatever the database's
// collation), so that two batches that share orders wait for each other instead
// of deadlocking; ON CONFLICT DO UPDATE takes its row locks in the order of the
// rows it is fed. It refuses to touch one row twice in one statement, so it must
// get only one event an order.
const pickOrders = `
WITH picking AS (
	INSERT INTO orders (order_id, status, last_sequence)
	SELECT order_id, $1, sequence
	FROM unnest($2::text[], $3::bigint[]) AS latest (order_id, sequence)
	ORDER BY order_id COLLATE "C"
	ON CONFLICT (order_id) DO UPDATE SET
		status = excluded.status,
		last_sequence = greatest(orders.last_sequence, excluded.last_sequence)
)`

const pick = pickOrders + `
INSERT INTO pick_tasks (event_id, order_id, sequence, attempt, event_created_at)
SELECT event_id, order_id, sequence, $4, event_created_at
FROM unnest($5::text[], $6::text[], $7::bigint[], $8::timestamptz[])
	AS effect (event_id, order_id, sequence, event_created_at)`

// pickOnce locks the tasks in one order, too: ON CONFLICT DO NOTHING waits for
// whoever has inserted the same key and not committed yet.
const pickOnce = pickOrders + `
INSERT INTO pick_tasks (event_id, order_id, sequence, attempt, event_created_at, once)
SELECT event_id, order_id, sequence, $4, event_created_at, true
FROM unnest($5::text[], $6::text[], $7::bigint[], $8::timestamptz[])
	AS effect (event_id, order_id, sequence, event_created_at)
ORDER BY order_id COLLATE "C", sequence
ON CONFLICT (order_id, sequence) WHERE once DO NOTHING`

// Pick does the warehouse handler's work for a batch in one statement: every
// order is set to PICKING, an absolute write that is harmless twice and never
// lowers last_sequence; and every event gets one pick task, an insert that is
// harmful twice. An empty batch does nothing.
//
// The attempt names the process incarnation that does it.
func Pick(ctx context.Context, db DB, attempt string, effects []Effect) error {
	return createTasks(ctx, db, pick, attempt, effects)
}

// PickOnce does the same with writes that are all harmless twice: a pick task is
// inserted under its natural key, the order and the event's sequence in it, and where
// PickOnce has made that row before, it stays as it is.
//
// The price is that two events with one order and one sequence are one task, whatever
// their ids.
func PickOnce(ctx context.Context, db DB, attempt string, effects []Effect) error {
	return createTasks(ctx, db, pickOnce, attempt, effects)
}

func createTasks(ctx context.Context, db DB, statement, attempt string, effects []Effect) error {
	if len(effects) == 0 {
		return nil
	}
	all := columnsOf(effects)
	latest := order.Latest(all.events)
	latestIDs := make([]string, len(latest))
	latestSequences := make([]int64, len(latest))
	for i, e := range latest {
		latestIDs[i], latestSequences[i] = e.OrderID, e.Sequence
	}
	_, err := db.Exec(ctx, statement, order.StatusPicking, latestIDs, latestSequences,
		attempt, all.eventIDs, all.orderIDs, all.sequences, all.createdAt)
	if err != nil {
		return fmt.Errorf("create %d pick tasks: %w", len(effects), err)
	}
	return nil
}

const award = `
INSERT INTO loyalty_points (event_id, customer, points, attempt, event_created_at)
SELECT event_id, customer, $1, $2, event_created_at
FROM unnest($3::text[], $4::text[], $5::timestamptz[])
	AS effect (event_id, customer, event_created_at)`

// Award does the loyalty handler's work for a batch in one statement:
// [order.Points] for every event, an accumulating write that is harmful twice.
// An empty batch does nothing.
//
// The attempt names the process incarnation that does it.
func Award(ctx context.Context, db DB, attempt string, effects []Effect) error {
	if len(effects) == 0 {
		return nil
	}
	all := columnsOf(effects)
	_, err := db.Exec(ctx, award, order.Points, attempt, all.eventIDs, all.customers, all.createdAt)
	if err != nil {
		return fmt.Errorf("award points for %d events: %w", len(effects), err)
	}
	return nil
}

// columns are the effects turned into one array a column, as unnest takes them.
type columns struct {
	events    []order.Event
	eventIDs  []string
	orderIDs  []string
	customers []string
	sequences []int64
	createdAt []time.Time
}

func columnsOf(effects []Effect) columns {
	n := len(effects)
	c := columns{
		events:    make([]order.Event, n),
		eventIDs:  make([]string, n),
		orderIDs:  make([]string, n),
		customers: make([]string, n),
		sequences: make([]int64, n),
		createdAt: make([]time.Time, n),
	}
	for i, e := range effects {
		c.events[i] = e.Event
		c.eventIDs[i] = e.EventID
		c.orderIDs[i] = e.Event.OrderID
		c.customers[i] = e.Event.Customer
		c.sequences[i] = e.Event.Sequence
		c.createdAt[i] = e.CreatedAt
	}
	return c
}
