package report_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/audit"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/report"
)

// cell is a result with the claims that are given with its counts.
func cell(name string, f lane.Fault, scopes map[lane.Scope]report.Scope) report.Result {
	return report.Result{Lane: name, Fault: f, Command: "go run ./cmd/x", Events: 2_000, Injections: 3, Scopes: scopes, WallS: 61.5}
}

// counted is what was counted of 2,000 events, against a claim.
func counted(says lane.Promise, mustShow bool, n lane.Counts) report.Scope {
	n.Expected = 2_000
	n.Once = 2_000 - n.Lost - n.Duplicated - n.AbortedVisible - n.Reordered
	return report.Scope{Counts: n, Claim: says, Held: lane.Claim{Says: says, MustShow: mustShow}.Held(n)}
}

// small is a matrix with everything that a cell can show.
func small() report.Report {
	once := counted(lane.ClaimsOnce, false, lane.Counts{})
	broken := cell("set", lane.Kill9, map[lane.Scope]report.Scope{
		lane.Postgres:      counted(lane.MayDuplicate, true, lane.Counts{Duplicated: 4, Lost: 3}),
		lane.PickTasks:     once,
		lane.LoyaltyPoints: counted(lane.MayDuplicate, true, lane.Counts{}),
	})
	broken.Seed = 11
	broken.Repeat = "go run ./cmd/compare matrix --lane=set --fault='kill -9' --seed=11 --database-url=postgres://u:s3cret@db/x"
	broken.Folder = "runs/x/set/kill-9"
	stranger := cell("set", "rewind", map[lane.Scope]report.Scope{
		lane.Postgres: counted(lane.ClaimsOnce, false, lane.Counts{Unexpected: 2}), lane.PickTasks: once, lane.LoyaltyPoints: once,
	})
	stranger.Unexpected = []audit.Effect{{EventID: "evt_x", Attempt: "set-0.1", Where: "pick_tasks", Position: "17"}}
	return report.Report{
		Environment: report.Environment{Kafka: "Apache Kafka 4.4.0", Postgres: "15.18", Go: "go1.26.8", CPUs: 2, Seed: 7,
			StartedAt: time.Date(2026, time.January, 5, 14, 2, 11, 0, time.UTC)},
		Results: []report.Result{
			cell("eos", lane.NoFault, map[lane.Scope]report.Scope{lane.Kafka: once, lane.KafkaUncommitted: once, lane.Order: once}),
			cell("eos", lane.Kill9, map[lane.Scope]report.Scope{
				lane.Kafka:            once,
				lane.KafkaUncommitted: counted(lane.MayDuplicateAndShowAborted, true, lane.Counts{Duplicated: 2, AbortedVisible: 5}),
				lane.Order:            counted(lane.MayReorder, true, lane.Counts{Reordered: 1}),
			}),
			broken,
			stranger,
			{Lane: "set", Fault: "no broker", NotApplicable: "it has none."},
			{Lane: "webhook | inbox", Fault: lane.Kill9, NotApplicable: "it has none."},
		},
	}
}

// matrix renders for a terminal, having looked at the lines, with every space and
// line break made a single space.
func matrix(t *testing.T, r report.Report) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, r.Matrix(&b))
	require.NotContains(t, b.String(), "\x1b", "no colours but on a terminal")
	for line := range strings.Lines(b.String()) {
		if !strings.HasPrefix(line, "  go run") {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, "\n")), 120, line)
		}
	}
	t.Log("\n" + b.String())
	return strings.Join(strings.Fields(b.String()), " ")
}

func TestMatrix(t *testing.T) {
	got := matrix(t, small())
	for _, want := range []string{
		"lane scope 1 2 3 4",
		"eos kafka = = ",
		"kafka-uncommitted = DA ",
		"order = R ",
		"set postgres !LD !=? ·",
		"loyalty_points != = ·",
		"pick_tasks = = ·",
		"webhook | inbox ·",
		"1 none 2 kill -9 3 rewind 4 no broker",
		"? effects of events that nobody sent",
		`BROKEN set / postgres under kill -9: 3 of 2,000 events lost, 4 of 2,000 events duplicated; the claim was "may duplicate". ` +
			"go run ./cmd/compare matrix --lane=set --fault='kill -9' --seed=11 --database-url=postgres://u:xxxxx@db/x kept in runs/x/set/kill-9",
		`BROKEN set / postgres/loyalty_points under kill -9: all 2,000 events once; the claim was "may duplicate".`,
		`BROKEN set / postgres under rewind: all 2,000 events once, and effects of events that nobody sent: 2 (such as "evt_x"`,
		"Not applicable in 2 cells: it has none.",
		"6 cells, 12 injections: 2 held, 2 broken, 2 not applicable; the lanes ran for 4m6s.",
		"Measured on Apache Kafka 4.4.0, PostgreSQL 15.18, go1.26.8, 2 CPUs; seed 7; started 2026-01-05 14:02:11 UTC.",
	} {
		require.Contains(t, got, want)
	}
	require.Equal(t, 3, strings.Count(got, "BROKEN"))
	require.NotContains(t, got, "0 no events")
}

func TestMatrixOfNothing(t *testing.T) {
	require.Contains(t, matrix(t, report.Report{}), "0 cells, 0 injections: 0 held")
	one := report.Report{Results: []report.Result{{Lane: "set", Fault: lane.Kill9, Injections: 1, NotApplicable: "it has none."}}}
	require.Contains(t, matrix(t, one), "1 cell, 1 injection: 0 held")
	require.Contains(t, matrix(t, one), "Not applicable in 1 cell: it has none.")
}

