package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// shards is how many there are, as the tables were made.
	shards = 32
	// shardsAtOnce is how many a relay takes at a time: some are left to others.
	shardsAtOnce = 8
)

// row is a pending row of the outbox.
type row struct {
	id int64
	Message
}

// wave takes some shards, publishes rows of theirs and stamps them, in one
// transaction.
type wave struct {
	relay     *Relay
	publisher *publisher
	first     int // shard to look at first
	next      int // shard for the next wave to look at first
}

// claim locks some shards that have something pending, and passes over those that
// others have locked.
//
// The rows are read by a statement of its own, and read committed, so that it sees
// every stamp of whoever had the shard before. What this statement sees of them may be
// older than the lock.
const claim = `
SELECT shard FROM outbox_shards AS s
WHERE EXISTS (
	SELECT FROM outbox AS o
	WHERE o.shard = s.shard AND published_at IS NULL AND refused_at IS NULL AND topic <> ALL ($2::text[]))
ORDER BY (shard + 32 - $1::int) % 32
LIMIT $3
FOR UPDATE SKIP LOCKED`

// pending reads the first rows of each shard in the order of their ids: so many rows
// and bytes in all, and one row at least.
//
// Pending is what has no stamp, and not what comes after the last row that was seen:
// ids are drawn when rows are inserted, and a lower one may be committed later.
const pending = `
SELECT o.id, o.event_id, o.topic, o.record_key, o.record_value, o.header_names, o.header_values, o.record_time
FROM (
	SELECT p.id, row_number() OVER taken AS n, sum(p.bytes) OVER taken AS bytes
	FROM unnest($1::smallint[]) WITH ORDINALITY AS s (shard, place)
	CROSS JOIN LATERAL (
		SELECT id, coalesce(octet_length(record_value), 0) AS bytes
		FROM outbox
		WHERE shard = s.shard AND published_at IS NULL AND refused_at IS NULL AND topic <> ALL ($2::text[])
		ORDER BY id
		LIMIT $3
	) AS p
	WINDOW taken AS (ORDER BY s.place, p.id ROWS UNBOUNDED PRECEDING)
) AS taken
JOIN outbox AS o USING (id)
WHERE taken.n = 1 OR taken.n <= $3 AND taken.bytes <= $4
ORDER BY o.id`

const (
	stamp  = `UPDATE outbox SET published_at = clock_timestamp() WHERE id = ANY ($1::bigint[])`
	refuse = `
UPDATE outbox SET refused_at = clock_timestamp(), refusal = r.refusal
FROM unnest($1::bigint[], $2::text[]) AS r (id, refusal)
WHERE outbox.id = r.id`
)

// run is one wave. It says whether it had anything to do: there may be more.
func (w *wave) run(ctx context.Context) (busy bool, err error) {
	w.next = w.first
	o := w.relay.options
	// Not left to the server, whose default can be set otherwise.
	tx, err := w.relay.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return false, fmt.Errorf("begin a transaction: %w", err)
	}
	defer func() { _ = tx.Rollback(ctx) }() // after a commit this does nothing
	rows, err := w.claim(ctx, tx)
	if err != nil || rows == nil {
		return false, err
	}
	if err := o.Hook.pass(ctx, Claimed, rows); err != nil {
		return false, err
	}
	published, refused := w.publisher.publish(ctx, rows)
	if err := o.Hook.pass(ctx, Published, published); err != nil {
		return false, err
	}
	if len(published)+len(refused) == 0 {
		return true, nil // topics are on hold, or others had done it
	}
	if err := w.stamp(ctx, tx, published, refused); err != nil {
		return false, err
	}
	if err := tx.Commit(ctx); err != nil {
		return false, fmt.Errorf("commit the stamps of %d rows: %w", len(published)+len(refused), err)
	}
	for _, r := range refused {
		o.Logger.Error("Kafka refused a record for what it is; its row is kept in the outbox with the cause, and later ones of its key go on without it",
			"event", r.ID, "row", r.id, "topic", r.Record.Topic, "cause", r.cause)
	}
	return true, o.Hook.pass(ctx, Stamped, published)
}

// claim locks shards and returns rows of theirs, in the order of their ids; nil where
// there is no shard to be had.
func (w *wave) claim(ctx context.Context, tx pgx.Tx) ([]row, error) {
	o := w.relay.options
	idle := fmt.Sprintf("SET LOCAL idle_in_transaction_session_timeout = %d", (2 * o.PublishTimeout).Milliseconds())
	if _, err := tx.Exec(ctx, idle); err != nil {
		return nil, fmt.Errorf("bound the transaction: %w", err)
	}
	held := w.publisher.held()
	// An error of a query is in its rows, too.
	found, _ := tx.Query(ctx, claim, w.first, held, shardsAtOnce)
	claimed, err := pgx.CollectRows(found, pgx.RowTo[int16])
	if err != nil {
		return nil, fmt.Errorf("claim shards: %w", err)
	}
	if len(claimed) == 0 {
		return nil, nil
	}
	w.next = (int(claimed[len(claimed)-1]) + 1) % shards
	found, _ = tx.Query(ctx, pending, claimed, held, o.BatchRows, o.BatchBytes)
	rows, err := pgx.CollectRows(found, scan)
	if err != nil {
		return nil, fmt.Errorf("read pending rows: %w", err)
	}
	return rows, nil
}

func scan(found pgx.CollectableRow) (row, error) {
	var (
		r             row
		eventID       []byte
		names, values [][]byte
		at            *time.Time
	)
	r.Record = &kgo.Record{}
	if err := found.Scan(&r.id, &eventID, &r.Record.Topic, &r.Record.Key, &r.Record.Value, &names, &values, &at); err != nil {
		return r, err
	}
	if len(names) != len(values) {
		return r, fmt.Errorf("row %d has %d header names and %d header values, must have one value for each name", r.id, len(names), len(values))
	}
	r.ID = string(eventID)
	for i, name := range names {
		r.Record.Headers = append(r.Record.Headers, kgo.RecordHeader{Key: string(name), Value: values[i]})
	}
	if at != nil {
		r.Record.Timestamp = *at
	}
	return r, nil
}

func (w *wave) stamp(ctx context.Context, tx pgx.Tx, published []row, refused []refusal) error {
	if len(published) > 0 {
		ids := make([]int64, len(published))
		for i, r := range published {
			ids[i] = r.id
		}
		if _, err := tx.Exec(ctx, stamp, ids); err != nil {
			return fmt.Errorf("stamp %d rows as published: %w", len(published), err)
		}
	}
	if len(refused) > 0 {
		ids, causes := make([]int64, len(refused)), make([]string, len(refused))
		for i, r := range refused {
			ids[i], causes[i] = r.id, r.cause.Error()
		}
		if _, err := tx.Exec(ctx, refuse, ids, causes); err != nil {
			return fmt.Errorf("stamp %d rows as refused: %w", len(refused), err)
		}
	}
	return nil
}
