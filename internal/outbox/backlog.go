package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Backlog is what is in the outbox and not in Kafka.
type Backlog struct {
	// Pending is how many rows are to be published.
	Pending int64
	// Oldest is how long ago the transaction of the oldest of them began, by the server's
	// clock; 0 where there is none.
	Oldest time.Duration
	// Refused is how many rows Kafka refused for what they are.
	Refused int64
}

const backlog = `
SELECT count(*), coalesce(clock_timestamp() - min(created_at), '0'),
	(SELECT count(*) FROM outbox WHERE refused_at IS NOT NULL)
FROM outbox
WHERE published_at IS NULL AND refused_at IS NULL`

// ReadBacklog counts what the outbox holds. db is a connection, a pool of them or a
// transaction.
func ReadBacklog(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}) (Backlog, error) {
	var b Backlog
	if err := db.QueryRow(ctx, backlog).Scan(&b.Pending, &b.Oldest, &b.Refused); err != nil {
		return b, fmt.Errorf("outbox: read the backlog: %w", err)
	}
	return b, nil
}