// big has as many lanes, faults and scopes as a matrix may get.
func big(lanes, faults int, scope report.Scope) report.Report {
	var r report.Report
	for l := range lanes {
		for f := range faults {
			r.Results = append(r.Results, cell(fmt.Sprintf("inbox, async commit, gated %d", l), lane.Fault(fmt.Sprintf("fault %d", f+1)), map[lane.Scope]report.Scope{
				lane.Kafka: scope, lane.KafkaUncommitted: scope, lane.Postgres: scope, lane.LoyaltyPoints: scope,
			}))
		}
	}
	return r
}

func TestMatrixFitsATerminal(t *testing.T) {
	t.Run("in one table", func(t *testing.T) {
		got := matrix(t, big(19, 25, counted(lane.ClaimsOnce, false, lane.Counts{Lost: 1})))
		require.Equal(t, 1, strings.Count(got, "lane scope"))
		require.Contains(t, got, "lane scope 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25")
		require.Equal(t, 19*4*25, strings.Count(got, " !L"))
	})
	t.Run("or in several that have about as many faults", func(t *testing.T) {
		got := matrix(t, big(2, 25, counted(lane.ClaimsOnce, false, lane.Counts{Lost: 1, Duplicated: 1, AbortedVisible: 1})))
		require.Contains(t, got, "lane scope 1 2 3 4 5 6 7 8 9 10 11 12 13 ─")
		require.Contains(t, got, "lane scope 14 15 16 17 18 19 20 21 22 23 24 25 ─")
		require.Equal(t, 2*4*25, strings.Count(got, " !LDA"))
	})
}

func markdown(t *testing.T, r report.Report) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, r.Markdown(&b))
	t.Log("\n" + b.String())
	return b.String()
}

func TestMarkdown(t *testing.T) {
	got := markdown(t, small())
	for _, want := range []string{
		"| lane | scope | 1 | 2 | 3 | 4 |\n| --- | --- | --- | --- | --- | --- |\n| eos | kafka | = | = |  |  |\n|  | kafka-uncommitted | = | DA |  |  |\n",
		"\n| set | postgres |  | **!LD** | **!=?** | · |\n|  | postgres/pick_tasks |  | = | = | · |\n|  | postgres/loyalty_points |  | **!=** | = | · |\n",
		"\n| webhook \\| inbox |  |  | · |  |  |\n",
		"\n1. none\n2. kill -9\n3. rewind\n4. no broker\n",
		"\n- BROKEN set / postgres under kill -9: 3 of 2,000 events lost",
		"\n  - `go run ./cmd/compare matrix --lane=set --fault='kill -9' --seed=11 --database-url=postgres://u:xxxxx@db/x`\n",
		"\n- Not applicable in 2 cells: it has none.\n",
		"6 cells, 12 injections: 2 held, 2 broken, 2 not applicable; the lanes ran for 4m6s. Measured on Apache Kafka 4.4.0,",
	} {
		require.Contains(t, got, want)
	}
}

// What is generated must be the same from the file, or a page could never be checked
// against it.
func TestMarkdownFromTheFile(t *testing.T) {
	dir := t.TempDir()
	r := small()
	require.NoError(t, r.Write(dir))
	kept, err := report.Read(dir)
	require.NoError(t, err)
	require.Equal(t, markdown(t, r), markdown(t, kept))
	require.Equal(t, r.Results[2].Seed, kept.Results[2].Seed)
	require.Equal(t, r.Results[2].Folder, kept.Results[2].Folder)
	require.Equal(t, r.Results[4].NotApplicable, kept.Results[4].NotApplicable)
}

func TestEmbed(t *testing.T) {
	r := small()
	path := filepath.Join(t.TempDir(), "README.md")
	require.NoError(t, os.WriteFile(path, []byte("# Above\n\n<!-- matrix:begin -->\nold\n<!-- matrix:end -->\n\nBelow\n"), 0o600))
	require.NoError(t, r.EmbedFile(path))
	page, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "# Above\n\n<!-- matrix:begin -->\n\n"+markdown(t, r)+"\n<!-- matrix:end -->\n\nBelow\n", string(page))
	again, err := r.Embed(page)
	require.NoError(t, err)
	require.Equal(t, string(page), string(again), "a page that is up to date stays as it is")

	_, err = headline(t).Embed(page)
	require.ErrorContains(t, err, "compare matrix", "a run replaces no matrix")
	one := headline(t)
	one.Plan, one.Results = []report.Kill{}, one.Results[:1]
	require.False(t, one.OfMatrix(), "a run in which nothing was killed")
	one.Plan = nil
	require.True(t, one.OfMatrix(), "a matrix of one cell")

	for name, page := range map[string]string{
		"no markers":     "# Above\n",
		"no end":         "<!-- matrix:begin -->\n",
		"no begin":       "<!-- matrix:end -->\n",
		"the wrong way":  "<!-- matrix:end -->\n<!-- matrix:begin -->\n",
		"several begins": "<!-- matrix:begin -->\n<!-- matrix:begin -->\n<!-- matrix:end -->\n",
		"several ends":   "<!-- matrix:begin -->\n<!-- matrix:end -->\n<!-- matrix:end -->\n",
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(path, []byte(page), 0o600))
			require.ErrorContains(t, r.EmbedFile(path), "<!-- matrix:begin -->")
			left, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, page, string(left), "what cannot be done changes nothing")
		})
	}
}
