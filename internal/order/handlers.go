package order

import "github.com/twmb/franz-go/pkg/kgo"

// Points are what the loyalty handler awards for one event. Awarding is an
// accumulating write: done twice, it counts twice.
const Points = 50

// StatusPicking is what the warehouse handler sets an order to. Setting it is an
// absolute write: done twice, it leaves the same row.
const StatusPicking = "PICKING"

// Latest returns, for each order, its event with the highest sequence, in the
// order in which the orders first appear: an absolute write of several events
// needs only the last of them.
func Latest(events []Event) []Event {
	at := make(map[string]int, len(events))
	var latest []Event
	for _, e := range events {
		i, seen := at[e.OrderID]
		switch {
		case !seen:
			at[e.OrderID] = len(latest)
			latest = append(latest, e)
		case e.Sequence > latest[i].Sequence:
			latest[i] = e
		}
	}
	return latest
}

// PickRequested is what a pipeline publishes for an event: one box to pick.
type PickRequested struct {
	EventID  string `json:"event_id"`
	OrderID  string `json:"order_id"`
	Sequence int64  `json:"sequence"`
}

// Pick returns the record that asks topic for one box: it carries the event's id
// on, and when the event was created, and which attempt made it.
func Pick(topic string, in *kgo.Record, id string, e Event, attempt string) *kgo.Record {
	return &kgo.Record{
		Topic:     topic,
		Key:       in.Key,
		Value:     PickRequested{EventID: id, OrderID: e.OrderID, Sequence: e.Sequence}.encode(),
		Timestamp: in.Timestamp,
		Headers: []kgo.RecordHeader{
			{Key: HeaderEventID, Value: []byte(id)},
			{Key: HeaderAttempt, Value: []byte(attempt)},
		},
	}
}
