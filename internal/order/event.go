// Package order is the running example: an OrderPaid event, how it is
// identified, how it is written to Kafka, where test events come from, and what
// each handler would do about one. It knows nothing of how events are delivered.
package order

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// HeaderEventID names the record header that carries the event's stable id.
	HeaderEventID = "event-id"
	// HeaderAttempt names the record header that carries the process
	// incarnation which wrote the record, so that an effect can be traced to
	// the attempt that made it.
	HeaderAttempt = "attempt"
)

// Event says that a payment for an order has arrived. An order may be paid in
// several instalments; each is an event of its own and releases one box.
type Event struct {
	// ID is the event's stable identity: a redelivery carries the same one.
	ID string `json:"id"`
	// OrderID is the record key: events of one order keep their order.
	OrderID string `json:"order_id"`
	// Customer is who earns the loyalty points.
	Customer string `json:"customer"`
	// AmountMinor is the instalment in minor units (cents) of Currency.
	AmountMinor int64 `json:"amount_minor"`
	// Currency is an ISO 4217 code.
	Currency string `json:"currency"`
	// Sequence counts the events of one order: 1, 2, 3 …
	Sequence int64 `json:"sequence"`
	// OccurredAt is when the payment arrived, in the publisher's time.
	OccurredAt time.Time `json:"occurred_at"`
}

// ErrMalformed is wrapped by every error of [Decode]: the bytes are no OrderPaid
// event and never will be, so retrying cannot help.
var ErrMalformed = errors.New("malformed OrderPaid event")

// Encode returns the event as JSON. The same event gives the same bytes.
func (e Event) Encode() []byte {
	b, err := json.Marshal(e)
	if err != nil {
		// Only a year outside 0..9999 can get here; no such event can be made
		// by Decode or by a Generator.
		panic(fmt.Sprintf("order: encode event %q: %v", e.ID, err))
	}
	return b
}

// Decode reads what [Event.Encode] wrote. An empty value (a Kafka tombstone),
// anything that is not a JSON object in UTF-8, and an event without order id, customer or
// a positive sequence are refused with an error that wraps [ErrMalformed].
//
// The id inside the body may be empty: identity is [ID]'s to decide.
func Decode(b []byte) (Event, error) {
	if len(b) == 0 {
		return Event{}, fmt.Errorf("%w: the value is empty (a tombstone)", ErrMalformed)
	}
	if !utf8.Valid(b) {
		// encoding/json would put U+FFFD in the place of what it can't read.
		return Event{}, fmt.Errorf("%w: not valid UTF-8", ErrMalformed)
	}
	e, ok := decodeOwn(b)
	if !ok {
		if err := json.Unmarshal(b, &e); err != nil {
			return Event{}, fmt.Errorf("%w: %w", ErrMalformed, err)
		}
	}
	switch {
	case e.OrderID == "":
		return Event{}, fmt.Errorf("%w: order_id is missing", ErrMalformed)
	case e.Customer == "":
		return Event{}, fmt.Errorf("%w: customer is missing", ErrMalformed)
	case e.Sequence < 1:
		return Event{}, fmt.Errorf("%w: sequence is %d, must be at least 1", ErrMalformed, e.Sequence)
	}
	return e, nil
}

// Record returns the event as a record of topic, keyed by order id and
// identified by the [HeaderEventID] header.
func (e Event) Record(topic string) *kgo.Record {
	return &kgo.Record{
		Topic:   topic,
		Key:     []byte(e.OrderID),
		Value:   e.Encode(),
		Headers: []kgo.RecordHeader{{Key: HeaderEventID, Value: []byte(e.ID)}},
	}
}

// ID returns the stable identity of a delivered record: the [HeaderEventID]
// header as received or, where there is none or it is empty, "sha256:" and the
// hexadecimal SHA-256 of the value's bytes as received. The value is never
// decoded and encoded again first: a copy with its JSON keys in another order
// would hash to another identity.
//
// Without a header, two events that happen to have equal bytes are one.
func ID(r *kgo.Record) string {
	if id := Header(r, HeaderEventID); id != "" {
		return id
	}
	sum := sha256.Sum256(r.Value)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Header returns the value of the first header of that name, or "".
func Header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}
