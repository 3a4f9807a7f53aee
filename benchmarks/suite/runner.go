package suite

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/delivered-twice/delivered-twice/benchmarks/contest"
	"github.com/delivered-twice/delivered-twice/benchmarks/results"
	"github.com/delivered-twice/delivered-twice/internal/lane"
)

// Files of a folder of results.
const (
	RunsFile        = "results.csv"
	EnvironmentFile = "environment.json"
)

// Runner runs parts.
type Runner struct {
	// Brokers and DatabaseURL are the services that are measured on.
	Brokers     []string
	DatabaseURL string
	// Kafka names the broker and its version; "": they are guessed from its API versions.
	Kafka string
	// Peer returns a peer with more arguments.
	Peer func(ctx context.Context, name string, args []string) (contest.Contender, error)
	// Rounds is how often each case is run.
	Rounds int
	// Scale is by how much there are fewer events than a part says, to try things out.
	Scale float64
	// Dir is the folder for results; runs of the part that it has are replaced.
	Dir string
	// Log gets a line for each run.
	Log io.Writer
}

// Run runs a part. Before the first round every case is run with a few events, which is
// not kept: brokers, too, have to warm up. What each run has shown is in the folder as
// soon as it has ended. A case that could not be measured is a line that says why; the
// others go on.
//
// broken are the runs that did not keep their promise, or could not be measured.
func (r Runner) Run(ctx context.Context, p Part) (broken []results.Run, err error) {
	file := filepath.Join(r.Dir, RunsFile)
	runs, err := results.ReadFile(file)
	if err != nil {
		return nil, err
	}
	runs = results.Without(runs, p.Name)
	rounds := r.Rounds
	if p.Once {
		rounds = 1
	}
	for round := 0; round <= rounds; round++ {
		for _, c := range p.Cases {
			began := time.Now()
			run, err := r.measure(ctx, c, round)
			if ctx.Err() != nil {
				return broken, ctx.Err()
			}
			run.Part, run.Case, run.Round = p.Name, c.Name, round
			if err != nil {
				run.Audit = "failed: " + strings.Join(strings.Fields(err.Error()), " ")
			}
			fmt.Fprintf(r.Log, "%s %d/%d %-45s %10.0f events/s  p99 %7.1f ms  %s  (%v)\n", p.Name, round, rounds, c.Name, run.EventsPerSecond, run.P99, run.Audit, time.Since(began).Round(time.Second))
			if round == 0 {
				continue
			}
			if !run.Passed() {
				broken = append(broken, run)
			}
			runs = append(runs, run)
			if err := results.WriteFile(file, runs); err != nil {
				return broken, err
			}
		}
	}
	return broken, nil
}

// fewest is what a contest takes, at least.
const fewest = 1_000

// measure runs a case. Round 0 has a tenth of its events. In the first round requests are
// counted, too: they are not a matter of speed.
func (r Runner) measure(ctx context.Context, c Case, round int) (results.Run, error) {
	contender, ordered, err := r.contender(ctx, c)
	if err != nil {
		return results.Run{}, err
	}
	events := float64(c.Events) * r.Scale
	if round == 0 {
		events /= 10
	}
	o := contest.Options{
		Brokers:   r.Brokers,
		Contender: contender,
		Events:    max(int(events), fewest),
		Rate:      c.Rate,
	}
	if contender.Table != "" {
		o.DatabaseURL = r.DatabaseURL
	}
	if round == 1 && c.Rate == 0 {
		o.RequestEvents = max(o.Events/10, fewest)
	}
	return Measure(ctx, o, c.Sizes, ordered)
}

// contender also says whether it promises the order of the events of a key.
func (r Runner) contender(ctx context.Context, c Case) (_ contest.Contender, ordered bool, err error) {
	if c.Peer != "" {
		contender, err := r.Peer(ctx, c.Peer, c.Args)
		return contender, false, err
	}
	for _, l := range lane.All() {
		if l.Short == c.Lane {
			return Contender(l, c.Sizes, c.Args...), l.Writes(lane.Order), nil
		}
	}
	return contest.Contender{}, false, fmt.Errorf("there is no lane %q", c.Lane)
}
