package suite

import (
	"fmt"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/delivered-twice/delivered-twice/benchmarks/results"
)

// english writes 10000 as 10,000.
var english = message.NewPrinter(language.English)

// Costs are what guarantees cost, engine by engine: the first line of each is the engine
// without a guarantee.
func Costs() []results.Costs {
	full := func(c string) results.At { return results.At{Part: throughput().Name, Case: c} }
	late := func(c string) results.At { return results.At{Part: latency().Name, Case: at(costRate, c)} }
	work := func(c string) results.At { return results.At{Part: inbox().Name, Case: c} }
	done := func(c string) results.At { return results.At{Part: inboxLatency().Name, Case: at(costRate, c)} }
	return []results.Costs{
		{Title: "Kafka to Kafka", Lines: []results.Cost{
			{Says: "at least once", Full: full("at-least-once, 10000 records"), AtARate: late("at-least-once")},
			{Says: "idempotent producer", Full: full("idempotent"), AtARate: late("idempotent")},
			{Says: "exactly once, one transaction in flight", Full: full(inFlight(1)), AtARate: late(inFlight(1) + ", 5 ms")},
			{Says: "exactly once, pipelined", Full: full(inFlight(4) + ", 10000 records"), AtARate: late(inFlight(4) + ", 5 ms")},
			{Says: "Kafka Streams, exactly_once_v2", Full: full(peerStreams + ", 100 ms"), AtARate: late(peerStreams + ", 10 ms")},
			{Says: "librdkafka, transactions", Full: full(peerConfluent), AtARate: late(peerConfluent)},
			{Says: "sarama, transactions", Full: full(peerSarama), AtARate: late(peerSarama)},
			{Says: "franz-go's GroupTransactSession", Full: full(peerSession), AtARate: late(peerSession)},
		}},
		{Title: "Kafka to Postgres", Lines: []results.Cost{
			{Says: "at least once", Full: work("none, 1 worker, 1000 events"), AtARate: done("none")},
			{Says: "inbox", Full: work("inbox, 1 worker, 1000 events"), AtARate: done("inbox")},
			{Says: "offsets in Postgres", Full: work("offsets"), AtARate: done("offsets")},
			{Says: "inbox + offsets", Full: work("both"), AtARate: done("both")},
			{Says: "inbox on a share group", Full: work("share"), AtARate: done("share")},
			{Says: "inbox, one event a transaction", Full: work("inbox, 1 worker, 1 event")},
			{Says: "a plain inbox, one event a transaction", Full: work(peerPlain)},
			{Says: "Watermill with its deduplicator", Full: work(peerWatermill)},
		}},
	}
}

// CostsMarkdown renders the tables of costs.
func CostsMarkdown(runs []results.Run) string {
	var tables []string
	for _, c := range Costs() {
		if t := c.Markdown(runs); t != "" {
			tables = append(tables, t)
		}
	}
	if len(tables) == 0 {
		return "Nothing of it was measured."
	}
	tables = append(tables, fmt.Sprintf("The first line of each table has figures, the others say how many times as much, as the median of paired runs. "+
		"events/s, broker requests, WAL bytes and CPU (of the program's own processes, for a million events) are those of a full topic; p99 is from an event's creation to when it could be seen, at %s events a second. –: not measured, or nothing to measure.", english.Sprint(costRate)))
	return strings.Join(tables, "\n\n")
}

// Page renders the page of a folder of results.
func Page(runs []results.Run, environments map[string]Environment) string {
	var b strings.Builder
	section := func(title, text string) { fmt.Fprintf(&b, "\n## %s\n\n%s\n", title, text) }
	b.WriteString("# What was measured\n\n")
	fmt.Fprintf(&b, "Written by `go run ./benchmarks/costs write docs/benchmarks` from [%s](%s), which has a line for each run. `benchmarks/run.sh` measures it all again, and `benchmarks/run.sh PART` one part.\n\n", RunsFile, RunsFile)
	fmt.Fprintf(&b, "Cases of a part are run in turns, round by round, and only runs of one round are compared. Warm-up is in no figure: each case is run once with a tenth of the events before the first round, and of each run the first fifth of the events is left out. Everything ran on one machine, brokers and Postgres included. What a contender left behind was audited; a run that lost or duplicated anything counts for nothing, and is told.\n")
	section("Goals", results.GoalsMarkdown(Goals(), runs))
	section("What a guarantee costs", CostsMarkdown(runs))
	for _, p := range Parts() {
		if text := p.markdown(runs, environments); text != "" {
			section(p.Name, text)
		}
	}
	return b.String()
}

// markdown renders a part; "" if it was not measured.
func (p Part) markdown(runs []results.Run, environments map[string]Environment) string {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"case", "events/s", "p50 ms", "p99 ms", "max ms", "requests a record", "WAL bytes a record", "CPU s a million", "RSS MB", "audit"})
	seen := make(map[string]bool)
	for _, r := range runs {
		if r.Part != p.Name || seen[r.Case] {
			continue
		}
		seen[r.Case] = true
		row := table.Row{r.Case}
		for _, f := range []struct {
			of     func(results.Run) float64
			format string
		}{
			{results.EventsPerSecond.Of, "%.0f"},
			{func(r results.Run) float64 { return r.P50 }, "%.1f"},
			{results.P99.Of, "%.1f"},
			{func(r results.Run) float64 { return r.Max }, "%.1f"},
			{results.Requests.Of, "%.2g"},
			{results.WAL.Of, "%.0f"},
			{results.CPU.Of, "%.2f"},
			{results.Memory.Of, "%.0f"},
		} {
			v := results.Goal{Part: p.Name, Metric: results.Metric{Of: f.of}, Of: []string{r.Case}}.Judge(runs)
			if v.Rounds == 0 {
				row = append(row, "–")
				continue
			}
			row = append(row, english.Sprintf(f.format, v.Median))
		}
		t.AppendRow(append(row, audits(runs, p.Name, r.Case)))
	}
	if t.Length() == 0 {
		return ""
	}
	text := "Medians of: " + p.Says + ".\n\n" + t.RenderMarkdown()
	if !p.Once {
		text = fmt.Sprintf("![%s](%s)\n\n", p.Says, PlotFile(p)) + text
	}
	if e, known := environments[p.Name]; known {
		text += "\n\nMeasured on " + e.String()
	}
	return text
}

// audits says what is to be said of the runs of a case: the last that broke its promise, or
// the last one.
func audits(runs []results.Run, part, name string) string {
	says := ""
	for _, r := range runs {
		if r.Part != part || r.Case != name {
			continue
		}
		if !r.Passed() {
			return fmt.Sprintf("round %d: %s", r.Round, r.Audit)
		}
		says = r.Audit
	}
	return says
}
