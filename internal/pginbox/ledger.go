package pginbox

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Keys is how event ids are kept in the inbox. Changing it for an inbox in use
// forgets what was done.
type Keys string

const (
	// TextKeys keeps ids as received, in the table processed_messages, where they
	// can be read and searched. Ids with a NUL byte, with invalid UTF-8 or longer
	// than [MaxIDBytes] become dead letters.
	TextKeys Keys = "text"

	// HashKeys keeps the first 16 bytes of the SHA-256 of an id, in the table
	// processed_keys: shorter rows and a smaller index, and any bytes of any length
	// are an id.
	//
	// Two ids with the same key would be taken for one event. Among n ids that
	// happens with a probability below n²/2¹²⁹: for 10¹² ids, about 10⁻¹⁵.
	HashKeys Keys = "hash"
)

// ledger is one of the tables that say which handler has done which events.
type ledger interface {
	// key returns what stands for an id in the table. An error says why the id
	// itself can't be stored; the key then stands for its SHA-256.
	key(id string) (string, error)

	// table is its name.
	table() string

	// prepare makes the table ready for rows of the handlers.
	prepare(ctx context.Context, pool *pgxpool.Pool, handlers []string) error

	// insert is the statement that inserts rows of $1 (a handler) with the keys $2,
	// which are given in ascending order. It fails where one is there (23505).
	insert() string
	// insertMissing is the same, but leaves out what is there and returns the keys
	// of the others.
	insertMissing() string
	// remove is the statement that takes such rows back.
	remove() string
	// purge is the statement that removes rows between the places $1 and $2 of the
	// table, from before the instant $3, of the handlers $4 and at most $5.
	purge() string

	// columns are what row returns a value for: a row to be copied into the table. It
	// fails where it is there (23505).
	columns() []string
	row(handler, key string) []any

	// encode returns keys as the argument $2 of those that insert or remove.
	encode(keys []string) any
	// collect reads the keys that insertMissing returned.
	collect(rows pgx.Rows) ([]string, error)
}

func (k Keys) ledger() (ledger, bool) {
	switch k {
	case TextKeys:
		return textLedger{}, true
	case HashKeys:
		return &hashLedger{}, true
	}
	return nil, false
}
