// Package trial runs lanes side by side over the same events, does to them what a
// fault says, and has the outcome audited.
package trial

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/fault"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/report"
	"github.com/delivered-twice/delivered-twice/internal/sandbox"
	"github.com/delivered-twice/delivered-twice/internal/stage"
)

// MaxInstances is how many processes a lane may have. One machine has to carry
// them all.
const MaxInstances = 32

const (
	// minPartitions of the input and output topics; more where there are more
	// instances.
	minPartitions = 4
	// sessionTimeout of the pipelines' group members, in which a member that does
	// not come back loses its partitions.
	sessionTimeout = 10 * time.Second
	// stall ends a trial in which nothing moves for so long. It is longer than any
	// timeout that the pipelines wait out.
	stall = 90 * time.Second
)

// Options shape a trial.
type Options struct {
	Services *sandbox.Services
	Lanes    []lane.Lane
	// Events is how many distinct events there are, and Rate how many are sent a
	// second, 0 for as many as the broker takes. While kills are behind, fewer are.
	Events, Rate int
	// PublisherDuplicates is the share of events that are sent twice.
	PublisherDuplicates float64
	// Instances is how many processes each lane has, and Kills how many SIGKILLs
	// there are, shared evenly by the lanes.
	Instances, Kills int
	// Seed decides events and kills.
	Seed uint64
	// Dir is the folder in which each lane has one for logs, traces and effects.
	Dir string
	// Name is the prefix of all topics, groups and schemas.
	Name string
	// Progress hears how far things are. Its methods are called from several
	// goroutines.
	Progress Progress
}

// Progress hears how far a trial is.
type Progress interface {
	// Phase says what is being done.
	Phase(what string)
	// Sent says how many records the publisher has sent so far.
	Sent(records int)
	// Consumed says how many records a lane has committed so far.
	Consumed(lane string, records int)
	// Killed says that an instance of a lane was killed.
	Killed(lane string)
}

// contender is a lane in a trial.
type contender struct {
	lane        lane.Lane
	output      string // topics
	deadLetters string // "" where they are rows
	group       string
	databaseURL string
	api         *stage.API // the third party; nil where the lane calls none
	dir         string     // for logs, traces and effects
	instances   []*instance
	plan        []fault.Kill
	killed      atomic.Int64 // how many of them have struck
	consumed    time.Time    // when all was
}

// Run runs a trial and returns what it found. Broken claims are no error: they are
// in the results. What the trial created in Kafka and Postgres is there until
// remove is called, which the caller must do, whether or not there was an error.
func Run(ctx context.Context, o Options) (results report.Report, remove func(context.Context) error, err error) {
	r, err := stage.NewResources(o.Services.Brokers, o.Services.DatabaseURL)
	if err != nil {
		return report.Report{}, func(context.Context) error { return nil }, err
	}
	remove = func(ctx context.Context) error {
		defer r.Close()
		return r.Remove(ctx)
	}
	started := time.Now()
	t := &trial{Options: o, Resources: r}
	defer func() { err = errors.Join(err, t.close()) }()
	if err := t.prepare(ctx); err != nil {
		return report.Report{}, remove, err
	}
	if err := t.run(ctx); err != nil {
		return report.Report{}, remove, err
	}
	results, err = t.report(ctx, started)
	return results, remove, err
}

type trial struct {
	Options
	*stage.Resources
	input      string
	contenders []*contender
	observer   *observer
	sendBegan  time.Time
}

func (t *trial) partitions() int32 { return int32(max(minPartitions, t.Instances)) }

// prepare creates topics and schemas, and draws the plan.
func (t *trial) prepare(ctx context.Context) (err error) {
	t.Progress.Phase("preparing")
	if t.input, err = t.Topic(ctx, t.Name+".orders.paid", t.partitions()); err != nil {
		return err
	}
	for i, l := range t.Lanes {
		c := &contender{lane: l, dir: filepath.Join(t.Dir, l.Short)}
		t.contenders = append(t.contenders, c)
		if err := t.prepareContender(ctx, c, i); err != nil {
			return fmt.Errorf("lane %s: %w", l.Name, err)
		}
	}
	return nil
}

// close kills the third parties that still run.
func (t *trial) close() error {
	var errs []error
	for _, c := range t.contenders {
		if c.api != nil {
			errs = append(errs, c.api.Close())
		}
	}
	return errors.Join(errs...)
}

func (t *trial) prepareContender(ctx context.Context, c *contender, number int) (err error) {
	short := c.lane.Short
	if c.output, err = t.Topic(ctx, t.Name+"."+short+".picked", t.partitions()); err != nil {
		return err
	}
	if c.lane.Program == cli.EOSPipelineName {
		if c.deadLetters, err = t.Topic(ctx, t.Name+"."+short+".dead-letters", 1); err != nil {
			return err
		}
	}
	c.group = t.Group(t.Name + "." + short)
	if c.databaseURL, err = t.Schema(ctx, t.Name+"_"+short); err != nil {
		return err
	}
	if c.lane.Writes(lane.HTTP) {
		if c.api, err = t.API(ctx, t.Name+"_"+short+"_payments", c.dir); err != nil {
			return err
		}
	}
	// Kills are shared by the lanes in turn, the first lanes getting one more.
	kills := (t.Kills + len(t.Lanes) - 1 - number) / len(t.Lanes)
	c.plan = fault.PlanKills(fault.KillOptions{
		Seed:      t.Seed + uint64(number),
		Kills:     kills,
		Instances: t.Instances,
		Steps:     c.lane.Steps,
		Exposed:   c.lane.Exposed,
		Passings:  c.lane.Passings,
	})
	for i := range t.Instances {
		member := &instance{
			name: fmt.Sprintf("%s-%d", short, i),
			role: c.lane.Program,
			args: append(slices.Clone(c.lane.Args),
				"--input="+t.input,
				"--output="+c.output,
				"--group="+c.group,
				fmt.Sprintf("--instance=%d", i),
				"--session-timeout="+sessionTimeout.String(),
			),
			env: append(c.api.Env(),
				"KAFKA_BROKERS="+strings.Join(t.Services.Brokers, ","),
				"DATABASE_URL="+c.databaseURL, // not an argument: everybody on the machine can read those
			),
			dir: c.dir,
			killed: func() {
				c.killed.Add(1)
				t.Progress.Killed(c.lane.Name)
			},
		}
		if c.deadLetters != "" {
			member.args = append(member.args, "--dead-letters="+c.deadLetters)
		}
		for _, kill := range c.plan {
			if kill.Instance == i {
				member.kills = append(member.kills, kill)
			}
		}
		c.instances = append(c.instances, member)
	}
	return nil
}

