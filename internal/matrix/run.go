package matrix

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/delivered-twice/delivered-twice/internal/audit"
	"github.com/delivered-twice/delivered-twice/internal/fault"
	"github.com/delivered-twice/delivered-twice/internal/report"
	"github.com/delivered-twice/delivered-twice/internal/sandbox"
	"github.com/delivered-twice/delivered-twice/internal/stage"
)

const (
	// cellTime bounds one cell: a lane that has not come through by then hangs.
	cellTime = 3 * time.Minute
	// cleanUpTime bounds what is done after it.
	cleanUpTime = 30 * time.Second
	// unexpectedShown is how many effects that nobody asked for a result names.
	unexpectedShown = 10
)

// Options shape a run.
type Options struct {
	Services *sandbox.Services
	Cells    []Cell
	// Parallel is how many cells run at the same time.
	Parallel int
	// Seed is told in the report; each cell has its own.
	Seed uint64
	// Name is the prefix of all topics, groups and schemas.
	Name string
	// Dir is the folder below which each cell has its own. Those of cells that held
	// are removed, unless Keep is set.
	Dir  string
	Keep bool
	// Done, where set, hears of each cell that has run. It is called by one goroutine
	// at a time.
	Done func(report.Result)
}

// Run runs the cells and returns what was found, in their order. Broken claims and
// cells that could not be carried through are no error: they are in the results. If ctx
// ends, it returns the results of the cells that had run, beside the error.
func Run(ctx context.Context, o Options) (report.Report, error) {
	r := newRunner(o)
	var calm []int
	disturbing := make(map[fault.Disturbs][]int)
	for i, c := range o.Cells {
		switch {
		case c.Unfit(o.Services) != "":
			r.record(i, report.Result{Lane: c.Lane.Name, Fault: c.Fault.Name, Command: c.Lane.Command(), NotApplicable: c.Unfit(o.Services)})
		case c.Fault.Disturbs == fault.DisturbsNothing:
			calm = append(calm, i)
		default:
			disturbing[c.Fault.Disturbs] = append(disturbing[c.Fault.Disturbs], i)
		}
	}
	if err := r.together(ctx, calm, nil); err != nil {
		return r.found(), err
	}
	// Whoever disturbs the services has them alone with those who wait for the same.
	for _, kind := range []fault.Disturbs{fault.DisturbsKafka, fault.DisturbsPostgres} {
		for _, group := range byFault(o.Cells, disturbing[kind]) {
			for crowd := range slices.Chunk(group, o.Parallel) {
				if err := r.together(ctx, crowd, stage.NewMeeting(len(crowd))); err != nil {
					return r.found(), err
				}
			}
		}
	}
	return r.found(), nil
}

// byFault divides cells, given by number, into those of one fault each.
func byFault(cells []Cell, numbers []int) [][]int {
	var groups [][]int
	for i, n := range numbers {
		if i == 0 || cells[n].Fault.Name != cells[numbers[i-1]].Fault.Name {
			groups = append(groups, nil)
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], n)
	}
	return groups
}

type runner struct {
	Options
	mu      sync.Mutex
	results []report.Result // of cells that have not run: without a lane
	report  report.Report
}

// found returns the results of the cells that have run.
func (r *runner) found() report.Report {
	r.report.Results = slices.DeleteFunc(r.results, func(result report.Result) bool { return result.Lane == "" })
	return r.report
}

func newRunner(o Options) *runner {
	return &runner{
		Options: o,
		results: make([]report.Result, len(o.Cells)),
		report: report.Report{Environment: report.Environment{
			Kafka:     o.Services.KafkaVersion,
			Brokers:   several(o.Services.Nodes()),
			Postgres:  o.Services.PostgresVersion,
			Go:        runtime.Version(),
			CPUs:      runtime.NumCPU(),
			Seed:      o.Seed,
			StartedAt: time.Now(),
		}},
	}
}

func (r *runner) record(number int, result report.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results[number] = result
	if r.Done != nil {
		r.Done(result)
	}
}

// together runs cells at the same time, as many as are wanted.
func (r *runner) together(ctx context.Context, numbers []int, meeting *stage.Meeting) error {
	var work errgroup.Group
	work.SetLimit(r.Parallel)
	for _, n := range numbers {
		work.Go(func() error {
			leave := sync.OnceFunc(meeting.Leave)
			defer leave()
			if ctx.Err() != nil {
				return ctx.Err()
			}
			result := r.cell(ctx, n, r.Cells[n], meeting)
			if ctx.Err() != nil {
				return ctx.Err() // what was cut off has no result
			}
			r.record(n, result)
			return nil
		})
	}
	return work.Wait()
}

// cell runs one cell in a folder of its own.
func (r *runner) cell(ctx context.Context, number int, c Cell, meeting *stage.Meeting) report.Result {
	begin := time.Now()
	result := report.Result{
		Lane:    c.Lane.Name,
		Fault:   c.Fault.Name,
		Command: c.Lane.Command(),
		Seed:    c.Seed,
	}
	dir := filepath.Join(r.Dir, fmt.Sprintf("%04d-%s-%s", number, c.Lane.Slug(), c.Fault.Slug()))
	err := r.perform(ctx, c, fmt.Sprintf("%s_%d", r.Name, number), dir, meeting, &result)
	result.WallS = time.Since(begin).Seconds()
	if err != nil {
		result.Failure = err.Error()
	}
	if result.Held() && !r.Keep {
		if err := os.RemoveAll(dir); err != nil {
			result.Failure = err.Error()
		}
		return result
	}
	result.Folder = dir
	if !result.Held() {
		result.Repeat = c.Repeat(r.Services)
	}
	return result
}

// perform puts the lane on, injects the fault, and audits.
func (r *runner) perform(ctx context.Context, c Cell, name, dir string, meeting *stage.Meeting, result *report.Result) (err error) {
	ctx, cancel := context.WithTimeout(ctx, cellTime)
	defer cancel()
	s, err := stage.Open(ctx, stage.Options{
		Services: r.Services, Lane: c.Lane, Name: name, Seed: c.Seed, Dir: dir, Together: meeting,
	})
	defer func() {
		cleanUp, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTime)
		defer cancel()
		err = errors.Join(err, s.Close(cleanUp, false))
	}()
	if err != nil {
		return err
	}
	if err := c.Fault.Inject(ctx, s); err != nil {
		return fmt.Errorf("inject %s: %w", c.Fault.Name, err)
	}
	if err := s.Settle(ctx); err != nil {
		return err
	}
	found, err := s.Audit(ctx)
	if err != nil {
		return err
	}
	if err := audit.WriteEffects(dir, found.Effects); err != nil {
		return err
	}
	result.Events = len(s.Expected())
	result.Injections = s.Injections()
	result.DeadLetters = found.DeadLetters
	result.Unexpected = found.Unexpected[:min(len(found.Unexpected), unexpectedShown)]
	if result.Scopes, err = report.Judge(c.Lane, c.Fault.Name, found.Counts); err != nil {
		return err
	}
	if found.DeadLetters < s.Poisoned() {
		return fmt.Errorf("%d records that no handler can take were sent, and %d are kept as dead letters", s.Poisoned(), found.DeadLetters)
	}
	return nil
}

// several is how many there are, if it is more than one.
func several(nodes []int) int {
	if len(nodes) > 1 {
		return len(nodes)
	}
	return 0
}
