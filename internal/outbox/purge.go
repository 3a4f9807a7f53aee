package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// purgeRows is how many rows are removed in one transaction, at most.
const purgeRows = 10_000

// Each batch goes on where the one before ended, and does not walk again over the
// index entries that it left behind.
const purge = `
WITH old AS (
	SELECT ctid FROM outbox
	WHERE published_at >= $1 AND published_at < $2
	ORDER BY published_at
	LIMIT $3
	FOR UPDATE SKIP LOCKED
), purged AS (
	DELETE FROM outbox WHERE ctid = ANY (ARRAY(SELECT ctid FROM old))
	RETURNING published_at
)
SELECT count(*), max(published_at) FROM purged`

// Purge removes rows that were published longer than retention ago, by the server's
// clock, the oldest first, in transactions of bounded size. It returns how many it
// removed, also together with an error. Rows that are pending stay, and so do those that
// Kafka refused, until somebody has looked after them.
//
// Nothing depends on a row that is published: it is kept for people who ask whether and
// when. Several processes may purge at once; they pass over each other's rows.
func Purge(ctx context.Context, pool *pgxpool.Pool, retention time.Duration) (removed int64, err error) {
	if retention < 0 {
		return 0, fmt.Errorf("outbox: purge: a retention of %v, must not be negative", retention)
	}
	var before time.Time
	if err := pool.QueryRow(ctx, `SELECT clock_timestamp() - $1::interval`, retention).Scan(&before); err != nil {
		return 0, fmt.Errorf("outbox: purge: %w", err)
	}
	var from time.Time
	for {
		var (
			rows int64
			last *time.Time
		)
		if err := pool.QueryRow(ctx, purge, from, before, purgeRows).Scan(&rows, &last); err != nil {
			return removed, fmt.Errorf("outbox: purge, %d rows removed before: %w", removed, err)
		}
		removed += rows
		if rows < purgeRows {
			return removed, nil
		}
		from = *last
	}
}
