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

// meter measures from the first batch in hand until b.N events are committed. Events are
// committed in the order in which they arrived; several batches may be under way, and the
// latency of each is that of its first event.
type meter struct {
	b       *testing.B
	mu      sync.Mutex
	latency *hdrhistogram.Histogram // microseconds
	inHand  []arrival               // the oldest first
	left    int
	done    chan struct{}
}

// arrival is of so many events at a time.
type arrival struct {
	at     time.Time
	events int
}

func newMeter(b *testing.B) *meter {
	return &meter{
		b:       b,
		latency: hdrhistogram.New(1, time.Minute.Microseconds(), 3),
		left:    b.N,
		done:    make(chan struct{}),
	}
}

func (m *meter) arrived(events int) {
	m.began()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inHand = append(m.inHand, arrival{time.Now(), events})
}

// began starts the clock, the first time.
func (m *meter) began() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.left == m.b.N && len(m.inHand) == 0 {
		m.b.ReportAllocs()
		m.b.ResetTimer()
	}
}

func (m *meter) committed(events int) {
	m.mu.Lock()
	took, left := time.Since(m.inHand[0].at), events
	for left > 0 {
		n := min(left, m.inHand[0].events)
		left -= n
		if m.inHand[0].events -= n; m.inHand[0].events == 0 {
			m.inHand = m.inHand[1:]
		}
	}
	m.mu.Unlock()
	m.ended(took, events)
}

// ended counts so many events that took so long.
func (m *meter) ended(took time.Duration, events int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_ = m.latency.RecordValue(max(1, took.Microseconds()))
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
