// Command plots draws what is in a folder of results, an SVG for each part:
//
//	cd benchmarks/peers && go run ./plots ../../docs/benchmarks
//
// A bar is the median of a case, and the line on it goes from the least to the most. Runs
// that broke their promise are not in it.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	_ "gonum.org/v1/plot/vg/vgsvg" // so that plots can be saved as such

	"github.com/delivered-twice/delivered-twice/benchmarks/results"
	"github.com/delivered-twice/delivered-twice/benchmarks/suite"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: plots DIR")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "plots:", err)
		os.Exit(2)
	}
}

func run(dir string) error {
	runs, err := results.ReadFile(filepath.Join(dir, suite.RunsFile))
	if err != nil {
		return err
	}
	for _, part := range suite.Parts() {
		cases := results.Summarize(runs, part.Name, part.Metric)
		if part.Once || len(cases) == 0 {
			continue
		}
		if err := bars(part, cases, filepath.Join(dir, suite.PlotFile(part))); err != nil {
			return fmt.Errorf("draw %s: %w", part.Name, err)
		}
	}
	return nil
}

func bars(part suite.Part, cases []results.Summary, path string) error {
	slices.Reverse(cases) // the axis goes upwards
	p := plot.New()
	p.Title.Text = part.Says
	p.X.Label.Text = part.Metric.Label()
	p.X.Min = 0
	medians := make(plotter.Values, len(cases))
	spans := spans{make(plotter.XYs, len(cases)), make(plotter.XErrors, len(cases))}
	names := make([]string, len(cases))
	for i, c := range cases {
		medians[i], names[i] = c.Median, c.Case
		spans.XYs[i] = plotter.XY{X: c.Median, Y: float64(i)}
		spans.XErrors[i].Low, spans.XErrors[i].High = c.Median-c.Min, c.Max-c.Median
	}
	chart, err := plotter.NewBarChart(medians, vg.Points(12))
	if err != nil {
		return err
	}
	chart.Horizontal = true
	chart.Color = plotutil.Color(2)
	chart.LineStyle.Width = 0
	lines, err := plotter.NewXErrorBars(spans)
	if err != nil {
		return err
	}
	p.Add(plotter.NewGrid(), chart, lines)
	p.NominalY(names...)
	return p.Save(9*vg.Inch, vg.Length(len(cases))*vg.Points(20)+vg.Inch, path)
}

// spans are the lines from the least to the most.
type spans struct {
	plotter.XYs
	plotter.XErrors
}
