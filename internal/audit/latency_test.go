package audit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/audit"
)

func TestLatencies(t *testing.T) {
	start := time.Date(2026, time.January, 5, 14, 0, 0, 0, time.UTC)
	after := func(ms float64) time.Time { return start.Add(time.Duration(ms * float64(time.Millisecond))) }
	created := map[string]time.Time{"a": start, "b": start, "c": start}

	for _, c := range []struct {
		name    string
		effects []audit.Effect
		want    *audit.Latency
	}{
		{"no effects", nil, nil},
		{"no times", []audit.Effect{{EventID: "a", Where: "t"}}, nil},
		{"one", []audit.Effect{{EventID: "a", Where: "t", At: after(12.3)}}, &audit.Latency{P50: 12.3, P99: 12.3, Max: 12.3}},
		{"a later copy makes nobody wait", []audit.Effect{
			{EventID: "a", Where: "t", At: after(900)}, {EventID: "a", Where: "t", At: after(10)},
		}, &audit.Latency{P50: 10, P99: 10, Max: 10}},
		{"each place counts", []audit.Effect{
			{EventID: "a", Where: "t", At: after(10)}, {EventID: "a", Where: "u", At: after(20)}, {EventID: "b", Where: "t", At: after(5)},
		}, &audit.Latency{P50: 10, P99: 20, Max: 20}},
		{"aborted, unsent and impossible", []audit.Effect{
			{EventID: "a", Where: "t", At: after(1), Aborted: true}, {EventID: "stranger", Where: "t", At: after(7)},
			{EventID: "b", Where: "t", At: after(-3)},
		}, &audit.Latency{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, audit.Latencies(created, c.effects))
		})
	}
}

// The commit of a transaction is when its records can be seen, not when they were
// produced.
func TestLatencyInATopicIsToTheCommit(t *testing.T) {
	const open = 50 * time.Millisecond
	input, output := newTopic(t, 1), newTopic(t, 1)
	start := time.Now()
	input.produce(0, "a")
	output.begin(0, "a")
	begun := time.Now()
	for time.Since(begun) < open { // the transaction is open for that long
		output.produce(0, "other")
	}
	output.end(commit)
	input.produce(0, "a") // sent a second time: the first counts

	created, err := audit.Created(t.Context(), input.name, seeds(t)...)
	require.NoError(t, err)
	require.Len(t, created, 1)
	latency := audit.Latencies(created, output.audit(sent("a", "other")).Effects)
	require.GreaterOrEqual(t, latency.Max, float64(open.Milliseconds()))
	require.Less(t, latency.Max, longest(start), "longer than all of this took")
}

// longest is a latency in milliseconds that nothing begun at start can have, with a
// second for clocks that differ.
func longest(start time.Time) float64 {
	return float64((time.Since(start) + time.Second).Milliseconds())
}
