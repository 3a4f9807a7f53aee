// Command costs makes of the runs in a folder what people read: README.md in that folder,
// and the tables of costs in another page, between its lines <!-- costs:begin --> and
// <!-- costs:end -->.
//
//	go run ./benchmarks/costs write docs/benchmarks --page README.md
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/delivered-twice/delivered-twice/benchmarks/results"
	"github.com/delivered-twice/delivered-twice/benchmarks/suite"
	"github.com/delivered-twice/delivered-twice/internal/cli"
)

func main() {
	root := &cobra.Command{Use: "costs", Short: "Make pages of what was measured"}
	root.AddCommand(writeCommand(), importCommand())
	os.Exit(cli.Run(root, os.Args[1:]))
}

func writeCommand() *cobra.Command {
	var page string
	cmd := &cobra.Command{
		Use:   "write DIR",
		Short: "Write what was measured into DIR/README.md, and what guarantees cost into another page",
		Args:  exactly(1),
		RunE:  func(_ *cobra.Command, args []string) error { return write(args[0], page) },
	}
	cmd.Flags().StringVar(&page, "page", "", "write the tables of costs into this Markdown page, between its lines <!-- costs:begin --> and <!-- costs:end -->")
	return cmd
}

func importCommand() *cobra.Command {
	r := suite.Runner{Scale: 1, Kafka: os.Getenv("BENCHMARK_KAFKA")}
	cmd := &cobra.Command{
		Use:   "import PART FILE DIR",
		Short: "Take the output of go test -bench over as the runs of a part; KAFKA_BROKERS and DATABASE_URL are what it ran on",
		Args:  exactly(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			r.Brokers, r.DatabaseURL = strings.Split(os.Getenv("KAFKA_BROKERS"), ","), os.Getenv("DATABASE_URL")
			r.Dir = args[2]
			environment, err := r.Environment(cmd.Context(), os.Getenv("BENCHMARK_COMMAND"))
			if err != nil {
				return err
			}
			if err := suite.KeepEnvironment(r.Dir, args[0], environment); err != nil {
				return err
			}
			return take(args[0], args[1], r.Dir)
		},
	}
	cmd.Flags().IntVar(&r.Rounds, "rounds", results.MinRounds, "how often each benchmark was run")
	return cmd
}

func exactly(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return cli.Usage(fmt.Errorf("%d arguments are needed, there are %d", n, len(args)))
		}
		return nil
	}
}

// take replaces the runs of a part by those in the output of go test -bench.
func take(part, file, dir string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	taken, err := results.FromGo(f, part)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	path := filepath.Join(dir, suite.RunsFile)
	runs, err := results.ReadFile(path)
	if err != nil {
		return err
	}
	return results.WriteFile(path, append(results.Without(runs, part), taken...))
}

func write(dir, page string) error {
	runs, err := results.ReadFile(filepath.Join(dir, suite.RunsFile))
	if err != nil {
		return err
	}
	if len(runs) == 0 {
		return fmt.Errorf("there are no runs in %s: measure something first, with benchmarks/run.sh", filepath.Join(dir, suite.RunsFile))
	}
	environments, err := suite.ReadEnvironments(dir)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "README.md"), []byte(suite.Page(runs, environments)), 0o644); err != nil {
		return err
	}
	if page == "" {
		return nil
	}
	return results.EmbedFile(page, "costs", suite.CostsMarkdown(runs))
}
