package results

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

// english writes 20000 as 20,000.
var english = message.NewPrinter(language.English)

// At is where runs are.
type At struct{ Part, Case string }

// Cost is a line of a table of costs: a case of full speed, and the same contender's at a
// fixed rate, where latency means something.
type Cost struct {
	Says          string // what it is, in a few words
	Full, AtARate At
}

// Costs are the lines of one engine and its peers, each divided by the first.
type Costs struct {
	Title string
	Lines []Cost
}

// costMetrics are the columns, and whether each is of the run at full speed.
var costMetrics = []struct {
	Metric
	full bool
}{{EventsPerSecond, true}, {P99, false}, {Requests, true}, {WAL, true}, {CPU, true}}

// Markdown renders the lines: the first with its medians, the others by the medians of
// their ratios to it, round by round.
func (c Costs) Markdown(runs []Run) string {
	if len(c.Lines) == 0 {
		return ""
	}
	t := table.NewWriter()
	header := table.Row{c.Title}
	for _, m := range costMetrics {
		header = append(header, m.Name)
	}
	t.AppendHeader(header)
	first := c.Lines[0]
	for i, line := range c.Lines {
		row, measured := table.Row{line.Says}, false
		for _, m := range costMetrics {
			of, to := line.AtARate, first.AtARate
			if m.full {
				of, to = line.Full, first.Full
			}
			g := Goal{Part: of.Part, Metric: m.Metric, Of: []string{of.Case}}
			format := m.Format
			if i > 0 {
				g.To, format = []string{to.Case}, "× %.2f"
			}
			v := g.Judge(runs)
			switch {
			case v.Lost:
				row, measured = append(row, "broke its promise"), true
			case v.Rounds == 0:
				row = append(row, "–")
			default:
				row, measured = append(row, english.Sprintf(format, v.Median)), true
			}
		}
		if measured {
			t.AppendRow(row)
		}
	}
	if t.Length() == 0 {
		return ""
	}
	return t.RenderMarkdown()
}

// GoalsMarkdown renders what became of goals.
func GoalsMarkdown(goals []Goal, runs []Run) string {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"measure", "goal", "measured", ""})
	for _, g := range goals {
		v := g.Judge(runs)
		t.AppendRow(table.Row{g.Measure, g.goal(), v.measured(), v.word()})
	}
	return t.RenderMarkdown()
}

func (g Goal) goal() string {
	sign := "≥"
	if g.AtMost {
		sign = "≤"
	}
	return sign + " " + g.value(g.Bound)
}

// value writes a ratio as such, and a figure with its unit.
func (g Goal) value(v float64) string {
	if len(g.To) > 0 {
		return fmt.Sprintf("%.3g", v)
	}
	return english.Sprintf(g.Metric.Format, v)
}

func (v Verdict) measured() string {
	if v.Rounds == 0 && v.Broken == "" {
		return "–"
	}
	var says []string
	if v.Rounds > 0 {
		pairs := "runs"
		if v.ToCase != "" {
			pairs = "paired runs"
		}
		says = append(says, fmt.Sprintf("**%s** (median of %d %s, %s–%s)", v.value(v.Median), v.Rounds, pairs, v.value(v.Min), v.value(v.Max)))
		if len(v.Of)+len(v.To) > 2 { // there was a choice
			chosen := v.OfCase
			if v.ToCase != "" {
				chosen += " against " + v.ToCase
			}
			says = append(says, chosen)
		}
	}
	if v.Broken != "" {
		says = append(says, "a promise broke: "+v.Broken)
	}
	return strings.Join(says, "; ")
}

func (v Verdict) word() string {
	switch {
	case v.Reached():
		return "reached"
	case v.Lost:
		return "counts for nothing"
	case v.Rounds == 0:
		return "not measured"
	case v.Rounds < MinRounds:
		return fmt.Sprintf("too few runs, %d are needed", MinRounds)
	default:
		return "not reached"
	}
}

// Embed puts text between two lines of a page, <!-- name:begin --> and <!-- name:end -->, in
// place of what is there. A page that has not each of them once, in that order, is an
// error.
func Embed(page []byte, name, text string) ([]byte, error) {
	begin, end := fmt.Appendf(nil, "<!-- %s:begin -->", name), fmt.Appendf(nil, "<!-- %s:end -->", name)
	before, rest, begun := bytes.Cut(page, begin)
	_, after, ended := bytes.Cut(rest, end)
	if !begun || !ended || bytes.Count(page, begin) != 1 || bytes.Count(page, end) != 1 {
		return nil, fmt.Errorf("the page must have the line %s once, and behind it once the line %s", begin, end)
	}
	return bytes.Join([][]byte{before, begin, []byte("\n\n" + strings.TrimSpace(text) + "\n\n"), end, after}, nil), nil
}

// EmbedFile does what [Embed] does to a file.
func EmbedFile(path, name, text string) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if page, err = Embed(page, name, text); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, page, 0o644)
}
