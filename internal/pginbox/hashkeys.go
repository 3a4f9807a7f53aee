package pginbox

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// hashLedger keeps 16 bytes of an id's SHA-256 as a uuid, the one type of Postgres
// that is 16 plain bytes.
type hashLedger struct {
	numbers atomic.Pointer[map[string]int16] // of the handlers, once prepared
}

func (*hashLedger) key(id string) (string, error) {
	sum := sha256.Sum256([]byte(id))
	return string(sum[:16]), nil
}

func (*hashLedger) table() string { return "processed_keys" }

// prepare numbers the handlers. ON CONFLICT alone would do, but every attempt to
// insert uses up a number, and a smallint has only 32,767.
func (l *hashLedger) prepare(ctx context.Context, pool *pgxpool.Pool, handlers []string) error {
	_, err := pool.Exec(ctx, `
INSERT INTO inbox_handlers (name)
SELECT name FROM unnest($1::text[]) AS handler (name)
WHERE NOT EXISTS (SELECT FROM inbox_handlers AS known WHERE known.name = handler.name)
ON CONFLICT (name) DO NOTHING`, handlers)
	if err != nil {
		return err
	}
	rows, err := pool.Query(ctx, `SELECT name, id FROM inbox_handlers WHERE name = ANY ($1::text[])`, handlers)
	if err != nil {
		return err
	}
	var (
		name    string
		number  int16
		numbers = make(map[string]int16)
	)
	_, err = pgx.ForEachRow(rows, []any{&name, &number}, func() error {
		numbers[name] = number
		return nil
	})
	if err != nil {
		return err
	}
	if len(numbers) < len(handlers) {
		return fmt.Errorf("table inbox_handlers has numbers for %d of the %d handlers; did somebody remove them just now?", len(numbers), len(handlers))
	}
	l.numbers.Store(&numbers)
	return nil
}

// insert fails for a handler without a number (handler_id is NOT NULL). A join would
// insert nothing for it, which reads as "all done before".
func (*hashLedger) insert() string {
	return `
INSERT INTO processed_keys (handler_id, event_key)
SELECT (SELECT id FROM inbox_handlers WHERE name = $1), event_key FROM unnest($2::uuid[]) AS event_key`
}

func (l *hashLedger) insertMissing() string {
	return l.insert() + `
ON CONFLICT (event_key, handler_id) DO NOTHING
RETURNING event_key`
}

func (*hashLedger) remove() string {
	return `
DELETE FROM processed_keys
WHERE handler_id = (SELECT id FROM inbox_handlers WHERE name = $1) AND event_key = ANY ($2::uuid[])`
}

func (*hashLedger) purge() string {
	return `
DELETE FROM processed_keys WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM processed_keys
	WHERE ctid >= $1 AND ctid < $2 AND seen_at < $3
		AND handler_id = ANY (ARRAY(SELECT id FROM inbox_handlers WHERE name = ANY ($4::text[])))
	LIMIT $5
	FOR UPDATE SKIP LOCKED
))`
}

func (*hashLedger) columns() []string { return []string{"handler_id", "event_key"} }

func (l *hashLedger) row(handler, key string) []any {
	return []any{(*l.numbers.Load())[handler], [16]byte([]byte(key))}
}

func (*hashLedger) encode(keys []string) any {
	uuids := make([][16]byte, len(keys))
	for i, key := range keys {
		uuids[i] = [16]byte([]byte(key))
	}
	return uuids
}

func (*hashLedger) collect(rows pgx.Rows) ([]string, error) {
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		var key [16]byte
		err := row.Scan(&key)
		return string(key[:]), err
	})
}
