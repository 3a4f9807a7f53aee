// Package suite is the whole set of measurements: who is measured at what settings, in
// which parts, and what is to come of it.
//
// A part's cases are run one after the other, and that again and again, so that a
// machine that slows down for a while slows all of them down: what is compared are
// cases of the same round.
package suite

import (
	"fmt"
	"os/exec"
	"slices"
	"time"

	"github.com/delivered-twice/delivered-twice/benchmarks/contest"
	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/process"
	"github.com/delivered-twice/delivered-twice/internal/warehouse"
)

// Register makes the pipelines roles of this program: they are measured as child
// processes. It must be called before process.Init.
func Register() {
	process.Register(cli.EOSPipelineName, cli.EOSPipeline)
	process.Register(cli.InboxPipelineName, cli.InboxPipeline)
}

// Init is [Register], and then process.Init, for a program with no other roles.
func Init() {
	Register()
	process.Init()
}

// Sizes are what a contender may be told beside its command line. Zero is its own
// default.
type Sizes struct {
	// Batch is how many events are committed together, at most.
	Batch int
	// InFlight is how many transactions of one process may be under way.
	InFlight int
	// Instances is how many processes share the work.
	Instances int
}

// inboxHandler is the handler that is measured: a row an event, and nothing else.
const inboxHandler = "loyalty"

// Contender returns a lane of that size as a contender. The args come on top, such as
// --commit-interval=10ms.
//
// An inbox-pipeline has one handler, which inserts a row for each event (the pipeline's
// default are two), unless the args name another.
func Contender(l lane.Lane, s Sizes, args ...string) contest.Contender {
	c := contest.Contender{Name: l.Short}
	flags := slices.Clone(l.Args)
	if l.Program == cli.EOSPipelineName {
		flags = append(flags, size("max-transaction-records", s.Batch)...)
		if l.Transactional {
			flags = append(flags, size("transactions-in-flight", s.InFlight)...)
		}
	} else {
		c.Table = warehouse.LoyaltyPoints
		handler := inboxHandler
		if slices.Contains(args, "--handlers=warehouse") || l.Writes(lane.Kafka) { // which is the one that publishes
			c.Table, handler = warehouse.PickTasks, "warehouse"
		}
		flags = append(flags, "--handlers="+handler)
		flags = append(flags, size("batch-size", s.Batch)...)
	}
	flags = append(flags, args...)
	c.Command = func(a contest.Assignment) *exec.Cmd {
		return process.Command(l.Program, slices.Concat(flags, []string{
			"--input=" + a.Input,
			"--output=" + a.Output,
			"--group=" + a.Group,
			fmt.Sprintf("--instance=%d", a.Instance),
		})...).Cmd
	}
	return c
}

func size(flag string, n int) []string {
	if n == 0 {
		return nil
	}
	return []string{fmt.Sprintf("--%s=%d", flag, n)}
}

// Measurable says whether a lane can be measured by what comes of a topic filled
// beforehand. Those that call a third party are left out, for they would measure that
// one, and so is the webhook, which reads no topic, and Redis, where there is none.
func Measurable(l lane.Lane, redis bool) bool {
	return !l.Writes(lane.HTTP) && l.Progress != lane.Webhooks && (redis || l.Forgets != lane.RedisKeys)
}

// Point is a lane at one size.
type Point struct {
	Lane lane.Lane
	Sizes
}

// Name is the name of the point as a sub-benchmark, for benchstat.
func (p Point) Name() string {
	return fmt.Sprintf("lane=%s/batch=%d/in-flight=%d/instances=%d", p.Lane.Short, p.Batch, p.InFlight, p.Instances)
}

// Batches are the sizes of a batch that are measured.
func Batches() []int { return []int{1, 10, 100, 1_000, 10_000} }

// Grid is every lane at every size that makes sense: several transactions can be in
// flight where there are Kafka transactions, and no second commit goes with them.
func Grid(redis bool) []Point {
	var grid []Point
	for _, l := range lane.All() {
		if !Measurable(l, redis) {
			continue
		}
		inFlight := []int{1}
		if Pipelined(l) {
			inFlight = []int{1, 2, 4}
		}
		for _, batch := range Batches() {
			for _, n := range inFlight {
				for _, instances := range []int{1, 2} {
					grid = append(grid, Point{l, Sizes{batch, n, instances}})
				}
			}
		}
	}
	return grid
}

// Pipelined says whether a lane can have several transactions in flight.
func Pipelined(l lane.Lane) bool {
	return l.Transactional && !slices.Contains(l.Args, "--guarantee=two-phase")
}

// Events is how many events are measured at a size: some thousand small transactions, or
// some dozen of the largest.
func (s Sizes) Events() int { return min(max(2_000*s.Batch, 2_000), max(100_000, 30*s.Batch)) }

// EventsAt is how many events are measured at a rate: those of so long.
func EventsAt(rate int, d time.Duration) int { return int(float64(rate) * d.Seconds()) }

// Latency returns the args of a lane that is to be quick: a Kafka transaction, or what
// takes its place, ends with the records that were there when it began, and not after an
// interval.
func Latency(l lane.Lane) []string {
	if l.Program == cli.EOSPipelineName {
		return every(0)
	}
	return nil
}
