package suite

import (
	"fmt"
	"time"

	"github.com/delivered-twice/delivered-twice/benchmarks/results"
	"github.com/delivered-twice/delivered-twice/internal/pginbox"
)

// Case is one contender of a part, at its settings: a lane of the catalogue, or a peer.
type Case struct {
	// Name is its own in the part.
	Name string
	// Lane is one by its short name; Peer is a peer by its name. One of them is set.
	Lane, Peer string
	Sizes
	// Args are its flags; those of a lane and of its sizes come by themselves.
	Args []string
	// Rate is how many events are due in a second, 0 has all there beforehand.
	Rate   int
	Events int
}

// Part is what can be measured by itself.
type Part struct {
	Name, Says string
	// Once has one round do: there is nothing to be compared.
	Once  bool
	Cases []Case
	Goals []results.Goal
	// Metric is what it is about.
	Metric results.Metric
}

// PlotFile is the name of the plot of a part.
func PlotFile(p Part) string { return p.Name + ".svg" }

// What peers are called.
const (
	peerStreams   = "kafka-streams"
	peerConfluent = "librdkafka"
	peerSarama    = "sarama"
	peerSession   = "group-transact-session"
	peerEngine    = "kafkatx" // this project's, with the peers' work
	peerWatermill = "watermill"
	peerPlain     = "plain-inbox"
)

// ofRate is how long events come at a rate.
const ofRate = 20 * time.Second

// every has a transaction end so long after it began; 0, with what was there by then.
func every(d time.Duration) []string { return []string{"--commit-interval=" + d.String()} }

const usual = 100 * time.Millisecond

// Parts returns the whole set.
func Parts() []Part {
	return []Part{
		smallTransactions(), throughput(), latency(), inbox(), inboxLatency(), asyncCommit(), growth(), peers(), lanes(),
	}
}

func inFlight(n int) string { return fmt.Sprintf("eos, %d in flight", n) }

func smallTransactions() Part {
	p := Part{Name: "small-transactions", Says: "transactions of 10 records", Metric: results.TransactionTime}
	const events = 10_000
	p.Cases = append(p.Cases, Case{Name: peerSession, Peer: peerSession, Sizes: Sizes{Batch: 10}, Args: append(every(0), "--max-records=10"), Events: events})
	for _, n := range []int{1, 2, 4, 8} {
		p.Cases = append(p.Cases, Case{Name: inFlight(n), Lane: "keos", Sizes: Sizes{Batch: 10, InFlight: n}, Events: events})
	}
	p.Goals = []results.Goal{{
		Measure: "small transactions (10 records): time a transaction, pipelined against GroupTransactSession",
		Metric:  results.TransactionTime,
		Of:      []string{inFlight(2), inFlight(4), inFlight(8)}, To: []string{peerSession},
		AtMost: true, Bound: 1. / 8,
	}}
	return p.named()
}

