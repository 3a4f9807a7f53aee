package order

import (
	"cmp"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"time"
)

// StreamOptions shape a stream of events.
type StreamOptions struct {
	// Events is how many distinct events there are.
	Events int
	// Seed: the same options give the same events, byte for byte, in the same
	// order.
	Seed uint64
	// PublisherDuplicates is the share (0 to 1) of events that the publisher
	// sends a second time, a little later and so at another offset: what an
	// outbox relay does that died between publishing and stamping.
	PublisherDuplicates float64
}

// Stream returns the events in the order in which the publisher sends them. The
// second value says that an event is sent for the second time; its bytes are
// those of the first. Second sends come on top of o.Events.
func Stream(o StreamOptions) iter.Seq2[Event, bool] {
	return func(yield func(Event, bool) bool) {
		g := generator{
			random:    rand.New(rand.NewPCG(o.Seed, 0)),
			sequences: make(map[string]int64),
			clock:     epoch,
		}
		var again []repeat // second sends to come, the earliest first
		for sent := range o.Events {
			for len(again) > 0 && again[0].after <= sent {
				if !yield(again[0].event, true) {
					return
				}
				again = again[1:]
			}
			e := g.next()
			if o.PublisherDuplicates > 0 && g.random.Float64() < o.PublisherDuplicates {
				again = append(again, repeat{event: e, after: sent + 1 + g.random.IntN(repeatDistance)})
				slices.SortStableFunc(again, func(a, b repeat) int { return cmp.Compare(a.after, b.after) })
			}
			if !yield(e, false) {
				return
			}
		}
		for _, r := range again {
			if !yield(r.event, true) {
				return
			}
		}
	}
}

// repeat is an event that is sent once more, when `after` distinct events have
// been sent.
type repeat struct {
	event Event
	after int
}

// generator makes distinct events.
type generator struct {
	random    *rand.Rand
	sequences map[string]int64 // events so far, by open order
	open      []string         // orders that may still get another instalment
	orders    int
	clock     time.Time
}

const (
	openOrders     = 200 // orders being paid at one time
	instalments    = 5   // at most, for one order
	customers      = 500
	repeatDistance = 50 // a publisher's duplicate comes at most this many sends later
)

// epoch is where every generated stream starts: wall-clock time would make the
// same seed give other bytes.
var epoch = time.Date(2026, time.January, 5, 14, 2, 11, 0, time.UTC)

func (g *generator) next() Event {
	if len(g.open) < openOrders {
		g.orders++
		g.open = append(g.open, fmt.Sprintf("ord_%06d", g.orders))
	}
	at := g.random.IntN(len(g.open))
	orderID := g.open[at]
	g.sequences[orderID]++
	sequence := g.sequences[orderID]
	if sequence == instalments || g.random.IntN(instalments) == 0 {
		g.open[at] = g.open[len(g.open)-1]
		g.open = g.open[:len(g.open)-1]
		delete(g.sequences, orderID)
	}
	g.clock = g.clock.Add(time.Duration(g.random.IntN(2_000)) * time.Millisecond)
	return Event{
		ID:          fmt.Sprintf("evt_%016x", g.random.Uint64()),
		OrderID:     orderID,
		Customer:    fmt.Sprintf("cus_%03d", g.random.IntN(customers)),
		AmountMinor: 100 + g.random.Int64N(50_000),
		Currency:    "EUR",
		Sequence:    sequence,
		OccurredAt:  g.clock,
	}
}
