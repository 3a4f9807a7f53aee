package audit

import (
	"context"
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/order"
)

// Latency is how long events took from their creation to the commit of their
// effects, in milliseconds, rounded to a tenth.
type Latency struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Created reads from the input topic when each event was sent for the first time,
// by the timestamps of its records (milliseconds).
func Created(ctx context.Context, topic string, opts ...kgo.Opt) (map[string]time.Time, error) {
	ends, err := settle(ctx, topic, opts)
	if err != nil {
		return nil, err
	}
	created := make(map[string]time.Time)
	err = read(ctx, topic, ends, kgo.ReadCommitted(), opts, func(r *kgo.Record) {
		if r.Attrs.IsControl() {
			return
		}
		id := order.ID(r)
		if at, seen := created[id]; !seen || r.Timestamp.Before(at) {
			created[id] = r.Timestamp
		}
	})
	if err != nil {
		return nil, err
	}
	return created, nil
}

// Latencies measures from an event's creation to the moment at which each of its
// effects could first be seen: one measurement for every event and place, since
// what a repeated attempt adds later makes nobody wait. Aborted effects and those
// whose time is not known are left out; where nothing is left the result is nil.
//
// Created and committed are told by the clocks of whoever produced and of the
// service that committed: on two machines the difference of the clocks is in it.
func Latencies(created map[string]time.Time, effects []Effect) *Latency {
	type place struct{ eventID, where string }
	first := make(map[place]time.Time)
	for _, e := range effects {
		if e.Aborted || e.At.IsZero() {
			continue
		}
		p := place{e.EventID, e.Where}
		if at, seen := first[p]; !seen || e.At.Before(at) {
			first[p] = e.At
		}
	}
	// Microseconds, up to an hour, to three digits.
	const longest = int64(time.Hour / time.Microsecond)
	histogram := hdrhistogram.New(1, longest, 3)
	for p, at := range first {
		from, known := created[p.eventID]
		if !known {
			continue
		}
		took := at.Sub(from).Microseconds()
		// Within the bounds that were just given, recording cannot fail.
		_ = histogram.RecordValue(min(max(took, 0), longest))
	}
	if histogram.TotalCount() == 0 {
		return nil
	}
	return &Latency{
		P50: milliseconds(histogram.ValueAtPercentile(50)),
		P99: milliseconds(histogram.ValueAtPercentile(99)),
		Max: milliseconds(histogram.Max()),
	}
}

func milliseconds(microseconds int64) float64 {
	return math.Round(float64(microseconds)/100) / 10
}
