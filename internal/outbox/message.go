package outbox

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Message is one record on its way to Kafka.
type Message struct {
	// ID is the stable identity of the event that the record tells of: rows, logs and
	// hooks name it. Whoever is to recognize a copy needs it too, so it must be in the
	// record, in a header or in the value, where the next consumer looks for it.
	ID string
	// Record is what is published: topic, key, value, headers and, unless it is zero,
	// timestamp, to the microsecond. Kafka's default partitioner chooses the partition,
	// by the key.
	Record *kgo.Record
}

// columns are those that a writer fills in; the rest has defaults.
var columns = []string{"event_id", "topic", "record_key", "record_value", "header_names", "header_values", "record_time"}

// Enqueue writes messages into the outbox, in the transaction of the work that they
// tell of: when it commits they will be published, and when it doesn't they were never
// there. Their rows get ids in the order of the messages.
//
// Transactions that write messages of one key must exclude each other if the order of
// their commits is to be the order in Kafka: see the package comment.
//
// An error leaves the transaction to be rolled back.
func Enqueue(ctx context.Context, tx pgx.Tx, messages ...Message) error {
	if len(messages) == 0 {
		return nil
	}
	rows := make([][]any, len(messages))
	for i, m := range messages {
		if err := m.validate(); err != nil {
			return fmt.Errorf("outbox: enqueue message %q: %w", m.ID, err)
		}
		r := m.Record
		names, values := make([][]byte, len(r.Headers)), make([][]byte, len(r.Headers))
		for j, h := range r.Headers {
			names[j], values[j] = []byte(h.Key), h.Value
		}
		var at *time.Time
		if !r.Timestamp.IsZero() {
			at = &r.Timestamp
		}
		rows[i] = []any{[]byte(m.ID), r.Topic, r.Key, r.Value, names, values, at}
	}
	// COPY, because unnest can't hand a row an array of its own.
	if _, err := tx.CopyFrom(ctx, pgx.Identifier{"outbox"}, columns, pgx.CopyFromRows(rows)); err != nil {
		return fmt.Errorf("outbox: enqueue %d messages: %w", len(messages), err)
	}
	return nil
}

// legalTopic is Kafka's rule for names (org.apache.kafka.common.internals.Topic), and
// that of the table.
var legalTopic = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)

func (m Message) validate() error {
	switch {
	case m.ID == "":
		return errors.New("it has no id")
	case m.Record == nil:
		return errors.New("it has no record")
	case !legalTopic.MatchString(m.Record.Topic) || m.Record.Topic == "." || m.Record.Topic == "..":
		return fmt.Errorf("its topic %q is no name of a topic: 1 to 249 letters, digits, dots, underscores and hyphens", m.Record.Topic)
	}
	return nil
}
