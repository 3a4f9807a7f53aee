package report

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/term"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/delivered-twice/delivered-twice/internal/lane"
)

// width is what a line must fit into.
const width = 100

// english writes 20000 as 20,000.
var english = message.NewPrinter(language.English)

// Count writes how many there are of what a noun says that takes an s in the plural:
// 1 cell, 20,000 cells.
func Count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return english.Sprintf("%d %s", n, noun)
}

// Table renders the report for people: what became of the effects in Kafka, in Postgres
// and at a third party in a word each, what was counted in each scope, what it cost, and
// one sentence a scope on why that is so. No line is longer than 100
// columns. There are colours only where w is a terminal, and none where NO_COLOR
// is set.
func (r Report) Table(w io.Writer) error {
	r = r.published()
	p := painterOf(w)
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s\n\n%s\n\n%s\n\n", r.summary(p), r.grid(p), r.costs())
	for _, result := range r.Results {
		for _, s := range inOrder(result.Scopes) {
			b.WriteString(wrap(result.verdict(p, s, ""), width))
		}
	}
	b.WriteString("\n")
	for _, remark := range r.remarks() {
		b.WriteString(wrap(remark, width))
	}
	if _, err := w.Write(b.Bytes()); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	return nil
}

// painter colours text, or leaves it as it is.
type painter bool

// painterOf colours where w is a terminal.
func painterOf(w io.Writer) painter {
	f, isFile := w.(*os.File)
	return painter(isFile && term.IsTerminal(int(f.Fd())))
}

func (p painter) paint(s string, colours ...text.Color) string {
	if !p {
		return s
	}
	return text.Colors(colours).Sprint(s)
}

func (p painter) loud(s string) string  { return p.paint(s, text.FgHiRed, text.Bold) }
func (p painter) quiet(s string) string { return p.paint(s, text.Faint) }

// count shows nothing of note quietly, what was claimed to happen in yellow, and
// what was not as loud as can be.
func (p painter) count(n int, held bool) string {
	s := english.Sprint(n)
	switch {
	case n == 0:
		return p.quiet(s)
	case held:
		return p.paint(s, text.FgYellow)
	default:
		return p.loud(s)
	}
}

// summary says in a word what became of each approach's effects in each place.
func (r Report) summary(p painter) string {
	places := slices.DeleteFunc([]lane.Scope{lane.Kafka, lane.Postgres, lane.HTTP}, func(s lane.Scope) bool {
		return !slices.ContainsFunc(r.Results, func(result Result) bool { _, there := result.Scopes[s]; return there })
	})
	header := []any{"approach"}
	for _, s := range places {
		header = append(header, s)
	}
	t := newTable(header...)
	setColumns(t, wideName, 1, 0) // no figures
	for _, result := range r.Results {
		row := table.Row{result.Lane}
		for _, s := range places {
			word := ""
			if counted, there := result.Scopes[s]; there {
				word = p.word(counted)
			}
			row = append(row, word)
		}
		t.AppendRow(row)
	}
	return render(t)
}

// word names the outcomes that there were.
func (p painter) word(s Scope) string {
	var words []string
	for _, mark := range marks {
		if s.Of(mark.outcome) > 0 {
			words = append(words, string(mark.outcome))
		}
	}
	switch {
	case !s.Held:
		return p.loud(strings.Join(append(words, "BROKEN"), ", "))
	case len(words) == 0:
		return string(lane.Once)
	default:
		return p.paint(strings.Join(words, ", "), text.FgYellow)
	}
}

