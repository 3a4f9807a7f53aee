package pginbox

import (
	"context"
	"crypto/sha256"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// hashLedger keeps 16 bytes of an id's SHA-256 as a uuid, the one type of Postgres
// that is 16 plain bytes.
type hashLedger struct{}

func (hashLedger) key(id string) (string, error) {
	sum := sha256.Sum256([]byte(id))
	return string(sum[:16]), nil
}

// prepare numbers the handlers. ON CONFLICT alone would do, but every attempt to
// insert uses up a number, and a smallint has only 32,767.
func (hashLedger) prepare(ctx context.Context, pool *pgxpool.Pool, handlers []string) error {
	_, err := pool.Exec(ctx, `
INSERT INTO inbox_handlers (name)
SELECT name FROM unnest($1::text[]) AS handler (name)
WHERE NOT EXISTS (SELECT FROM inbox_handlers AS known WHERE known.name = handler.name)
ON CONFLICT (name) DO NOTHING`, handlers)
	return err
}

// insert fails for a handler without a number (handler_id is NOT NULL). A join would
// insert nothing for it, which reads as "all done before".
func (hashLedger) insert() string {
	return `
INSERT INTO processed_keys (handler_id, event_key)
SELECT (SELECT id FROM inbox_handlers WHERE name = $1), event_key FROM unnest($2::uuid[]) AS event_key`
}

func (l hashLedger) insertMissing() string {
	return l.insert() + `
ON CONFLICT (event_key, handler_id) DO NOTHING
RETURNING event_key`
}

func (hashLedger) remove() string {
	return `
DELETE FROM processed_keys
WHERE handler_id = (SELECT id FROM inbox_handlers WHERE name = $1) AND event_key = ANY ($2::uuid[])`
}

func (hashLedger) purge() string {
	return `
WITH old AS (
	SELECT ctid FROM processed_keys
	WHERE seen_at >= $1 AND seen_at < $2
		AND handler_id = ANY (ARRAY(SELECT id FROM inbox_handlers WHERE name = ANY ($3::text[])))
	ORDER BY seen_at
	LIMIT $4
	FOR UPDATE SKIP LOCKED
), purged AS (
	DELETE FROM processed_keys WHERE ctid = ANY (ARRAY(SELECT ctid FROM old))
	RETURNING seen_at
)
SELECT count(*), max(seen_at) FROM purged`
}

func (hashLedger) encode(keys []string) any {
	uuids := make([][16]byte, len(keys))
	for i, key := range keys {
		uuids[i] = [16]byte([]byte(key))
	}
	return uuids
}

func (hashLedger) collect(rows pgx.Rows) ([]string, error) {
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		var key [16]byte
		err := row.Scan(&key)
		return string(key[:]), err
	})
}