func throughput() Part {
	p := Part{Name: "throughput", Says: "Kafka to Kafka at full speed", Metric: results.EventsPerSecond}
	const events = 1_500_000
	full := func(c Case) string {
		c.Events = events
		p.Cases = append(p.Cases, c)
		return c.Name
	}
	// Of what is measured with its best batch, each has the same batches to choose from. Peers
	// are compared with the engine doing their work, which is less than the pipeline's.
	var plain, eos, same, same10ms []string
	for _, batch := range []int{10_000, 15_000} {
		of := fmt.Sprintf(", %d records", batch)
		plain = append(plain, full(Case{Name: "at-least-once" + of, Lane: "kalo", Sizes: Sizes{Batch: batch}, Args: every(usual)}))
		for _, n := range []int{2, 4} {
			eos = append(eos, full(Case{Name: inFlight(n) + of, Lane: "keos", Sizes: Sizes{Batch: batch, InFlight: n}, Args: every(usual)}))
		}
	}
	for _, n := range []int{2, 4} {
		engine := fmt.Sprintf("%s, %d in flight", peerEngine, n)
		args := []string{fmt.Sprintf("--transactions-in-flight=%d", n)}
		for _, batch := range []int{10_000, 20_000} {
			large := append([]string{fmt.Sprintf("--max-transaction-records=%d", batch)}, args...)
			same = append(same, full(Case{Name: fmt.Sprintf("%s, %d records", engine, batch), Peer: peerEngine, Args: append(every(usual), large...)}))
		}
		same10ms = append(same10ms, full(Case{Name: engine + ", 10 ms", Peer: peerEngine, Args: append(every(10*time.Millisecond), args...)}))
	}
	full(Case{Name: "idempotent", Lane: "kidem", Sizes: Sizes{Batch: 10_000}, Args: every(usual)})
	full(Case{Name: inFlight(1), Lane: "keos", Sizes: Sizes{Batch: 10_000, InFlight: 1}, Args: every(usual)})
	streams := full(Case{Name: peerStreams + ", 100 ms", Peer: peerStreams, Args: every(usual)})
	streams10ms := full(Case{Name: peerStreams + ", 10 ms", Peer: peerStreams, Args: every(10 * time.Millisecond)})
	confluent := full(Case{Name: peerConfluent, Peer: peerConfluent, Args: every(usual)})
	sarama := full(Case{Name: peerSarama, Peer: peerSarama, Args: every(usual)})
	full(Case{Name: peerSession, Peer: peerSession, Sizes: Sizes{Batch: 10_000}, Args: every(usual)})

	goal := func(measure string, of, to []string, bound float64) {
		p.Goals = append(p.Goals, results.Goal{Measure: measure, Metric: results.EventsPerSecond, Of: of, To: to, Bound: bound})
	}
	goal("EOS at full speed, 100 ms interval, against at-least-once of the same engine", eos, plain, 0.97)
	goal("EOS events/s, the engine alone, against Kafka Streams EOS v2, both at 100 ms", same, []string{streams}, 2.5)
	goal("EOS events/s, the engine alone, against Kafka Streams EOS v2, both at 10 ms", same10ms, []string{streams10ms}, 2)
	goal("EOS events/s at 100 ms, the engine alone, against librdkafka", same, []string{confluent}, 3)
	goal("EOS events/s at 100 ms, the engine alone, against sarama", same, []string{sarama}, 4)
	p.Goals = append(p.Goals, memory("memory of eos-pipeline at full speed", eos))
	return p.named()
}

func memory(measure string, of []string) results.Goal {
	return results.Goal{Measure: measure, Metric: results.Memory, Of: of, All: true, AtMost: true, Bound: 150}
}

func at(rate int, name string) string { return fmt.Sprintf("%s, %d/s", name, rate) }

// costRate is the rate at which a table of costs tells latencies.
const costRate = 10_000

func latency() Part {
	p := Part{Name: "latency", Says: "Kafka to Kafka at a fixed rate, from creation to a read_committed reader", Metric: results.P99}
	for _, rate := range []int{1_000, costRate, 50_000} {
		run := func(c Case) string {
			c.Name, c.Rate, c.Events = at(rate, c.Name), rate, EventsAt(rate, ofRate)
			p.Cases = append(p.Cases, c)
			return c.Name
		}
		var one, pipelined, streams []string
		for _, n := range []int{1, 2, 4} {
			eager := run(Case{Name: inFlight(n) + ", eager", Lane: "keos", Sizes: Sizes{InFlight: n}, Args: every(0)})
			soon := run(Case{Name: inFlight(n) + ", 5 ms", Lane: "keos", Sizes: Sizes{InFlight: n}, Args: every(5 * time.Millisecond)})
			if n == 1 {
				one = append(one, eager, soon)
			} else {
				pipelined = append(pipelined, eager, soon)
			}
		}
		for _, ms := range []int{10, 30, 100} {
			streams = append(streams, run(Case{Name: fmt.Sprintf("%s, %d ms", peerStreams, ms), Peer: peerStreams, Args: append(every(time.Duration(ms)*time.Millisecond), "--profile=latency")}))
		}
		if rate == costRate {
			soon := every(5 * time.Millisecond)
			run(Case{Name: "at-least-once", Lane: "kalo", Args: soon})
			run(Case{Name: "idempotent", Lane: "kidem", Args: soon})
			run(Case{Name: peerConfluent, Peer: peerConfluent, Args: append([]string{"--linger=0s"}, soon...)})
			run(Case{Name: peerSarama, Peer: peerSarama, Args: append([]string{"--linger=0s"}, soon...)})
			run(Case{Name: peerSession, Peer: peerSession, Args: soon})
		}
		if rate > costRate {
			continue
		}
		goal := func(measure string, to []string, bound float64) {
			p.Goals = append(p.Goals, results.Goal{Measure: fmt.Sprintf(measure, rate), Metric: results.P99, Of: pipelined, To: to, AtMost: true, Bound: bound})
		}
		goal("EOS p99 end to end at %d events/s, pipelined against one transactional id", one, 0.4)
		goal("EOS p99 end to end at %d events/s, pipelined against the best Kafka Streams setting", streams, 1./3)
	}
	return p.named()
}

