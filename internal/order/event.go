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
	"strings"
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
		// Only a time that RFC 3339 cannot write can get here: a year outside
		// 0..9999, or a zone of 24 hours or more. Decode lets none through, and
		// Stream makes none.
		panic(fmt.Sprintf("order: encode event %q: %v", e.ID, err))
	}
	return b
}

// Decode reads what [Event.Encode] wrote. An empty value (a Kafka tombstone),
// anything that is not a JSON object in UTF-8, an event without order id, customer or
// a positive sequence, and one at a time that cannot be written again are refused with
// an error that wraps [ErrMalformed] and names the cause. So is an order id or a customer
// with U+FFFD: several that could not be read would be taken for one.
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
		var err error
		if e, err = decodeAny(b); err != nil {
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
	// encoding/json also puts it in the place of half a surrogate pair, such as \ud800.
	case strings.ContainsRune(e.OrderID, utf8.RuneError):
		return Event{}, fmt.Errorf("%w: order_id %q has U+FFFD, which stands for what could not be read", ErrMalformed, e.OrderID)
	case strings.ContainsRune(e.Customer, utf8.RuneError):
		return Event{}, fmt.Errorf("%w: customer %q has U+FFFD, which stands for what could not be read", ErrMalformed, e.Customer)
	}
	// Go reads a zone of 24 hours, and does not write it.
	if _, offset := e.OccurredAt.Zone(); offset <= -secondsPerDay || offset >= secondsPerDay {
		return Event{}, fmt.Errorf("%w: occurred_at is in a zone %d hours from UTC, must be less than 24", ErrMalformed, offset/3600)
	}
	return e, nil
}

// decodeAny has an event of its own, because what is given to encoding/json is allocated,
// and [Decode]'s need not be.
func decodeAny(b []byte) (e Event, err error) {
	err = json.Unmarshal(b, &e)
	return e, err
}

const secondsPerDay = 24 * 60 * 60

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