func (r Report) grid(p painter) string {
	header := []any{"approach", "scope", "expected", "once", "lost", "duplicated", "aborted-\nvisible", "claim"}
	approachWidth, ordered := longName, r.watchesOrder()
	if ordered {
		header = []any{"approach", "scope", "expected", "once", "lost", "dupli-\ncated", "aborted-\nvisible", "re-\nordered", "claim"}
		approachWidth = 18 // or the further column would make it too wide
	}
	t := newTable(header...)
	setColumns(t, approachWidth, 3, len(header)-1)
	for i, result := range r.Results {
		if i > 0 {
			t.AppendSeparator()
		}
		// The lane's name stands in its first rows and the fault in the next.
		name := text.WrapSoft(result.Lane, approachWidth)
		if result.Fault != lane.NoFault {
			name += "\n" + p.quiet("under "+string(result.Fault))
		}
		approach := strings.SplitN(name, "\n", len(result.Scopes))
		for row, scope := range inOrder(result.Scopes) {
			s := result.Scopes[scope]
			first := ""
			if row < len(approach) {
				first = strings.TrimRight(approach[row], " ")
			}
			claim := "held"
			if !s.Held {
				claim = p.loud("BROKEN")
			}
			cells := table.Row{first, scope, english.Sprint(s.Expected), english.Sprint(s.Once),
				p.count(s.Lost, s.Held), p.count(s.Duplicated, s.Held), p.count(s.AbortedVisible, s.Held)}
			if ordered {
				cells = append(cells, p.count(s.Reordered, s.Held))
			}
			t.AppendRow(append(cells, claim))
		}
	}
	return render(t)
}

// watchesOrder says whether the order of effects was audited anywhere.
func (r Report) watchesOrder() bool {
	return slices.ContainsFunc(r.Results, func(result Result) bool {
		_, watched := result.Scopes[lane.Order]
		return watched
	})
}

func (r Report) costs() string {
	t := newTable("approach", "events/s", "p50 ms", "p99 ms", "max ms", "recovery ms", "kills")
	setColumns(t, wideName, 2, 7)
	for _, result := range r.Results {
		latency := []any{notAvailable, notAvailable, notAvailable}
		if l := result.LatencyMS; l != nil {
			latency = []any{english.Sprintf("%.1f", l.P50), english.Sprintf("%.1f", l.P99), english.Sprintf("%.1f", l.Max)}
		}
		recovery := notAvailable
		if result.RecoveryMS != nil {
			recovery = english.Sprintf("%.1f", *result.RecoveryMS)
		}
		row := append(table.Row{result.Lane, english.Sprintf("%.0f", result.Throughput)}, latency...)
		t.AppendRow(append(row, recovery, r.kills(result.Lane)))
	}
	return render(t)
}

const notAvailable = "n/a"

// kills says how many of a lane's planned deaths came about.
func (r Report) kills(of string) string {
	planned, fired := 0, 0
	for _, k := range r.Plan {
		if k.Lane != of {
			continue
		}
		planned++
		if k.Fired {
			fired++
		}
	}
	if fired == planned {
		return english.Sprint(fired)
	}
	return english.Sprintf("%d of %d", fired, planned)
}

// verdict is one sentence on what was seen in a scope, under whatever is said.
func (r Result) verdict(p painter, scope lane.Scope, under string) string {
	s := r.Scopes[scope]
	cell := fmt.Sprintf("%s / %s%s", r.Lane, scope, under)
	found := phrase(s.Counts)
	if s.Unexpected > 0 && len(r.Unexpected) > 0 {
		found += fmt.Sprintf(" (such as %s)", r.Unexpected[0])
	}
	// An older file may speak of a lane that has left the catalogue.
	l, _ := lane.Find(r.Lane)
	claim, known := l.Claim(r.Fault, scope)
	because := "."
	if known {
		because = ", because " + claim.Why
	}
	if s.Held {
		return cell + ": " + found + because
	}
	claimed := fmt.Sprintf("the claim was %q", s.Claim)
	switch {
	case claim.Shows != 0:
		claimed += fmt.Sprintf(", of which %q had to show", claim.Shows)
	case claim.MustShow:
		claimed += " and had to show"
	}
	return fmt.Sprintf("%s %s: %s; %s%s", p.loud("BROKEN"), cell, found, claimed, because)
}

