package report

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/delivered-twice/delivered-twice/internal/lane"
)

// matrixWidth is what a line of a matrix must fit into.
const matrixWidth = 120

// Matrix renders the report for people as lanes by faults: what was seen in each
// scope, every broken claim in words with the command that repeats it, and what all
// of it was measured on. No line of it is longer than 120 columns, but those with a
// command. Where the faults do not fit beside one another the rest of them follows
// in a second table. There are colours only where w is a terminal, and none where
// NO_COLOR is set.
func (r Report) Matrix(w io.Writer) error {
	r = r.published()
	p := painterOf(w)
	m := matrixOf(r)
	var b bytes.Buffer
	for first := 0; first < len(m.faults); {
		count := m.fitting(p, first)
		b.WriteString(m.terminal(p, first, count) + "\n\n")
		first += count
	}
	for i, f := range m.faults {
		fmt.Fprintf(&b, "%2d  %s\n", i+1, f)
	}
	b.WriteString("\n" + wrap(m.legend(), matrixWidth) + "\n")
	for _, broken := range m.broken(p) {
		b.WriteString(wrap(broken.what, matrixWidth))
		for _, how := range broken.how {
			b.WriteString("  " + how + "\n")
		}
	}
	for _, reason := range m.reasons() {
		b.WriteString(wrap(reason, matrixWidth))
	}
	b.WriteString(wrap(m.sum(), matrixWidth))
	for _, remark := range r.environment() {
		b.WriteString(wrap(remark, matrixWidth))
	}
	if _, err := w.Write(b.Bytes()); err != nil {
		return fmt.Errorf("write the matrix: %w", err)
	}
	return nil
}

// OfMatrix says that the report is one of lanes by faults, and not of a run side by
// side: that it has no plan, or, as older files have an empty one, what only a matrix has.
func (r Report) OfMatrix() bool {
	return r.Plan == nil || len(matrixOf(r).faults) > 1 || slices.ContainsFunc(r.Results, func(result Result) bool { return result.Seed != 0 || result.NotApplicable != "" })
}

// Markdown renders the same as Markdown, for a page. The same report gives the same
// text.
func (r Report) Markdown(w io.Writer) error {
	r = r.published()
	m := matrixOf(r)
	var b bytes.Buffer
	b.WriteString(m.markdown() + "\n\n" + m.legend() + "\n\n")
	for i, f := range m.faults {
		fmt.Fprintf(&b, "%d. %s\n", i+1, f)
	}
	b.WriteString("\n")
	for _, broken := range m.broken(false) {
		b.WriteString("- " + broken.what + "\n")
		for _, how := range broken.how {
			b.WriteString("  - `" + how + "`\n")
		}
	}
	for _, reason := range m.reasons() {
		b.WriteString("- " + reason + "\n")
	}
	b.WriteString("\n" + m.sum() + " " + strings.Join(r.environment(), " ") + "\n")
	if _, err := w.Write(b.Bytes()); err != nil {
		return fmt.Errorf("write the matrix as Markdown: %w", err)
	}
	return nil
}

const (
	markerBegin = "<!-- matrix:begin -->"
	markerEnd   = "<!-- matrix:end -->"
)

// Embed returns a page with what [Report.Markdown] renders between its two marker
// lines, <!-- matrix:begin --> and <!-- matrix:end -->, in place of what is there. A
// page that has not each of them once, in that order, is an error, and so is a report
// that is not [Report.OfMatrix]: nobody wants a matrix replaced by it.
func (r Report) Embed(page []byte) ([]byte, error) {
	if !r.OfMatrix() {
		return nil, errors.New("the results are those of compare run, and the page has a matrix: name a folder that compare matrix has kept")
	}
	before, rest, begun := bytes.Cut(page, []byte(markerBegin))
	_, after, ended := bytes.Cut(rest, []byte(markerEnd))
	if !begun || !ended || bytes.Count(page, []byte(markerBegin)) != 1 || bytes.Count(page, []byte(markerEnd)) != 1 {
		return nil, fmt.Errorf("the page must have the line %s once, and behind it once the line %s", markerBegin, markerEnd)
	}
	var b bytes.Buffer
	b.Write(before)
	b.WriteString(markerBegin + "\n\n")
	if err := r.Markdown(&b); err != nil {
		return nil, err
	}
	b.WriteString("\n" + markerEnd)
	b.Write(after)
	return b.Bytes(), nil
}

