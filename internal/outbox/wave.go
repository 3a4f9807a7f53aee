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
	shard int16
	id    int64
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
// and bytes of each, and one row at least. Each shard has its share, so that none waits
// for another that is always full.
//
// Pending is what has no stamp, and not what comes after the last row that was seen:
// ids are drawn when rows are inserted, and a lower one may be committed later.
const pending = `
SELECT shard, id, event_id, topic, record_key, record_value, header_names, header_values, record_time
FROM (
	SELECT p.shard, p.id, row_number() OVER share AS n, sum(p.bytes) OVER share AS bytes
	FROM unnest($1::smallint[]) AS s (shard)
	CROSS JOIN LATERAL (
		SELECT shard, id, coalesce(octet_length(record_value), 0) AS bytes
		FROM outbox
		WHERE shard = s.shard AND published_at IS NULL AND refused_at IS NULL AND topic <> ALL ($2::text[])
		ORDER BY id
		LIMIT $3
	) AS p
	WINDOW share AS (PARTITION BY p.shard ORDER BY p.id)
) AS first
JOIN outbox USING (shard, id)
WHERE n = 1 OR bytes <= $4
ORDER BY id`

const (
	stamp = `
UPDATE outbox SET published_at = clock_timestamp()
FROM unnest($1::smallint[], $2::bigint[]) AS r (shard, id)
WHERE outbox.shard = r.shard AND outbox.id = r.id`
	refuse = `
UPDATE outbox SET refused_at = clock_timestamp(), refusal = r.refusal
FROM unnest($1::smallint[], $2::bigint[], $3::text[]) AS r (shard, id, refusal)
WHERE outbox.shard = r.shard AND outbox.id = r.id`
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
	found, _ := tx.Query(ctx, claim, w.first, held, min(shardsAtOnce, o.BatchRows))
	claimed, err := pgx.CollectRows(found, pgx.RowTo[int16])
	if err != nil {
		return nil, fmt.Errorf("claim shards: %w", err)
	}
	if len(claimed) == 0 {
		return nil, nil
	}
	w.next = (int(claimed[len(claimed)-1]) + 1) % shards
	found, _ = tx.Query(ctx, pending, claimed, held, o.BatchRows/len(claimed), o.BatchBytes/int64(len(claimed)))
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
	if err := found.Scan(&r.shard, &r.id, &eventID, &r.Record.Topic, &r.Record.Key, &r.Record.Value, &names, &values, &at); err != nil {
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
		var shards []int16
		var ids []int64
		for _, r := range published {
			shards, ids = append(shards, r.shard), append(ids, r.id)
		}
		if _, err := tx.Exec(ctx, stamp, shards, ids); err != nil {
			return fmt.Errorf("stamp %d rows as published: %w", len(published), err)
		}
	}
	if len(refused) > 0 {
		var shards []int16
		var ids []int64
		var causes []string
		for _, r := range refused {
			shards, ids, causes = append(shards, r.shard), append(ids, r.id), append(causes, r.cause.Error())
		}
		if _, err := tx.Exec(ctx, refuse, shards, ids, causes); err != nil {
			return fmt.Errorf("stamp %d rows as refused: %w", len(refused), err)
		}
	}
	return nil
}
