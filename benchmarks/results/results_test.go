package results_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/benchmarks/results"
)

var update = flag.Bool("update", false, "rewrite golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

// rounds makes a run of each speed, in rounds from 1 on.
func rounds(name string, speeds ...float64) []results.Run {
	var runs []results.Run
	for i, speed := range speeds {
		runs = append(runs, results.Run{Part: "p", Case: name, Round: i + 1, Events: 100, Batch: 10, EventsPerSecond: speed, Audit: results.Passed})
	}
	return runs
}

func all(cases ...[]results.Run) (runs []results.Run) {
	for _, c := range cases {
		runs = append(runs, c...)
	}
	return runs
}

func TestWhatIsWrittenCanBeRead(t *testing.T) {
	runs := []results.Run{
		{Part: "latency", Case: "eos, 2 in flight", Round: 1, Contender: "keos", Settings: `command=eos-pipeline --x="a,b"; linger=0`, Batch: 10, InFlight: 2, Instances: 1, Rate: 1_000, Events: 20_000,
			EventsPerSecond: 1_000.5, P50: 10.25, P99: 33, Max: 60.5, RequestsPerRecord: 0.004, WALBytesPerRecord: 540, CPUSecondsPerMillion: 7.5, MaxRSSBytes: 77_000_000, Audit: results.Passed},
		{Part: "latency", Case: "sarama", Round: 1, Events: 20_000, Audit: "failed: it \"ended\"\nby itself"},
	}
	path := filepath.Join(t.TempDir(), "results.csv")
	require.NoError(t, results.WriteFile(path, runs))
	read, err := results.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, runs, read)

	var b bytes.Buffer
	require.NoError(t, results.Write(&b, runs))
	golden(t, "results.csv", b.String())

	none, err := results.ReadFile(filepath.Join(t.TempDir(), "none.csv"))
	require.NoError(t, err)
	require.Empty(t, none)
	require.Empty(t, results.Without(runs, "latency"))
	require.Equal(t, runs, results.Without(runs, "throughput"))
}

func TestGoals(t *testing.T) {
	fast, slow := rounds("fast", 400, 100, 440, 420, 410), rounds("slow", 200, 50, 200, 210, 100)
	goal := results.Goal{Part: "p", Measure: "fast against slow", Metric: results.EventsPerSecond, Of: []string{"fast"}, To: []string{"slow"}, Bound: 2}
	broken := rounds("fast", 400, 100, 440, 420, 410)
	broken[2].Audit = "lost 1"
	lossy := rounds("slow", 200, 50, 200, 210, 100)
	lossy[4].Audit = "duplicated 7"

	for name, c := range map[string]struct {
		change   func(*results.Goal)
		runs     []results.Run
		median   float64
		min, max float64
		rounds   int
		reached  bool
	}{
		// Round by round 2, 2, 2.2, 2, 4.1; the ratio of medians would be 2.05.
		"ratios of one round each":   {runs: all(fast, slow), median: 2, min: 2, max: 4.1, rounds: 5, reached: true},
		"the order of lines":         {runs: all(slow, fast), median: 2, min: 2, max: 4.1, rounds: 5, reached: true},
		"not reached":                {change: func(g *results.Goal) { g.Bound = 2.01 }, runs: all(fast, slow), median: 2, min: 2, max: 4.1, rounds: 5},
		"at most":                    {change: func(g *results.Goal) { g.AtMost = true }, runs: all(fast, slow), median: 2, min: 2, max: 4.1, rounds: 5, reached: true},
		"too few rounds":             {runs: all(fast[:4], slow), median: 2, min: 2, max: 2.2, rounds: 4},
		"not compared":               {runs: fast},
		"another part":               {change: func(g *results.Goal) { g.Part = "q" }, runs: all(fast, slow)},
		"no figure":                  {change: func(g *results.Goal) { g.Metric = results.P99 }, runs: all(fast, slow)},
		"a promise of ours broke":    {runs: all(broken, slow), median: 2, min: 2, max: 4.1, rounds: 4},
		"a promise of theirs broke":  {runs: all(fast, lossy), median: 2, min: 2, max: 2.2, rounds: 4},
		"by itself":                  {change: func(g *results.Goal) { g.To, g.Bound = nil, 410 }, runs: all(fast, slow), median: 410, min: 100, max: 440, rounds: 5, reached: true},
		"less of it is better":       {change: func(g *results.Goal) { g.Metric, g.AtMost, g.Bound = results.TransactionTime, true, 0.5 }, runs: all(fast, slow), median: 0.5, min: 100 / 410., max: 0.5, rounds: 5, reached: true},
		"the best of several":        {change: func(g *results.Goal) { g.Of = []string{"slow", "fast"} }, runs: all(fast, slow), median: 2, min: 2, max: 4.1, rounds: 5, reached: true},
		"against the best":           {change: func(g *results.Goal) { g.To = []string{"slow", "fast"} }, runs: all(fast, slow), median: 1, min: 1, max: 1, rounds: 5},
		"all, so the worst":          {change: func(g *results.Goal) { g.Of, g.To, g.All, g.Bound = []string{"slow", "fast"}, nil, true, 200 }, runs: all(fast, slow), median: 200, min: 50, max: 210, rounds: 5, reached: true},
		"one that was not measured":  {change: func(g *results.Goal) { g.Of = []string{"none", "fast"} }, runs: all(fast, slow), median: 2, min: 2, max: 4.1, rounds: 5, reached: true},
		"the middle of an even many": {runs: all(fast[1:3], slow), median: 2.1, min: 2, max: 2.2, rounds: 2},
	} {
		t.Run(name, func(t *testing.T) {
			g := goal
			if c.change != nil {
				c.change(&g)
			}
			v := g.Judge(c.runs)
			require.Equal(t, c.rounds, v.Rounds)
			require.InDelta(t, c.median, v.Median, 1e-9)
			require.InDelta(t, c.min, v.Min, 1e-9)
			require.InDelta(t, c.max, v.Max, 1e-9)
			require.Equal(t, c.reached, v.Reached())
		})
	}
}