// EmbedFile does what [Report.Embed] does to a file.
func (r Report) EmbedFile(path string) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("embed the matrix: %w", err)
	}
	if page, err = r.Embed(page); err != nil {
		return fmt.Errorf("embed the matrix in %s: %w", path, err)
	}
	if err := os.WriteFile(path, page, 0o644); err != nil {
		return fmt.Errorf("embed the matrix: %w", err)
	}
	return nil
}

// matrix is a report by lane and fault, both in the order in which the report first
// has them.
type matrix struct {
	lanes  []string
	faults []lane.Fault
	// cells has one result a cell: of several the first that did not hold, if any.
	cells map[cellKey]Result
	all   []Result
}

type cellKey struct {
	lane  string
	fault lane.Fault
}

func matrixOf(r Report) matrix {
	m := matrix{cells: make(map[cellKey]Result), all: r.Results}
	for _, result := range r.Results {
		if !slices.Contains(m.lanes, result.Lane) {
			m.lanes = append(m.lanes, result.Lane)
		}
		if !slices.Contains(m.faults, result.Fault) {
			m.faults = append(m.faults, result.Fault)
		}
		key := cellKey{result.Lane, result.Fault}
		if before, run := m.cells[key]; !run || before.Held() {
			m.cells[key] = result
		}
	}
	return m
}

// results are all of them, in the order in which their cells are shown.
func (m matrix) results() []Result {
	place := func(r Result) int {
		return slices.Index(m.lanes, r.Lane)*len(m.faults) + slices.Index(m.faults, r.Fault)
	}
	all := slices.Clone(m.all)
	slices.SortStableFunc(all, func(a, b Result) int { return cmp.Compare(place(a), place(b)) })
	return all
}

// scopes are those in which a lane was counted under any fault; one without a name
// where it was under none, so that it still has a row.
func (m matrix) scopes(of string) []lane.Scope {
	all := make(map[lane.Scope]bool)
	for _, f := range m.faults {
		for s := range m.cells[cellKey{of, f}].Scopes {
			all[s] = true
		}
	}
	if len(all) == 0 {
		return []lane.Scope{""}
	}
	return inOrder(all)
}

// The marks of a cell. Marks of several outcomes stand side by side.
const (
	markOnce          = "="
	markNotApplicable = "·"
	markUnexpected    = "?"
	markBroken        = "!"
	markNoEvents      = "0"
	markFailed        = "X"
)

var marks = []struct {
	mark    string
	outcome lane.Outcome
}{
	{"L", lane.Lost}, {"D", lane.Duplicated}, {"A", lane.AbortedVisible}, {"R", lane.Reordered},
}

// cell is what was seen in one scope, "" where nothing was run; and whether a claim
// is broken there.
func (m matrix) cell(l string, f lane.Fault, s lane.Scope) (seen string, broken bool) {
	result, run := m.cells[cellKey{l, f}]
	if !run {
		return "", false
	}
	if result.Failure != "" && len(result.Scopes) == 0 {
		return markFailed, true
	}
	counted, applicable := result.Scopes[s]
	if !applicable {
		return markNotApplicable, false
	}
	for _, mark := range marks {
		if counted.Of(mark.outcome) > 0 {
			seen += mark.mark
		}
	}
	if seen == "" {
		seen = markOnce
	}
	if counted.Expected == 0 {
		seen = markNoEvents
	}
	if counted.Unexpected > 0 {
		seen += markUnexpected
	}
	return seen, !counted.Held
}

// legend explains those marks that there are.
func (m matrix) legend() string {
	parts := []string{markOnce + " every event once"}
	for _, mark := range marks {
		parts = append(parts, mark.mark+" "+string(mark.outcome))
	}
	parts = append(parts, markNotApplicable+" not applicable")
	for _, rare := range []struct {
		mark, means string
		in          func(Scope) bool
	}{
		{markUnexpected, "effects of events that nobody sent", func(s Scope) bool { return s.Unexpected > 0 }},
		{markNoEvents, "no events", func(s Scope) bool { return s.Expected == 0 }},
	} {
		if slices.ContainsFunc(m.results(), func(r Result) bool {
			return slices.ContainsFunc(slices.Collect(maps.Values(r.Scopes)), rare.in)
		}) {
			parts = append(parts, rare.mark+" "+rare.means)
		}
	}
	if slices.ContainsFunc(m.results(), func(r Result) bool { return r.Failure != "" }) {
		parts = append(parts, markFailed+" could not be carried through")
	}
	return strings.Join(parts, ", ") + "; " + markBroken + " a broken claim: something was seen that was not claimed, or was not seen that had to show."
}