const hashKeys = "--event-key=hash"

func inbox() Part {
	p := Part{Name: "inbox", Says: "Kafka to Postgres at full speed", Metric: results.EventsPerSecond}
	full := func(events int, c Case) string {
		c.Events = events
		p.Cases = append(p.Cases, c)
		return c.Name
	}
	const (
		many = 500_000
		few  = 5_000 // one by one
	)
	var none, inbox, two, warehouse []string
	for _, w := range []struct {
		workers int
		says    string
		sizes   Sizes
		args    []string
	}{
		{1, "1 worker", Sizes{Instances: 1}, nil},
		{2, "2 workers", Sizes{Instances: 1}, []string{"--workers=2"}},
		{2, "2 processes", Sizes{Instances: 2}, nil},
	} {
		for _, batch := range []int{1_000, 5_000} {
			w.sizes.Batch = batch
			of := fmt.Sprintf(", %s, %d events", w.says, batch)
			none = append(none, full(many, Case{Name: "none" + of, Lane: "none", Sizes: w.sizes, Args: w.args}))
			hashed := append([]string{hashKeys}, w.args...)
			name := full(many, Case{Name: "inbox" + of, Lane: "inbox", Sizes: w.sizes, Args: hashed})
			inbox = append(inbox, name)
			if w.workers == 2 {
				two = append(two, name)
				warehouse = append(warehouse, full(many, Case{Name: "inbox, warehouse" + of, Lane: "inbox", Sizes: w.sizes, Args: append(hashed, "--handlers=warehouse")}))
			}
		}
	}
	for _, short := range []string{"offsets", "both", "share"} {
		full(many, Case{Name: short, Lane: short, Sizes: Sizes{Batch: 1_000}})
	}
	one := []string{
		full(few, Case{Name: "inbox, 1 worker, 1 event", Lane: "inbox", Sizes: Sizes{Batch: 1}, Args: []string{hashKeys}}),
		full(few, Case{Name: peerPlain, Peer: peerPlain}),
	}
	watermill := full(few, Case{Name: peerWatermill, Peer: peerWatermill})

	goal := func(measure string, of, to []string, bound float64) {
		p.Goals = append(p.Goals, results.Goal{Measure: measure, Metric: results.EventsPerSecond, Of: of, To: to, Bound: bound})
	}
	goal("inbox against the same pipeline with --guard=none, each at its best batch size", inbox, none, 0.65)
	goal("inbox events/s against one event a transaction", inbox, one, 40)
	goal("inbox events/s against Watermill's", inbox, []string{watermill}, 10)
	goal("inbox pipeline end to end, two workers, handler of one insert", two, nil, 100_000)
	goal("inbox pipeline end to end, two workers, full warehouse handler", warehouse, nil, 60_000)
	p.Goals = append(p.Goals, memory("memory of inbox-pipeline at full speed", inbox))
	return p.named()
}

