package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/sandbox"
	"github.com/delivered-twice/delivered-twice/internal/trial"
)

// cleanUpTime bounds what is done after a run, also after Ctrl-C.
const cleanUpTime = 30 * time.Second

const (
	// maxEvents are as many as the auditor can keep in mind.
	maxEvents = 10_000_000
	// maxKills take a process a second each, or more.
	maxKills = 100_000
)

type runOptions struct {
	events, rate, instances, kills int
	seed                           uint64
	publisherDuplicates            float64
	idempotencyKey                 bool
	services                       serviceFlags
	out                            string
	json, noCleanup                bool
}

func runCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run [flags]",
		Short: "Run both pipelines side by side and print the grid (the default)",
		Long: `run sends OrderPaid events to one topic and lets both pipelines consume them at the
same time: each produces to Kafka, writes to Postgres and calls a third party over HTTP.
It kills instances of both with SIGKILL at named steps and starts them again, waits
until all is consumed, and counts what is really in Kafka, in Postgres, and in the
ledger of the third party.

The first Ctrl-C ends it without results and takes away what it has made on the
services; a second one ends it at once and takes nothing away.`,
		Args: cli.NoArgs,
	}
	runs(cmd)
	return cmd
}

// runs makes a command one that runs both pipelines side by side.
func runs(cmd *cobra.Command) {
	var o runOptions
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) }
	verdict.Of(cmd)
	f := cmd.Flags()
	f.IntVar(&o.events, "events", 10_000, "distinct events")
	f.IntVar(&o.rate, "rate", 500, "events sent a second, fewer while kills are behind; 0: as many as the broker takes")
	f.IntVar(&o.instances, "instances", 2, "processes of each pipeline")
	f.IntVar(&o.kills, "kills", 20, "SIGKILLs, shared by the pipelines")
	f.Uint64Var(&o.seed, "seed", 1, "decides events and kills; the same seed gives the same ones")
	f.Float64Var(&o.publisherDuplicates, "publisher-duplicates", 0, "share of events, 0 to 1, that the publisher sends twice")
	f.BoolVar(&o.idempotencyKey, "idempotency-key", false, "send the event's id as Idempotency-Key with each call of the third party")
	o.services.flags(f)
	f.StringVar(&o.out, "out", "", "folder to keep results.json and logs in (default runs/<time>)")
	f.BoolVar(&o.json, "json", false, "print results.json to stdout, and nothing else")
	f.BoolVar(&o.noCleanup, "no-cleanup", false, "leave topics, groups and schemas on your own services")
}

// verdict is the manual of commands that run lanes.
var verdict = cli.Manual{
	Environment: []cli.Variable{
		cli.KafkaBrokers, cli.DatabaseURL,
		{Name: "NO_COLOR", Says: "set to anything: no colours on a terminal"},
	},
	OK:     "every claim held",
	Broken: "a claim did not hold",
}

func (o *runOptions) validate() error {
	switch {
	case o.events < 1 || o.events > maxEvents:
		return fmt.Errorf("--events is %d, must be from 1 to %d", o.events, maxEvents)
	case o.rate < 0:
		return fmt.Errorf("--rate is %d, must not be negative", o.rate)
	case o.instances < 1 || o.instances > trial.MaxInstances:
		return fmt.Errorf("--instances is %d, must be from 1 to %d", o.instances, trial.MaxInstances)
	case o.kills < 0 || o.kills > maxKills:
		return fmt.Errorf("--kills is %d, must be from 0 to %d", o.kills, maxKills)
	case o.kills > 0 && o.kills < leastKills(o.lanes()):
		return fmt.Errorf("--kills is %d, must be 0 or at least %d: in fewer, no instance would die at some step where it must show", o.kills, leastKills(o.lanes()))
	case !(o.publisherDuplicates >= 0 && o.publisherDuplicates <= 1): // NaN is neither
		return fmt.Errorf("--publisher-duplicates is %v, must be from 0 to 1", o.publisherDuplicates)
	}
	return o.services.validate()
}

func (o *runOptions) lanes() []lane.Lane { return lane.Headline(o.idempotencyKey) }

// leastKills are enough to kill each lane at each step at which a death must show.
func leastKills(lanes []lane.Lane) int {
	steps := 0
	for _, l := range lanes {
		steps = max(steps, len(l.Exposed))
	}
	return steps * len(lanes)
}

func (o *runOptions) run(ctx context.Context) (err error) {
	if err := o.validate(); err != nil {
		return cli.Usage(err)
	}
	lanes := o.lanes()
	started := time.Now()
	if o.out, err = keepIn(o.out, started); err != nil {
		return err
	}
	bars := newBars(o.events, lanes)
	defer bars.close()

	bars.Phase("starting Kafka and Postgres")
	services, err := o.services.start(ctx, sandbox.Options{Dir: filepath.Join(o.out, "services")})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, services.Close()) }()

	results, remove, err := trial.Run(ctx, trial.Options{
		Services:            services,
		Lanes:               lanes,
		Events:              o.events,
		Rate:                o.rate,
		PublisherDuplicates: o.publisherDuplicates,
		Instances:           o.instances,
		Kills:               o.kills,
		Seed:                o.seed,
		Dir:                 o.out,
		Name:                "delivered_twice_" + started.UTC().Format("20060102_150405"),
		Progress:            bars,
	})
	if !o.noCleanup {
		defer func() {
			cleanUp, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTime)
			defer cancel()
			if left := remove(cleanUp); left != nil {
				err = errors.Join(err, cli.LeftBehind(left))
			}
		}()
	}
	if err != nil {
		return err
	}
	if err := results.Write(o.out); err != nil {
		return err
	}
	bars.close()
	if err := show(results, o.json); err != nil {
		return err
	}
	if !o.json {
		fmt.Printf("\nkept in %s\n", o.out)
	}
	return judge(results)
}