// phrase says in words what was counted.
func phrase(n lane.Counts) string {
	var parts []string
	for _, outcome := range []struct {
		name lane.Outcome
		n    int
	}{
		{lane.Lost, n.Lost}, {lane.Duplicated, n.Duplicated}, {lane.AbortedVisible, n.AbortedVisible}, {lane.Reordered, n.Reordered},
	} {
		if outcome.n > 0 {
			parts = append(parts, english.Sprintf("%d of %s %s", outcome.n, Count(n.Expected, "event"), outcome.name))
		}
	}
	if len(parts) == 0 {
		parts = append(parts, "all "+Count(n.Expected, "event")+" once")
	}
	if n.Unexpected > 0 {
		parts = append(parts, english.Sprintf("and effects of events that nobody sent: %d", n.Unexpected))
	}
	return strings.Join(parts, ", ")
}

// environment says what the figures were measured on.
func (r Report) environment() []string {
	e := r.Environment
	kafka := e.Kafka
	if e.Brokers > 1 {
		kafka += fmt.Sprintf(" (%d brokers)", e.Brokers)
	}
	remarks := []string{fmt.Sprintf("Measured on %s, PostgreSQL %s, %s, %s; seed %d; started %s.",
		kafka, e.Postgres, e.Go, Count(e.CPUs, "CPU"), e.Seed, e.StartedAt.UTC().Format(time.DateTime+" MST"))}
	if strings.HasPrefix(e.Kafka, "kfake") {
		remarks = append(remarks, "kfake imitates a Kafka broker: what it shows should be seen on Apache Kafka too before it is believed.")
	}
	return remarks
}

// remarks are what a reader must know to take the figures for what they are.
func (r Report) remarks() []string {
	remarks := r.environment()
	for _, result := range r.Results {
		if result.LatencyMS == nil {
			remarks = append(remarks, result.Lane+": no latency, as the service keeps no time of its commits "+
				"(PostgreSQL does with track_commit_timestamp = on).")
		}
		if result.DeadLetters > 0 {
			remarks = append(remarks, fmt.Sprintf("%s: given up on and stored as dead letters: %s.",
				result.Lane, Count(result.DeadLetters, "event")))
		}
	}
	return remarks
}

func newTable(header ...any) table.Writer {
	t := table.NewWriter()
	style := table.StyleLight
	style.Format.Header = text.FormatDefault
	style.Options.DrawBorder = false
	style.Options.SeparateColumns = false
	style.Box.PaddingLeft = ""
	style.Box.PaddingRight = padding
	t.SetStyle(style)
	t.AppendHeader(header)
	t.SuppressTrailingSpaces()
	return t
}

const padding = "  "

// render leaves out what is ruled under the padding of the last column.
func render(t table.Writer) string {
	rule := table.StyleLight.Box.MiddleHorizontal
	return strings.ReplaceAll(t.Render(), strings.Repeat(rule, len(padding))+"\n", "\n")
}

// How wide the name of an approach may be: usually, and where there is room.
const (
	longName = 22
	wideName = 36
)

// setColumns puts the figures of columns first to last under one another, and
// keeps a long name from making the table wider than it may be.
func setColumns(t table.Writer, nameWidth, first, last int) {
	columns := []table.ColumnConfig{{Number: 1, WidthMax: nameWidth, WidthMaxEnforcer: text.WrapSoft}}
	for n := first; n <= last; n++ {
		columns = append(columns, table.ColumnConfig{Number: n, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(columns)
}

// wrap breaks a sentence into lines of that width, all but the first indented, and
// closes it with a newline.
func wrap(sentence string, width int) string {
	const indent = "  "
	var b strings.Builder
	for i, line := range strings.Split(text.WrapSoft(sentence, width-len(indent)), "\n") {
		if i > 0 {
			b.WriteString(indent)
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

// inOrder returns the scopes of which there is something, in the order in which they
// are shown.
func inOrder[V any](of map[lane.Scope]V) []lane.Scope {
	return slices.DeleteFunc(lane.Scopes(), func(s lane.Scope) bool {
		_, there := of[s]
		return !there
	})
}
