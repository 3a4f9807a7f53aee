package shortcut

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/delivered-twice/delivered-twice/internal/pginbox"
)

// SelectFirst asks Postgres which ids are there, works on the others and inserts
// their ids, all in one transaction: check, then act.
//
// It holds against every death, because id and work are committed together, and
// against a COMMIT whose answer was lost, because whoever asks afterwards finds the
// id. It stops where two consumers have the same event at the same moment (a zombie
// and its successor, a publisher's duplicate in another partition): a SELECT neither
// sees nor waits for what is not committed, so both find nothing and both do the work
// (PostgreSQL manual, "Read Committed Isolation Level"). Here the table has no unique
// constraint that would stop the second one; with one, and an INSERT that comes
// before the work, it would be the inbox.
const SelectFirst Guard = "select-first"

// Selected: the ids that are in the table have been left out, in the transaction. The
// passage has the other events. A death here costs nothing; a pause lets another
// consumer do the same work.
const Selected pginbox.Step = "selected"

const createSelectedIDs = `
SELECT pg_advisory_xact_lock(hashtextextended('selected_ids ' || current_schema(), 0));
CREATE TABLE IF NOT EXISTS selected_ids (
	event_id bytea       NOT NULL, -- as received: an id may be any bytes
	seen_at  timestamptz NOT NULL DEFAULT now()
);
-- hash: a btree entry takes at most 2,704 bytes
CREATE INDEX IF NOT EXISTS selected_ids_event_id ON selected_ids USING hash (event_id)`

// Migrate creates the table of [SelectFirst], if it is missing, where pool connects
// to. The other guards need none of their own; all need those of [pginbox.Migrate],
// for dead letters.
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	// Without arguments, several statements are one round trip and one transaction,
	// and only one process at a time creates.
	if _, err := pool.Exec(ctx, createSelectedIDs); err != nil {
		return fmt.Errorf("shortcut: create the table selected_ids: %w", err)
	}
	return nil
}

type selectFirst struct{ unguarded }

const (
	selectIDs = `SELECT event_id FROM selected_ids WHERE event_id = ANY ($1)`
	insertIDs = `INSERT INTO selected_ids (event_id) SELECT unnest($1::bytea[])`
)

func (selectFirst) inside(ctx context.Context, tx pgx.Tx, d *delivery) ([]pginbox.Event, error) {
	rows, err := tx.Query(ctx, selectIDs, idsOf(d.events))
	if err != nil {
		return nil, statementError("select event ids", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		return nil, statementError("select event ids", err)
	}
	there := make(map[string]bool, len(found))
	for _, id := range found {
		there[string(id)] = true
	}
	absent := firsts(d.events, func(id string) bool { return there[id] })
	if err := d.pass(ctx, Selected, "", absent); err != nil || len(absent) == 0 {
		return nil, err
	}
	_, err = tx.Exec(ctx, insertIDs, idsOf(absent))
	return absent, statementError("insert event ids", err)
}

func idsOf(events []pginbox.Event) [][]byte {
	ids := make([][]byte, len(events))
	for i, e := range events {
		ids[i] = []byte(e.ID)
	}
	return ids
}
