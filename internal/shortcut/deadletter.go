package shortcut

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/delivered-twice/delivered-twice/internal/pginbox"
)

// insertDeadLetter writes to the table of [pginbox.Migrate].
const insertDeadLetter = `
INSERT INTO dead_letters (handler, event_id, topic, partition, record_offset,
	record_key, record_value, header_names, header_values, error, attempts)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`

// maxErrorBytes bounds the error text of a dead letter.
const maxErrorBytes = 8 << 10

// bury stores an event as a dead letter. An event that comes again makes another one,
// where the guard lets it through.
func (d *delivery) bury(ctx context.Context, tx pgx.Tx, handler string, e pginbox.Event, cause error, attempts int) error {
	r := e.Record
	names, values := make([][]byte, len(r.Headers)), make([][]byte, len(r.Headers))
	for i, h := range r.Headers {
		names[i], values[i] = []byte(h.Key), h.Value
	}
	_, err := tx.Exec(ctx, insertDeadLetter, handler, []byte(e.ID), printable(r.Topic), r.Partition, r.Offset,
		r.Key, r.Value, names, values, printable(cause.Error()), attempts)
	if err != nil {
		return statementError("store a dead letter", err)
	}
	d.log.Error("an event becomes a dead letter", "handler", handler, "event", e.ID, "attempts", attempts, "cause", cause,
		"topic", r.Topic, "partition", r.Partition, "offset", r.Offset)
	return nil
}

// printable returns s as a text that Postgres can hold and a person can read.
func printable(s string) string {
	if len(s) > maxErrorBytes {
		s = s[:maxErrorBytes] + " …"
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
