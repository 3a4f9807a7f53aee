// Command costs makes of the runs in a folder what people read: README.md in that folder,
// and the tables of costs in another page, between its lines <!-- costs:begin --> and
// <!-- costs:end -->.
//
//	go run ./benchmarks/costs docs/benchmarks --page README.md
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/delivered-twice/delivered-twice/benchmarks/results"
	"github.com/delivered-twice/delivered-twice/benchmarks/suite"
	"github.com/delivered-twice/delivered-twice/internal/cli"
)

func main() {
	var page string
	cmd := &cobra.Command{
		Use:   "costs DIR",
		Short: "Write what was measured into DIR/README.md, and what guarantees cost into another page",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.Usage(errors.New("name one folder of results"))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return write(args[0], page) },
	}
	cmd.Flags().StringVar(&page, "page", "", "write the tables of costs into this Markdown page, between its lines <!-- costs:begin --> and <!-- costs:end -->")
	os.Exit(cli.Run(cmd, os.Args[1:]))
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