// run starts the instances, publishes, and waits until every lane has consumed all
// there is.
func (t *trial) run(ctx context.Context) (err error) {
	outputs := make([]string, len(t.contenders))
	for i, c := range t.contenders {
		outputs[i] = c.output
	}
	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	if t.observer, err = observe(watching, t.Services.Brokers, outputs...); err != nil {
		return err
	}

	work, workCtx := errgroup.WithContext(ctx)
	running, stop := context.WithCancel(workCtx)
	defer stop()
	for _, c := range t.contenders {
		for _, member := range c.instances {
			work.Go(func() error { return member.run(running) })
		}
		if c.api != nil {
			work.Go(func() error { return c.api.AwaitEnd(running) })
		}
	}
	work.Go(func() error {
		defer stop() // SIGTERM to every instance
		return t.feed(workCtx)
	})
	err = work.Wait()
	stopWatching()
	for _, c := range t.contenders {
		err = errors.Join(err, c.api.End(ctx))
	}
	return errors.Join(err, t.observer.close())
}

// feed waits for the groups to form, publishes, and waits until all is consumed.
func (t *trial) feed(ctx context.Context) error {
	t.Progress.Phase("waiting for the pipelines to join their groups")
	for _, c := range t.contenders {
		if err := t.awaitMembers(ctx, c.group); err != nil {
			return err
		}
	}
	t.Progress.Phase("running")
	t.sendBegan = time.Now()
	both, ctx := errgroup.WithContext(ctx)
	published := make(chan struct{})
	both.Go(func() error {
		defer close(published)
		return stage.Publish(ctx, t.Services.Brokers, t.input, t.stream(), t.interval, t.Progress.Sent)
	})
	for _, c := range t.contenders {
		both.Go(func() error { return t.awaitConsumed(ctx, c, published) })
	}
	return both.Wait()
}

// trickle is how much slower events are sent while kills are behind, and between
// which bounds. What is left is made to last for killPatience: on a machine that is
// busy with other things, a killed instance is a while in coming back.
const (
	trickle      = 10
	trickleMin   = 5 * time.Millisecond
	trickleMax   = 200 * time.Millisecond
	killPatience = time.Minute
)

// interval slows the publisher down while kills are behind: all of them are to
// strike, evenly, while the first four fifths of the events are sent. An instance
// passes its steps only as long as events come, and a kill that finds none left was
// not tried.
func (t *trial) interval(n int) time.Duration {
	interval := stage.Every(t.Rate)(n)
	for _, c := range t.contenders {
		if due := 5 * n * len(c.plan) / (4 * t.Events); int(c.killed.Load()) < min(due, len(c.plan)) {
			lasting := min(killPatience/time.Duration(max(t.Events-n, 1)), trickleMax)
			return max(trickle*interval, trickleMin, lasting)
		}
	}
	return interval
}

func (t *trial) stream() order.StreamOptions {
	return order.StreamOptions{Events: t.Events, Seed: t.Seed, PublisherDuplicates: t.PublisherDuplicates}
}

// awaitMembers waits until every instance has joined.
func (t *trial) awaitMembers(ctx context.Context, group string) error {
	deadline := time.Now().Add(stall)
	for {
		groups, err := t.Admin.DescribeGroups(ctx, group)
		if err == nil && groups[group].State == "Stable" && len(groups[group].Members) == t.Instances {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("group %s has not formed after %v: state %q, %d of %d members: %w",
				group, stall, groups[group].State, len(groups[group].Members), t.Instances, errors.Join(err, groups[group].Err))
		}
		if err := wait(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// awaitConsumed waits until a lane has committed everything that was published.
func (t *trial) awaitConsumed(ctx context.Context, c *contender, published <-chan struct{}) error {
	var (
		before int64 = -1
		moved        = time.Now()
	)
	for {
		done := isClosed(published) // asked first: what is published later can't be missed
		committed, total, err := t.Consumed(ctx, c.group, t.input)
		switch {
		case err == nil:
			t.Progress.Consumed(c.lane.Name, int(committed))
			if done && committed >= total {
				c.consumed = time.Now()
				return nil
			}
			if committed != before {
				before, moved = committed, time.Now()
			}
		case ctx.Err() != nil:
			return ctx.Err()
		}
		if time.Since(moved) > stall {
			return fmt.Errorf("lane %s has stopped at %d of %d records for %v; its logs are in %s: %w",
				c.lane.Name, committed, total, stall, filepath.Join(c.dir, stage.LogsDir), errors.Join(err))
		}
		if err := wait(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