func inboxLatency() Part {
	p := Part{Name: "inbox-latency", Says: "Kafka to Postgres at a fixed rate, from creation to the commit", Metric: results.P99}
	for _, rate := range []int{1_000, costRate} {
		for _, c := range []Case{
			{Name: "none", Lane: "none"},
			{Name: "inbox", Lane: "inbox", Args: []string{hashKeys}},
			{Name: "offsets", Lane: "offsets"},
			{Name: "both", Lane: "both"},
			{Name: "share", Lane: "share"},
			{Name: "gated", Lane: "gated", Args: []string{hashKeys}},
		} {
			c.Name, c.Rate, c.Events = at(rate, c.Name), rate, EventsAt(rate, ofRate)
			p.Cases = append(p.Cases, c)
		}
	}
	return p.named()
}

func asyncCommit() Part {
	p := Part{Name: "async-commit", Says: "one event a transaction, Kafka to Postgres", Metric: results.EventsPerSecond}
	for _, short := range []string{"inbox", "async", "gated"} {
		p.Cases = append(p.Cases, Case{Name: short, Lane: short, Sizes: Sizes{Batch: 1}, Args: []string{hashKeys}, Events: 10_000})
	}
	p.Goals = []results.Goal{{
		Measure: "--async-commit --ack-after-flush against synchronous commit, one event a transaction",
		Metric:  results.EventsPerSecond,
		Of:      []string{"gated"}, To: []string{"inbox"},
		Bound: 4,
	}}
	return p.named()
}

// growth is measured by BenchmarkInboxGrowth, which fills the inbox, and its cases are called
// after that: it has none of its own.
func growth() Part {
	p := Part{Name: "growth", Says: "the inbox with ever more rows in it", Metric: results.EventsPerSecond}
	of := func(keys pginbox.Keys, ids string, rows int) []string {
		return []string{fmt.Sprintf("keys=%s/ids=%s/rows=%d", keys, ids, rows)}
	}
	for _, g := range []struct {
		keys  pginbox.Keys
		ids   string
		says  string
		bound float64
	}{
		{pginbox.TextKeys, "time", "time-ordered ids", 0.9},
		{pginbox.TextKeys, "random", "random ids", 0.6},
		{pginbox.HashKeys, "random", "random ids, hashed", 0.6},
	} {
		p.Goals = append(p.Goals, results.Goal{
			Measure: fmt.Sprintf("inbox throughput at 10⁷ rows against 10⁵, %s", g.says),
			Metric:  results.EventsPerSecond,
			Of:      of(g.keys, g.ids, 10_000_000), To: of(g.keys, g.ids, 100_000),
			Bound: g.bound,
		})
	}
	return p.named()
}

// peers has each do its work once.
func peers() Part {
	p := Part{Name: "peers", Says: "every peer once", Once: true}
	for _, peer := range []string{peerStreams, peerConfluent, peerSarama, peerSession} {
		p.Cases = append(p.Cases, Case{Name: peer, Peer: peer, Args: every(usual), Events: 200_000})
	}
	for _, peer := range []string{peerPlain, peerWatermill} {
		p.Cases = append(p.Cases, Case{Name: peer, Peer: peer, Events: 5_000})
	}
	return p
}

// lanes is every lane at every size: for looking things up, and without goals.
func lanes() Part {
	p := Part{Name: "lanes", Says: "every lane at every size, at full speed", Once: true}
	for _, point := range Grid(false) {
		p.Cases = append(p.Cases, Case{Name: point.Name(), Lane: point.Lane.Short, Sizes: point.Sizes, Events: point.Events()})
	}
	return p
}

// named gives the goals the part's name.
func (p Part) named() Part {
	for i := range p.Goals {
		p.Goals[i].Part = p.Name
	}
	return p
}

// Goals returns those of all parts.
func Goals() []results.Goal {
	var goals []results.Goal
	for _, p := range Parts() {
		goals = append(goals, p.Goals...)
	}
	return goals
}
