package pginbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// MaxIDBytes is how long an event id may be with [TextKeys]. An entry of a btree
	// index takes at most 2,704 bytes, a third of a page (PostgreSQL manual, "B-Tree
	// Indexes"), and a handler's name must fit in beside it.
	MaxIDBytes = 2048
	// MaxNameBytes is how long a handler's name may be.
	MaxNameBytes = 256
)

// textLedger keeps ids as they are.
type textLedger struct{}

func (textLedger) key(id string) (string, error) {
	if err := storable(id, MaxIDBytes); err != nil {
		return digest([]byte(id)), fmt.Errorf("the event id %w", err)
	}
	return id, nil
}

// storable says why Postgres can't hold s as an indexed text, if it can't.
func storable(s string, maxBytes int) error {
	switch {
	case len(s) > maxBytes:
		return fmt.Errorf("has %d bytes, at most %d can be indexed", len(s), maxBytes)
	case strings.ContainsRune(s, 0):
		return errors.New("has a NUL byte, which text can't hold")
	case !utf8.ValidString(s):
		return errors.New("is not valid UTF-8, which text must be")
	}
	return nil
}

func (textLedger) table() string { return "processed_messages" }

func (textLedger) prepare(context.Context, *pgxpool.Pool, []string) error { return nil }

func (textLedger) insert() string {
	return `
INSERT INTO processed_messages (handler, event_id)
SELECT $1, event_id FROM unnest($2::text[]) AS event_id`
}

func (l textLedger) insertMissing() string {
	return l.insert() + `
ON CONFLICT (event_id, handler) DO NOTHING
RETURNING event_id`
}

func (textLedger) remove() string {
	return `DELETE FROM processed_messages WHERE handler = $1 AND event_id = ANY ($2::text[])`
}

// purge finds its place without an index (PostgreSQL 14: a TID range scan).
func (textLedger) purge() string {
	return `
DELETE FROM processed_messages WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM processed_messages
	WHERE ctid >= $1 AND ctid < $2 AND seen_at < $3 AND handler = ANY ($4::text[])
	LIMIT $5
	FOR UPDATE SKIP LOCKED
))`
}

func (textLedger) columns() []string { return []string{"handler", "event_id"} }

func (textLedger) row(handler, key string) []any { return []any{handler, key} }

func (textLedger) encode(keys []string) any { return keys }

func (textLedger) collect(rows pgx.Rows) ([]string, error) {
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