func TestARunThatBrokeItsPromiseIsTold(t *testing.T) {
	mine, theirs := rounds("mine", 1, 1, 1, 1, 1, 1), rounds("theirs", 2, 2, 2, 2, 2, 2)
	goal := results.Goal{Part: "p", Metric: results.EventsPerSecond, Of: []string{"mine"}, To: []string{"theirs"}, Bound: 0.5}

	theirs[3].Audit = "lost 3"
	v := goal.Judge(all(mine, theirs))
	require.Equal(t, "theirs, round 4: lost 3", v.Broken)
	require.True(t, v.Reached(), "five rounds are left, and nothing of ours is wrong")

	mine[0].Audit = "duplicated 1"
	v = goal.Judge(all(mine, theirs))
	require.True(t, v.Lost)
	require.False(t, v.Reached())
}

func TestPages(t *testing.T) {
	runs := all(rounds("plain", 100, 100, 100, 100, 100), rounds("exact", 90, 95, 97, 98, 99), rounds("peer", 30, 31, 32, 33, 34))
	for i := range runs {
		runs[i].P99, runs[i].CPUSecondsPerMillion = 1000/runs[i].EventsPerSecond, 2
	}
	runs[12].Audit = "lost 1"
	goals := []results.Goal{
		{Part: "p", Measure: "exact against plain", Metric: results.EventsPerSecond, Of: []string{"exact"}, To: []string{"plain"}, Bound: 0.97},
		{Part: "p", Measure: "exact against the peer", Metric: results.EventsPerSecond, Of: []string{"exact"}, To: []string{"peer"}, Bound: 2.5},
		{Part: "p", Measure: "p99 of the best", Metric: results.P99, Of: []string{"exact", "plain"}, To: []string{"peer"}, AtMost: true, Bound: 1. / 3},
		{Part: "p", Measure: "exact by itself", Metric: results.EventsPerSecond, Of: []string{"exact"}, Bound: 1_000},
		{Part: "p", Measure: "the peer by itself", Metric: results.EventsPerSecond, Of: []string{"peer"}, Bound: 1},
		{Part: "q", Measure: "never measured", Metric: results.Memory, Of: []string{"exact"}, AtMost: true, Bound: 150},
	}
	golden(t, "goals.md", results.GoalsMarkdown(goals, runs)+"\n")

	costs := results.Costs{Title: "Kafka to Kafka"}
	for _, name := range []string{"plain", "exact", "peer", "absent"} {
		costs.Lines = append(costs.Lines, results.Cost{Says: "it is " + name, Full: results.At{Part: "p", Case: name}, AtARate: results.At{Part: "p", Case: name}})
	}
	golden(t, "costs.md", costs.Markdown(runs)+"\n")
	require.Empty(t, costs.Markdown(nil))
}

func TestEmbed(t *testing.T) {
	page := "# Above\n\n<!-- costs:begin -->\nold\n<!-- costs:end -->\n\nBelow\n"
	path := filepath.Join(t.TempDir(), "README.md")
	require.NoError(t, os.WriteFile(path, []byte(page), 0o600))
	for range 2 { // again changes nothing
		require.NoError(t, results.EmbedFile(path, "costs", "new\n"))
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, "# Above\n\n<!-- costs:begin -->\n\nnew\n\n<!-- costs:end -->\n\nBelow\n", string(got))
	}
	for name, bad := range map[string]string{
		"no markers":    "# Above\n",
		"no end":        "<!-- costs:begin -->\n",
		"the wrong way": "<!-- costs:end -->\n<!-- costs:begin -->\n",
		"two begins":    "<!-- costs:begin -->\n" + page,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := results.Embed([]byte(bad), "costs", "new")
			require.ErrorContains(t, err, "<!-- costs:begin -->")
		})
	}
}

func TestGoBenchmarksAreRuns(t *testing.T) {
	output := `kafka: Apache Kafka 4.4.0
goos: linux
BenchmarkGrowth/ids=random/rows=100000-2   	  300000	  12000 ns/op	  83000 events/s	  12.5 p99-ms	  540 WAL-B/op
BenchmarkGrowth/ids=random/rows=1000000-2  	  300000	  14000 ns/op	  71000 events/s
BenchmarkGrowth/ids=random/rows=100000-2   	  300000	  13000 ns/op	  80000 events/s	  13 p99-ms
PASS
`
	runs, err := results.FromGo(strings.NewReader(output), "growth")
	require.NoError(t, err)
	require.Len(t, runs, 3)
	require.Equal(t, results.Run{Part: "growth", Case: "ids=random/rows=100000", Round: 1, Contender: "BenchmarkGrowth",
		Settings: "Growth/ids=random/rows=100000-2", Events: 300_000, EventsPerSecond: 83_000, P99: 12.5, WALBytesPerRecord: 540, Audit: results.Passed}, runs[0])
	require.Equal(t, "ids=random/rows=1000000", runs[1].Case)
	require.Equal(t, 2, runs[2].Round)

	_, err = results.FromGo(strings.NewReader("PASS\n"), "growth")
	require.ErrorContains(t, err, "no benchmarks")
}
