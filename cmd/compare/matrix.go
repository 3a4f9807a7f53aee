package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/delivered-twice/delivered-twice/compose"
	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/fault"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/matrix"
	"github.com/delivered-twice/delivered-twice/internal/report"
	"github.com/delivered-twice/delivered-twice/internal/sandbox"
)

// maxParallel cells have several times as many processes, on one machine.
const maxParallel = 64

type matrixOptions struct {
	lanes, faults []string
	quick         bool
	soak          time.Duration
	parallel      int
	seed          uint64
	services      serviceFlags
	out           string
	json, keep    bool
}

func matrixCommand() *cobra.Command {
	var o matrixOptions
	cmd := &cobra.Command{
		Use:   "matrix [flags]",
		Short: "Run every lane against every fault and hold what is found against what was claimed",
		Long: `matrix runs lanes (ways to consume) against faults. What each may lose, duplicate,
reorder or show was claimed beforehand; a lane that does anything else breaks its claim,
and so does one that exists to show a fault and does not show it.

The first Ctrl-C ends it, shows and keeps what it has found until then, and takes away
what it has made on the services; a second one ends it at once and takes nothing away.

Without flags it runs all of them. "compare lanes" and "compare faults" list what there is.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	verdict.Of(cmd)
	f := cmd.Flags()
	f.StringArrayVar(&o.lanes, "lane", nil, "a lane, by name; may be repeated (default all)")
	f.StringArrayVar(&o.faults, "fault", nil, "a fault, by name; may be repeated (default all)")
	f.BoolVar(&o.quick, "quick", false, "leave out cells that differ in nothing from others")
	f.DurationVar(&o.soak, "soak", 0, "draw cells and seeds at random for so long, or until a claim is broken")
	f.IntVar(&o.parallel, "parallel", min(2*runtime.NumCPU(), maxParallel), "cells that run at the same time")
	f.Uint64Var(&o.seed, "seed", 1, "decides events, and what faults leave to chance")
	o.services.flags(f)
	f.StringVar(&o.out, "out", "", "folder to keep results.json and the cells that failed in (default runs/<time>)")
	f.BoolVar(&o.json, "json", false, "print results.json to stdout, and nothing else")
	f.BoolVar(&o.keep, "keep", false, "keep logs and traces of cells that held, too")
	return cmd
}

// cells returns what was chosen.
func (o *matrixOptions) cells() ([]matrix.Cell, error) {
	lanes, faults := lane.All(), fault.All()
	if len(o.lanes) > 0 {
		lanes = nil
	}
	for _, name := range o.lanes {
		l, err := lane.Find(name)
		if err != nil {
			return nil, fmt.Errorf("--lane: %w", err)
		}
		lanes = append(lanes, l)
	}
	if len(o.faults) > 0 {
		faults = nil
	}
	for _, name := range o.faults {
		f, err := fault.Find(name)
		if err != nil {
			return nil, fmt.Errorf("--fault: %w", err)
		}
		faults = append(faults, f)
	}
	return matrix.Cells(lanes, faults, o.seed), nil
}

func (o *matrixOptions) run(ctx context.Context) (err error) {
	cells, err := o.cells()
	switch {
	case err != nil:
		return cli.Usage(err)
	case o.parallel < 1 || o.parallel > maxParallel:
		return cli.Usage(fmt.Errorf("--parallel is %d, must be from 1 to %d", o.parallel, maxParallel))
	case o.soak < 0:
		return cli.Usage(fmt.Errorf("--soak is %v, must be positive", o.soak))
	case o.soak > 0 && o.quick:
		return cli.Usage(errors.New("--soak and --quick exclude each other"))
	}
	if err := o.services.validate(); err != nil {
		return cli.Usage(err)
	}
	started := time.Now()
	if o.out, err = keepIn(o.out, started); err != nil {
		return err
	}
	services, err := o.services.start(ctx, sandbox.Options{
		Nodes:         3,
		BrokerConfigs: compose.Impatient(),
		Dir:           filepath.Join(o.out, "services"),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, services.Close()) }()

	if err := o.fitting(cells, services); err != nil {
		return cli.Usage(err)
	}
	if o.quick {
		cells = matrix.Quick(cells, services)
	}
	watch := newWatch(len(cells), o.soak)
	defer watch.close()
	options := matrix.Options{
		Services: services,
		Cells:    cells,
		Parallel: o.parallel,
		Seed:     o.seed,
		Name:     "dt_" + started.UTC().Format("20060102_150405"),
		Dir:      filepath.Join(o.out, "cells"),
		Keep:     o.keep,
		Done:     watch.done,
	}
	var results report.Report
	if o.soak > 0 {
		results, err = matrix.Soak(ctx, options, o.soak)
	} else {
		results, err = matrix.Run(ctx, options)
	}
	watch.close()
	if err != nil && len(results.Results) == 0 {
		return err
	}
	// Whoever interrupts a long run wants to know what it has found until then.
	if err := results.Write(o.out); err != nil {
		return err
	}
	if err := show(results, o.json); err != nil {
		return err
	}
	if !o.json {
		fmt.Printf("\nkept in %s\n", o.out)
	}
	return cmp.Or(judge(results), err)
}

// fitting refuses a choice of which nothing can be run.
func (o *matrixOptions) fitting(cells []matrix.Cell, services *sandbox.Services) error {
	var reasons []string
	for _, c := range cells {
		reason := c.Unfit(services)
		if reason == "" {
			return nil
		}
		reasons = append(reasons, fmt.Sprintf("%s: %s", c, reason))
	}
	return fmt.Errorf("nothing can be run: %s", strings.Join(reasons, "; "))
}

func lanesCommand() *cobra.Command {
	var rows [][2]string
	for _, l := range lane.All() {
		rows = append(rows, [2]string{l.Slug(), l.Says + "\n" + strings.TrimPrefix(l.Command(), "go run ./cmd/")})
	}
	return catalogueCommand("lanes", "List the lanes: ways to consume, each one command line", rows)
}

func faultsCommand() *cobra.Command {
	var rows [][2]string
	for _, f := range fault.All() {
		rows = append(rows, [2]string{f.Slug(), f.Says})
	}
	return catalogueCommand("faults", "List the faults that can be injected", rows)
}

// catalogueCommand prints names, and what there is to say of each.
func catalogueCommand(name, short string, rows [][2]string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   name,
		Short: short,
		Args:  cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w := cmd.OutOrStdout()
			_, err := fmt.Fprint(w, cli.Columns(cli.Width(w), rows))
			return err
		},
	}
	cli.Manual{OK: "done"}.Of(cmd)
	return cmd
}
