package benchmarks_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/delivered-twice/delivered-twice/benchmarks/contest"
	"github.com/delivered-twice/delivered-twice/benchmarks/results"
	"github.com/delivered-twice/delivered-twice/benchmarks/suite"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

// all is go test -bench . ./benchmarks -all
var all = flag.Bool("all", false, "measure every lane at every size; the default is a choice that takes a few minutes")

// shown are the sizes that are measured without -all.
var shown = map[string][]suite.Sizes{
	"kalo":    {{Batch: 10, InFlight: 1}, {Batch: 1_000, InFlight: 1}, {Batch: 10_000, InFlight: 1}},
	"keos":    {{Batch: 10, InFlight: 1}, {Batch: 10, InFlight: 2}, {Batch: 10, InFlight: 4}, {Batch: 1_000, InFlight: 1}, {Batch: 1_000, InFlight: 4}, {Batch: 10_000, InFlight: 1}, {Batch: 10_000, InFlight: 4}},
	"none":    {{Batch: 1, InFlight: 1}, {Batch: 1_000, InFlight: 1}},
	"inbox":   {{Batch: 1, InFlight: 1}, {Batch: 1_000, InFlight: 1}, {Batch: 1_000, InFlight: 1, Instances: 2}},
	"offsets": {{Batch: 1_000, InFlight: 1}},
	"gated":   {{Batch: 1, InFlight: 1}},
}

// BenchmarkLane: a lane's own program, as child processes, on a topic that was filled
// beforehand, at full speed. The figures are measured from the outside by package
// contest, whose WarmUp, the first fifth of the events, is in none of them:
//
//   - events/s and ns/op, and cpu-s/Mevents of the lane's processes
//   - requests/op to Kafka, counted in a pass of its own, of fewer events
//   - WAL-B/op that Postgres wrote
//   - rss-MB of the largest process
//
// One operation is one event. There is no latency here: it would say how long events
// were in the topic. What was lost or duplicated fails the benchmark.
func BenchmarkLane(b *testing.B) {
	printEnvironment(b)
	for _, p := range suite.Grid(os.Getenv("REDIS_URL") != "") {
		one := p.Sizes
		if one.Instances == 1 {
			one.Instances = 0
		}
		if !*all && !slices.Contains(shown[p.Lane.Short], one) {
			continue
		}
		b.Run(p.Name(), func(b *testing.B) {
			measure(b, p.Lane, p.Sizes, 0, p.Events())
		})
	}
}

// BenchmarkRate: the same while events are created at a fixed rate, whether or not the
// lane keeps up. p50-ms, p99-ms and max-ms are from the moment at which an event was due
// until a read_committed reader had its record, or Postgres had committed its row. The
// first fifth of the events is left out.
func BenchmarkRate(b *testing.B) {
	printEnvironment(b)
	rates := []int{1_000, 10_000}
	if *all {
		rates = append(rates, 50_000)
	}
	for _, short := range []string{"kalo", "keos", "none", "inbox", "gated"} {
		l := byShort(b, short)
		for _, rate := range rates {
			for _, inFlight := range []int{1, 2, 4} {
				if inFlight > 1 && !suite.Pipelined(l) || inFlight == 2 && !*all {
					continue
				}
				b.Run(fmt.Sprintf("lane=%s/rate=%d/in-flight=%d", short, rate, inFlight), func(b *testing.B) {
					measure(b, l, suite.Sizes{InFlight: inFlight}, rate, suite.EventsAt(rate, 2*time.Second), suite.Latency(l)...)
				})
			}
		}
	}
}

func byShort(b *testing.B, short string) lane.Lane {
	b.Helper()
	for _, l := range lane.All() {
		if l.Short == short {
			return l
		}
	}
	b.Fatalf("there is no lane %q", short)
	return lane.Lane{}
}

// fewest is how many events can usually be measured, at least: so many batches, or so long
// at the rate, that their effects are seen at more than one moment.
func fewest(s suite.Sizes, rate int) int { return max(200, 30*s.Batch, rate/5) }

// measure measures a lane with so many events, or with as many as -benchtime=…x says
// where that is enough; then no requests are counted, which takes a pass of its own. It
// reports what was measured from the outside; the clock of the testing package, which has
// start and audit in it, only tells that once is enough.
func measure(b *testing.B, l lane.Lane, s suite.Sizes, rate, events int, args ...string) {
	b.Helper()
	tried := strings.HasSuffix(flag.Lookup("test.benchtime").Value.String(), "x")
	if tried {
		events = max(b.N, fewest(s, rate))
	}
	o := contest.Options{
		Brokers:   sandboxtest.Brokers(b),
		Contender: suite.Contender(l, s, args...),
		Events:    events,
		Rate:      rate,
	}
	if rate == 0 && !tried {
		o.RequestEvents = max(events/10, fewest(s, rate))
	}
	if o.Contender.Table != "" {
		o.DatabaseURL = sandboxtest.Database(b)
	}
	r, err := suite.Measure(b.Context(), o, s, l.Writes(lane.Order))
	if err != nil {
		b.Fatal(err)
	}
	if !strings.HasPrefix(r.Audit, results.Passed) {
		b.Fatalf("the figures count for nothing: %s", r.Audit)
	}
	b.ReportMetric(1e9/r.EventsPerSecond, "ns/op")
	for _, metric := range []struct {
		value float64
		unit  string
	}{
		{r.EventsPerSecond, "events/s"},
		{r.P50, "p50-ms"},
		{r.P99, "p99-ms"},
		{r.Max, "max-ms"},
		{r.RequestsPerRecord, "requests/op"},
		{r.WALBytesPerRecord, "WAL-B/op"},
		{r.CPUSecondsPerMillion, "cpu-s/Mevents"},
		{float64(r.MaxRSSBytes) / 1e6, "rss-MB"},
	} {
		if metric.value > 0 { // else it was not measured
			b.ReportMetric(metric.value, metric.unit)
		}
	}
}
