package benchmarks_test

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/benchmarks/suite"
	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	suite.Init() // first: the flags of a child are its own
	flag.Parse()
	if !*all {
		batches = []int{10, 1_000}
	}
	sandboxtest.Main(m)
}

const partitions = 4

// batches are how many events are committed together; without -all it is only some of them.
var batches = suite.Batches()

var once sync.Once

// printEnvironment prints what the figures were measured on, once, in the form that
// benchstat reads (key: value).
func printEnvironment(b *testing.B) {
	once.Do(func() {
		kafka, postgres := sandboxtest.Versions(b)
		fmt.Printf("kafka: %s\npostgres: %s\n", kafka, postgres)
	})
}

// filled returns a topic with n OrderPaid events.
func filled(b *testing.B, n int) string {
	b.Helper()
	topic := sandboxtest.Topic(b, partitions)
	client := sandboxtest.Client(b)
	for e := range order.Stream(order.StreamOptions{Events: n, Seed: 1}) {
		client.Produce(b.Context(), e.Record(topic), func(_ *kgo.Record, err error) {
			if err != nil {
				b.Error(err)
			}
		})
	}
	if err := client.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
	return topic
}

// meter measures from the first batch in hand until b.N events are committed. It is
// for one goroutine, the engine's.
type meter struct {
	b       *testing.B
	latency *hdrhistogram.Histogram // microseconds
	batch   time.Time               // when the batch in hand arrived
	left    int
	done    chan struct{}
}

func newMeter(b *testing.B) *meter {
	return &meter{
		b:       b,
		latency: hdrhistogram.New(1, time.Minute.Microseconds(), 3),
		left:    b.N,
		done:    make(chan struct{}),
	}
}

func (m *meter) arrived() {
	if !m.batch.IsZero() {
		return // more for the batch in hand
	}
	if m.left == m.b.N {
		m.b.ReportAllocs()
		m.b.ResetTimer()
	}
	m.batch = time.Now()
}

func (m *meter) committed(events int) {
	_ = m.latency.RecordValue(max(1, time.Since(m.batch).Microseconds()))
	m.batch = time.Time{}
	if m.left -= events; m.left == 0 {
		m.b.StopTimer()
		close(m.done)
	}
}

// run runs an engine until everything is committed.
func (m *meter) run(engine func(context.Context) error) {
	m.b.Helper()
	ctx, stop := context.WithCancel(m.b.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- engine(ctx) }()
	select {
	case <-m.done:
		stop()
		if err := <-ended; err != nil {
			m.b.Fatal(err)
		}
	case err := <-ended:
		m.b.Fatalf("the engine ended with %d events left: %v", m.left, err)
	}
	m.b.ReportMetric(float64(m.b.N)/m.b.Elapsed().Seconds(), "events/s")
	m.b.ReportMetric(float64(m.latency.ValueAtPercentile(50))/1000, "p50-ms")
	m.b.ReportMetric(float64(m.latency.ValueAtPercentile(99))/1000, "p99-ms")
}
