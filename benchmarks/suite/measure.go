package suite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/delivered-twice/delivered-twice/benchmarks/contest"
	"github.com/delivered-twice/delivered-twice/benchmarks/results"
)

// Measure runs a contender and returns the line for it, without part, case and round.
// ordered says that it promises the order of the events of a key; where it does not,
// those that are reordered are told, and its claim holds.
//
// Where there are too few events for somebody so fast, it is measured with more: the
// line says with how many.
//
// The error is that nothing could be measured. What the contender lost or duplicated is
// none: it is in the line.
func Measure(ctx context.Context, o contest.Options, s Sizes, ordered bool) (results.Run, error) {
	s.Instances = cmp.Or(s.Instances, 1)
	o.Instances = s.Instances
	f, err := contest.Run(ctx, o)
	for tries := 1; errors.Is(err, contest.ErrTooFew) && tries < mostTries; tries++ {
		o.Events, o.RequestEvents = 4*o.Events, 4*o.RequestEvents
		f, err = contest.Run(ctx, o)
	}
	r := results.Run{
		Contender: o.Contender.Name,
		Batch:     s.Batch,
		InFlight:  s.InFlight,
		Instances: s.Instances,
		Rate:      o.Rate,
		Events:    o.Events,
	}
	if err != nil {
		return r, err
	}
	r.Settings = strings.Join(f.Settings, "; ")
	r.EventsPerSecond = rounded(f.EventsPerSecond)
	r.RequestsPerRecord = rounded(f.RequestsPerRecord)
	r.WALBytesPerRecord = rounded(f.WALBytesPerRecord)
	r.CPUSecondsPerMillion = rounded(f.CPUSecondsPerMillion)
	r.MaxRSSBytes = f.MaxRSSBytes
	if f.Latency != nil {
		r.P50, r.P99, r.Max = milliseconds(f.Latency.ValueAtPercentile(50)), milliseconds(f.Latency.ValueAtPercentile(99)), milliseconds(f.Latency.Max())
	}
	r.Audit = audited(f.Audit, ordered)
	return r, nil
}

// mostTries bounds how often a contender gets more events.
const mostTries = 6

func audited(a contest.Audit, ordered bool) string {
	switch {
	case a.Clean():
		return results.Passed
	case !ordered && a.Once == a.Expected && a.Unexpected == 0:
		return fmt.Sprintf("%s, %d reordered", results.Passed, a.Reordered)
	default:
		return a.String()
	}
}

// rounded to four digits: no figure here is more exact.
func rounded(v float64) float64 {
	if v == 0 {
		return 0
	}
	scale := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}

func milliseconds(microseconds int64) float64 { return rounded(float64(microseconds) / 1000) }
