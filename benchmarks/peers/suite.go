package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/delivered-twice/delivered-twice/benchmarks/contest"
	"github.com/delivered-twice/delivered-twice/benchmarks/results"
	"github.com/delivered-twice/delivered-twice/benchmarks/suite"
)

// suiteCommand measures parts of the whole set, this project's lanes and the peers in
// turns. benchmarks/run.sh starts it.
func suiteCommand() *cobra.Command {
	r := suite.Runner{DatabaseURL: os.Getenv("DATABASE_URL"), Brokers: brokers(), Kafka: os.Getenv("BENCHMARK_KAFKA"), Log: os.Stderr}
	var says strings.Builder
	for _, p := range suite.Parts() {
		fmt.Fprintf(&says, "  %-20s %s\n", p.Name, p.Says)
	}
	cmd := &cobra.Command{
		Use:   "suite PART...",
		Short: "Measure parts of the whole set, and keep what each run has shown",
		Long:  "The parts:\n" + says.String(),
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if r.Rounds < 1 || r.Scale <= 0 {
				return errors.New("--rounds and --scale must be positive")
			}
			parts, err := partsOf(args)
			if err != nil {
				return err
			}
			dir, err := os.MkdirTemp("", "delivered-twice-peers-")
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
			r.Peer = builtOnce(dir)
			return runParts(cmd.Context(), r, parts)
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.Dir, "dir", "../../docs/benchmarks", "folder for results")
	f.IntVar(&r.Rounds, "rounds", results.MinRounds, "how often each case is run, in turns with the others")
	f.Float64Var(&r.Scale, "scale", 1, "to try things out: by how much there are fewer events")
	return cmd
}

func partsOf(names []string) ([]suite.Part, error) {
	var parts []suite.Part
	for _, name := range names {
		at := slices.IndexFunc(suite.Parts(), func(p suite.Part) bool { return p.Name == name })
		if at < 0 {
			return nil, fmt.Errorf("there is no part %q: suite --help lists them", name)
		}
		parts = append(parts, suite.Parts()[at])
	}
	return parts, nil
}

func runParts(ctx context.Context, r suite.Runner, parts []suite.Part) error {
	if err := os.MkdirAll(r.Dir, 0o755); err != nil {
		return err
	}
	failed := false
	for _, p := range parts {
		environment, err := r.Environment(ctx, cmp.Or(os.Getenv("BENCHMARK_COMMAND"), strings.Join(os.Args[1:], " ")))
		if err != nil {
			return err
		}
		if err := suite.KeepEnvironment(r.Dir, p.Name, environment); err != nil {
			return err
		}
		broken, err := r.Run(ctx, p)
		if err != nil {
			return err
		}
		for _, run := range broken {
			failed = true
			fmt.Fprintf(os.Stderr, "broken: %s, %s, round %d: %s\n", run.Part, run.Case, run.Round, run.Audit)
		}
	}
	if failed {
		return errUnclean
	}
	return nil
}

// builtOnce returns peers, each of which is built when it is first asked for.
func builtOnce(dir string) func(ctx context.Context, name string, args []string) (contest.Contender, error) {
	built := make(map[string]contest.Contender)
	return func(ctx context.Context, name string, args []string) (contest.Contender, error) {
		c, ok := built[name]
		if !ok {
			p, err := find(name)
			if err != nil {
				return contest.Contender{}, err
			}
			if c, err = p.build(ctx, filepath.Join(dir), nil); err != nil {
				return contest.Contender{}, err
			}
			built[name] = c
		}
		program := c.Command
		c.Command = func(a contest.Assignment) *exec.Cmd {
			cmd := program(a)
			cmd.Args = append(cmd.Args, args...)
			return cmd
		}
		return c, nil
	}
}
