package results

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Metric is a figure of a run.
type Metric struct {
	Name string
	Of   func(Run) float64
	// More says that more of it is better.
	More bool
	// Format writes a value, unit included.
	Format string
}

// The figures that are compared.
var (
	EventsPerSecond = Metric{"events/s", func(r Run) float64 { return r.EventsPerSecond }, true, "%.0f/s"}
	P99             = Metric{"p99", func(r Run) float64 { return r.P99 }, false, "%.1f ms"}
	Requests        = Metric{"broker requests", func(r Run) float64 { return r.RequestsPerRecord }, false, "%.3g"}
	WAL             = Metric{"WAL bytes", func(r Run) float64 { return r.WALBytesPerRecord }, false, "%.0f"}
	CPU             = Metric{"CPU", func(r Run) float64 { return r.CPUSecondsPerMillion }, false, "%.2f s"}
	Memory          = Metric{"memory", func(r Run) float64 { return float64(r.MaxRSSBytes) / 1e6 }, false, "%.0f MB"}
	// TransactionTime is what a full transaction takes, those in flight at the same time
	// counted one after the other.
	TransactionTime = Metric{"time a transaction", func(r Run) float64 {
		if r.EventsPerSecond == 0 {
			return 0
		}
		return 1000 * float64(r.Batch) / r.EventsPerSecond
	}, false, "%.2f ms"}
)

// Goal is what one figure is to reach, by itself or against another contender's in the
// same round.
type Goal struct {
	// Part is where its runs are, and Measure says it in words.
	Part, Measure string
	Metric        Metric
	// Of is the case that is to reach it. Of several, it is the best by its median; with
	// All, the worst.
	Of  []string
	All bool
	// To is what it is divided by, of several cases the best; none: by nothing.
	To     []string
	AtMost bool
	Bound  float64
}

// MinRounds are how many paired rounds a verdict takes.
const MinRounds = 5

// Verdict is what became of a goal.
type Verdict struct {
	Goal
	// OfCase and ToCase are the cases that were chosen.
	OfCase, ToCase string
	// Rounds are how many were compared, and Median, Min and Max are of their ratios, or
	// of the figures where nothing was divided by. A round in which a run has no such
	// figure, or did not pass its audit, is not compared.
	Rounds           int
	Median, Min, Max float64
	// Broken is a run of the goal's cases whose audit did not pass, "" if all did; Lost
	// says that it is one of those that are to reach the goal.
	Broken string
	Lost   bool
}

// Judge compares. Where nothing was measured, the verdict has no rounds.
func (g Goal) Judge(runs []Run) Verdict {
	v := Verdict{Goal: g}
	for _, r := range runs {
		if of := slices.Contains(g.Of, r.Case); r.Part == g.Part && !r.Passed() && (of || slices.Contains(g.To, r.Case)) {
			v.Broken, v.Lost = fmt.Sprintf("%s, round %d: %s", r.Case, r.Round, r.Audit), v.Lost || of
		}
	}
	rounds := g.rounds(runs)
	best := func(a, b string) int {
		c := cmp.Compare(rounds.median(a), rounds.median(b))
		if g.Metric.More {
			c = -c
		}
		return c
	}
	of, to := rounds.measured(g.Of), rounds.measured(g.To)
	if len(of) == 0 || len(g.To) > 0 && len(to) == 0 {
		return v
	}
	v.OfCase = slices.MinFunc(of, best)
	if g.All {
		v.OfCase = slices.MaxFunc(of, best)
	}
	if len(to) > 0 {
		v.ToCase = slices.MinFunc(to, best)
	}
	var ratios []float64
	for round, value := range rounds[v.OfCase] {
		by := 1.0
		if v.ToCase != "" {
			by = rounds[v.ToCase][round]
		}
		if by > 0 {
			ratios = append(ratios, value/by)
		}
	}
	v.Rounds = len(ratios)
	if v.Rounds > 0 {
		v.Median, v.Min, v.Max = median(ratios), slices.Min(ratios), slices.Max(ratios)
	}
	return v
}

// Reached says whether enough rounds were compared, who is to reach the goal broke no
// claim, and the median is on the right side of the bound.
func (v Verdict) Reached() bool {
	if v.Rounds < MinRounds || v.Lost {
		return false
	}
	if v.AtMost {
		return v.Median <= v.Bound
	}
	return v.Median >= v.Bound
}

// byRound has the figures of each case that has one, by round.
type byRound map[string]map[int]float64

func (g Goal) rounds(runs []Run) byRound {
	rounds := make(byRound)
	for _, r := range runs {
		value := g.Metric.Of(r)
		if r.Part != g.Part || !r.Passed() || value <= 0 {
			continue
		}
		if rounds[r.Case] == nil {
			rounds[r.Case] = make(map[int]float64)
		}
		rounds[r.Case][r.Round] = value
	}
	return rounds
}

// measured returns those of the cases that have a figure.
func (r byRound) measured(cases []string) []string {
	return slices.DeleteFunc(slices.Clone(cases), func(c string) bool { return len(r[c]) == 0 })
}

func (r byRound) median(of string) float64 {
	var values []float64
	for _, v := range r[of] {
		values = append(values, v)
	}
	return median(values)
}

// median of at least one value.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// Label says the metric with its unit.
func (m Metric) Label() string {
	_, unit, _ := strings.Cut(m.Format, " ")
	if unit == "" {
		return m.Name
	}
	return m.Name + ", " + unit
}

// Summary is what the runs of a case have in common.
type Summary struct {
	Case             string
	Median, Min, Max float64
}

// Summarize returns the cases of a part in the order in which they were run first, without
// those that have no such figure.
func Summarize(runs []Run, part string, m Metric) []Summary {
	var summaries []Summary
	seen := make(map[string]bool)
	for _, r := range runs {
		if r.Part != part || seen[r.Case] {
			continue
		}
		seen[r.Case] = true
		if v := (Goal{Part: part, Metric: m, Of: []string{r.Case}}).Judge(runs); v.Rounds > 0 {
			summaries = append(summaries, Summary{r.Case, v.Median, v.Min, v.Max})
		}
	}
	return summaries
}
