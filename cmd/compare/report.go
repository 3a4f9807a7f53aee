package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/report"
)

func reportCommand() *cobra.Command {
	var (
		asJSON bool
		page   string
	)
	cmd := &cobra.Command{
		Use:   "report DIR",
		Short: "Show the results of an earlier run again",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.Usage(errors.New("name one folder that a run has kept"))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			results, err := report.Read(args[0])
			if err != nil {
				return err
			}
			if page != "" {
				if asJSON {
					return cli.Usage(errors.New("--json and --page exclude each other"))
				}
				return cmp.Or(results.EmbedFile(page), judge(results))
			}
			if err := show(results, asJSON); err != nil {
				return err
			}
			return judge(results)
		},
	}
	cli.Manual{OK: "every claim held", Broken: "a claim did not hold"}.Of(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print results.json to stdout, and nothing else")
	cmd.Flags().StringVar(&page, "page", "", "write the matrix in DIR into this Markdown page, between its lines <!-- matrix:begin --> and <!-- matrix:end -->")
	return cmd
}

func show(r report.Report, asJSON bool) error {
	if asJSON {
		return r.Encode(os.Stdout)
	}
	if r.OfMatrix() {
		return r.Matrix(os.Stdout)
	}
	return r.Table(os.Stdout)
}

// judge returns an error if a claim did not hold, or if nobody can tell: what a kill
// that did not strike would have shown is not known.
func judge(r report.Report) error {
	missed := 0
	for _, kill := range r.Plan {
		if !kill.Fired {
			missed++
		}
	}
	if missed > 0 {
		return fmt.Errorf("%d of %s did not strike before the events ran out, so the claims were not put to the test: raise --events or lower --kills", missed, report.Count(len(r.Plan), "kill"))
	}
	if r.Held() {
		return nil
	}
	return fmt.Errorf("%w: the results say which", cli.ErrBroken)
}