// fitting is how many faults from first on a table may have: all, or so many that
// the tables that are needed have about as many each.
func (m matrix) fitting(p painter, first int) int {
	left := len(m.faults) - first
	for tables := 1; ; tables++ {
		count := (left + tables - 1) / tables
		if count == 1 || text.LongestLineLen(m.terminal(p, first, count)) <= matrixWidth {
			return count
		}
	}
}

// terminal renders so many faults from first on.
func (m matrix) terminal(p painter, first, count int) string {
	header := []any{"lane", "scope"}
	for n := range count {
		header = append(header, first+n+1)
	}
	t := newTable(header...)
	t.Style().Box.PaddingRight = " "
	for i, l := range m.lanes {
		if i > 0 {
			t.AppendSeparator()
		}
		scopes := m.scopes(l)
		// A long name goes on in the rows of further scopes.
		name := strings.SplitN(text.WrapSoft(l, laneWidth), "\n", len(scopes))
		for row, s := range scopes {
			cells := table.Row{"", brief(s)}
			if row < len(name) {
				cells[0] = strings.TrimRight(name[row], " ")
			}
			for _, f := range m.faults[first : first+count] {
				seen, broken := m.cell(l, f, s)
				switch {
				case broken:
					seen = p.loud(markBroken + seen)
				case seen == markOnce || seen == markNotApplicable:
					seen = p.quiet(seen)
				default:
					seen = p.paint(seen, text.FgYellow)
				}
				cells = append(cells, seen)
			}
			t.AppendRow(cells)
		}
	}
	return t.Render()
}

// laneWidth is that of the column with the lanes' names.
const laneWidth = 20

// brief leaves the kind of service out of the name of a table.
func brief(s lane.Scope) string {
	return strings.TrimPrefix(string(s), string(lane.Postgres)+"/")
}

func (m matrix) markdown() string {
	t := table.NewWriter()
	header := table.Row{"lane", "scope"}
	for n := range m.faults {
		header = append(header, n+1)
	}
	t.AppendHeader(header)
	for _, l := range m.lanes {
		shown := l
		for _, s := range m.scopes(l) {
			cells := table.Row{shown, s}
			for _, f := range m.faults {
				seen, broken := m.cell(l, f, s)
				if broken {
					seen = "**" + markBroken + seen + "**"
				}
				cells = append(cells, seen)
			}
			t.AppendRow(cells)
			shown = ""
		}
	}
	return t.RenderMarkdown()
}

// brokenClaim is one in words, and lines on how to look into it.
type brokenClaim struct {
	what string
	how  []string
}

func (m matrix) broken(p painter) (all []brokenClaim) {
	for _, result := range m.results() {
		var how []string
		if result.Repeat != "" {
			how = append(how, result.Repeat)
		}
		if result.Folder != "" {
			how = append(how, "kept in "+result.Folder)
		}
		for _, s := range inOrder(result.Scopes) {
			if !result.Scopes[s].Held {
				all = append(all, brokenClaim{result.verdict(p, s, " under "+string(result.Fault)), how})
			}
		}
		if result.Failure != "" {
			all = append(all, brokenClaim{fmt.Sprintf("%s under %s: %s", result.Lane, result.Fault, result.Failure), how})
		}
	}
	return all
}

// reasons says why cells are not applicable, each reason once.
func (m matrix) reasons() (sentences []string) {
	var order []string
	count := make(map[string]int)
	for _, result := range m.results() {
		if why := result.NotApplicable; why != "" {
			if count[why]++; count[why] == 1 {
				order = append(order, why)
			}
		}
	}
	for _, why := range order {
		sentences = append(sentences, fmt.Sprintf("Not applicable in %s: %s", Count(count[why], "cell"), why))
	}
	return sentences
}

func (m matrix) sum() string {
	var cells, injections, held, broken, notApplicable int
	var wall float64
	for _, result := range m.results() {
		cells++
		injections += result.Injections
		wall += result.WallS
		switch {
		case result.NotApplicable != "":
			notApplicable++
		case result.Held():
			held++
		default:
			broken++
		}
	}
	took := time.Duration(wall * float64(time.Second)).Round(time.Second)
	return english.Sprintf("%s, %s: %d held, %d broken, %d not applicable; the lanes ran for %s.",
		Count(cells, "cell"), Count(injections, "injection"), held, broken, notApplicable, took)
}
