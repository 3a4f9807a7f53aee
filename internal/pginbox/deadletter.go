package pginbox

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
)

// maxErrorBytes bounds the error text of a dead letter.
const maxErrorBytes = 8 << 10

const insertDeadLetter = `
INSERT INTO dead_letters (handler, event_id, topic, partition, record_offset,
	record_key, record_value, header_names, header_values, error, attempts)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`

// bury stores an event as a dead letter, in the transaction that has its inbox row:
// so there is one letter, however often the event comes.
func (d *delivery) bury(ctx context.Context, tx pgx.Tx, it item, v verdict) error {
	r := it.Record
	names, values := make([][]byte, len(r.Headers)), make([][]byte, len(r.Headers))
	for i, h := range r.Headers {
		names[i], values[i] = []byte(h.Key), h.Value
	}
	_, err := tx.Exec(ctx, insertDeadLetter, d.handler.Name, []byte(it.ID), printable(r.Topic), r.Partition, r.Offset,
		r.Key, r.Value, names, values, printable(v.cause.Error()), v.attempts)
	return statementError("store a dead letter", err)
}

// printable returns s as a text that Postgres can hold and a person can read.
func printable(s string) string {
	if len(s) > maxErrorBytes {
		s = s[:maxErrorBytes] + " …"
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

func (d *delivery) logDead(it item, v verdict) {
	d.log.Error("an event became a dead letter", "event", it.ID, "attempts", v.attempts, "cause", v.cause,
		"topic", it.Record.Topic, "partition", it.Record.Partition, "offset", it.Record.Offset)
}
