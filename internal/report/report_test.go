package report_test

import (
	"bytes"
	"encoding/json"
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

func ms(f float64) *float64 { return &f }

// The lanes of a run.
const (
	eosLane   = lane.EOSPostgres + " + http"
	inboxLane = lane.InboxDirectProduce + " + http"
)

// headline is a run in which everything went as claimed.
func headline(t *testing.T) report.Report {
	t.Helper()
	return report.Report{
		Environment: report.Environment{
			Kafka: "kfake v0.0.0-20260918054303-01f206a7e32c", Postgres: "15.18", Go: "go1.26.8", CPUs: 2, Seed: 7,
			StartedAt: time.Date(2026, time.January, 5, 14, 2, 11, 0, time.UTC),
		},
		Plan: []report.Kill{
			{Lane: eosLane, Instance: 1, Step: "worked", Passing: 3, Fired: true, RecoveryMS: ms(412.3456)},
			{Lane: eosLane, Instance: 0, Step: "committed", Passing: 90, Fired: false},
			{Lane: inboxLane, Instance: 0, Step: "worked", Passing: 2, Fired: true, RecoveryMS: ms(388)},
		},
		Results: []report.Result{
			result(t, eosLane, map[lane.Scope]lane.Counts{
				lane.Kafka:            {Expected: 20_000, Once: 20_000},
				lane.KafkaUncommitted: {Expected: 20_000, Once: 19_880, AbortedVisible: 120},
				lane.Postgres:         {Expected: 20_000, Once: 19_966, Duplicated: 34},
				lane.HTTP:             {Expected: 20_000, Once: 19_966, Duplicated: 34},
			}),
			result(t, inboxLane, map[lane.Scope]lane.Counts{
				lane.Kafka:            {Expected: 20_000, Once: 19_950, Duplicated: 50},
				lane.KafkaUncommitted: {Expected: 20_000, Once: 19_950, Duplicated: 50},
				lane.Postgres:         {Expected: 20_000, Once: 20_000},
				lane.HTTP:             {Expected: 20_000, Once: 19_940, Duplicated: 60},
			}),
		},
	}
}

func result(t *testing.T, name string, counted map[lane.Scope]lane.Counts) report.Result {
	t.Helper()
	l, err := lane.Find(name)
	require.NoError(t, err)
	scopes, err := report.Judge(l, lane.Kill9, counted)
	require.NoError(t, err)
	return report.Result{
		Lane: name, Fault: lane.Kill9, Command: l.Command(), Events: 20_000, Injections: 1, Scopes: scopes,
		Throughput: 1234.5678, LatencyMS: &audit.Latency{P50: 61.2, P99: 812.9, Max: 1433}, RecoveryMS: ms(412.3456), WallS: 16.23456,
	}
}

// render returns the table as one with every space and line break made a single
// space, after having looked at its lines.
func render(t *testing.T, r report.Report) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, r.Table(&b))
	require.NotContains(t, b.String(), "\x1b", "no colours but on a terminal")
	for line := range strings.Lines(b.String()) {
		require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, "\n")), 100, line)
	}
	t.Log("\n" + b.String())
	return strings.Join(strings.Fields(b.String()), " ")
}

func TestTableOfARunInWhichEveryClaimIsHeld(t *testing.T) {
	r := headline(t)
	require.True(t, r.Held())
	table := render(t, r)
	for _, want := range []string{
		// The grid in a word each.
		"approach kafka postgres http",
		"eos + postgres + http once duplicated duplicated",
		"inbox + direct produce + http duplicated once duplicated",
		"approach scope expected once lost duplicated",
		"eos + postgres + http kafka 20,000 20,000 0 0 0 held",
		"under kill -9 kafka-uncommitted 20,000 19,880 0 0 120 held",
		"postgres 20,000 19,966 0 34 0 held",
		"http 20,000 19,966 0 34 0 held",
		"inbox + direct produce kafka 20,000 19,950 0 50 0 held",
		"postgres 20,000 20,000 0 0 0 held",
		"http 20,000 19,940 0 60 0 held",
		"approach events/s p50 ms p99 ms max ms recovery ms kills",
		"eos + postgres + http 1,235 61.2 812.9 1,433.0 412.3 1 of 2",
		"inbox + direct produce + http 1,235 61.2 812.9 1,433.0 412.3 1",
		"eos + postgres + http / kafka: all 20,000 events once, because output records and input offsets commit in one Kafka transaction",
		"eos + postgres + http / kafka-uncommitted: 120 of 20,000 events aborted-visible, because records are in the topic before",
		"eos + postgres + http / postgres: 34 of 20,000 events duplicated, because aborting a Kafka transaction does not undo rows",
		"inbox + direct produce + http / kafka: 50 of 20,000 events duplicated, because the record is sent before Postgres commits",
		"Measured on kfake v0.0.0-20260918054303-01f206a7e32c, PostgreSQL 15.18, go1.26.8, 2 CPUs; seed 7; started 2026-01-05 14:02:11 UTC.",
		"kfake imitates a Kafka broker",
	} {
		require.Contains(t, table, want)
	}
	require.NotContains(t, table, "BROKEN")
}

func TestTableIsLoudAboutABrokenClaim(t *testing.T) {
	r := headline(t)
	r.Environment.Kafka = "Apache Kafka 4.4.0"
	r.Results[0] = result(t, eosLane, map[lane.Scope]lane.Counts{
		lane.Kafka:            {Expected: 20_000, Once: 19_990, Lost: 3, Duplicated: 7},
		lane.KafkaUncommitted: {Expected: 20_000, Once: 20_000},
		lane.Postgres:         {Expected: 20_000, Once: 19_966, Duplicated: 34, Unexpected: 1},
		lane.HTTP:             {Expected: 20_000, Once: 19_966, Duplicated: 34},
	})
	r.Results[0].Unexpected = []audit.Effect{{EventID: "evt_x", Attempt: "eos-0-1", Where: "pick_tasks", Position: "17"}}
	r.Results[0].DeadLetters = 3
	r.Results[0].LatencyMS = nil
	require.False(t, r.Held())
	table := render(t, r)
	for _, want := range []string{
		"eos + postgres + http lost, duplicated, BROKEN duplicated, BROKEN duplicated",
		"kafka 20,000 19,990 3 7 0 BROKEN",
		"kafka-uncommitted 20,000 20,000 0 0 0 BROKEN",
		`BROKEN eos + postgres + http / kafka: 3 of 20,000 events lost, 7 of 20,000 events duplicated; the claim was "once", because output records`,
		`BROKEN eos + postgres + http / kafka-uncommitted: all 20,000 events once; the claim was "aborted visible" and had to show, because records are`,
		`duplicated, and effects of events that nobody sent: 1 (such as "evt_x" in pick_tasks at 17, by attempt "eos-0-1"); the claim was`,
		"inbox + direct produce + http / postgres: all 20,000 events once",
		"eos + postgres + http: given up on and stored as dead letters: 3 events.",
		"eos + postgres + http: no latency, as the service keeps no time of its commits",
		"eos + postgres + http 1,235 n/a n/a n/a 412.3 1 of 2",
	} {
		require.Contains(t, table, want)
	}
	require.NotContains(t, table, "kfake")
}

func TestTableOfAFileWhoseLaneHasLeftTheCatalogue(t *testing.T) {
	r := headline(t)
	r.Results[0].Lane = "a lane of long ago with a name that is much too long for its column"
	require.Contains(t, render(t, r), "/ kafka: all 20,000 events once.")
}

func TestTableOfAMillionEvents(t *testing.T) {
	r := headline(t)
	r.Results[1] = result(t, inboxLane, map[lane.Scope]lane.Counts{
		lane.Kafka:            {Expected: 1_000_000, Once: 1_000_000},
		lane.KafkaUncommitted: {Expected: 1_000_000, Once: 1_000_000},
		lane.Postgres:         {Expected: 1_000_000, Once: 999_000, Lost: 1_000},
		lane.HTTP:             {Expected: 1_000_000, Once: 999_000, Duplicated: 1_000},
	})
	require.Contains(t, render(t, r), "postgres 1,000,000 999,000 1,000 0 0 BROKEN")
}

func TestJudgeNeedsEveryScopeClaimedAndCounted(t *testing.T) {
	l, err := lane.Find(eosLane)
	require.NoError(t, err)
	_, err = report.Judge(l, lane.Kill9, map[lane.Scope]lane.Counts{lane.Kafka: {}})
	require.EqualError(t, err, `lane "eos + postgres + http" writes kafka-uncommitted, but nobody audited it`)
	l.Scopes = append(l.Scopes, lane.Order)
	_, err = report.Judge(l, lane.Kill9, map[lane.Scope]lane.Counts{lane.Kafka: {}, lane.KafkaUncommitted: {}, lane.Postgres: {}, lane.HTTP: {}})
	require.ErrorContains(t, err, `claims nothing of order under "kill -9"`)
}

func TestJudgeLeavesOutWhatIsNotApplicable(t *testing.T) {
	l := lane.Lane{
		Name:   "x",
		Scopes: []lane.Scope{lane.Kafka, lane.Order},
		Claims: map[lane.Scope]lane.Claims{
			lane.Kafka: {Always: lane.Claim{Says: lane.MayLose | lane.MayDuplicate, Shows: lane.MayLose}},
			lane.Order: {Always: lane.Claim{Says: lane.NotApplicable}},
		},
	}
	lost := lane.Counts{Expected: 2, Once: 1, Lost: 1}
	judged, err := report.Judge(l, lane.Kill9, map[lane.Scope]lane.Counts{lane.Kafka: lost})
	require.NoError(t, err)
	require.Equal(t, map[lane.Scope]report.Scope{
		lane.Kafka: {Counts: lost, Claim: lane.MayLose | lane.MayDuplicate, Held: true},
	}, judged)
}

// The column is there where somebody watched the order, and only there.
func TestTableOfOrder(t *testing.T) {
	r := headline(t)
	require.NotContains(t, render(t, r), "re- ")
	r.Results[1].Scopes[lane.Order] = report.Scope{
		Counts: lane.Counts{Expected: 1_000_000, Once: 999_998, Reordered: 2}, Claim: lane.MayReorder, Held: true,
	}
	table := render(t, r)
	for _, want := range []string{
		"lost dupli- aborted- re- claim cated visible ordered",
		"http 20,000 19,966 0 34 0 0 held",
		"order 1,000,000 999,998 0 0 0 2 held",
		"inbox + direct produce + http / order: 2 of 1,000,000 events reordered.",
	} {
		require.Contains(t, table, want)
	}
}

func TestWriteAndRead(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "runs", "one")
	r := headline(t)
	require.NoError(t, r.Write(dir))
	got, err := report.Read(dir)
	require.NoError(t, err)
	require.Equal(t, r.Environment, got.Environment)
	require.Equal(t, r.Results[0].Scopes, got.Results[0].Scopes)
	require.Equal(t, render(t, r), render(t, got), "a run must look the same from its file")
	require.InDelta(t, 1234.6, got.Results[0].Throughput, 1e-9)
	require.InDelta(t, 412.3, *got.Plan[0].RecoveryMS, 1e-9)
	require.InDelta(t, 412.3456, *r.Plan[0].RecoveryMS, 1e-9, "writing must not change the report")
}

// The form that others parse.
func TestJSONForm(t *testing.T) {
	var b bytes.Buffer
	r := headline(t)
	r.Results = r.Results[:1]
	require.NoError(t, r.Encode(&b))
	require.JSONEq(t, `{
		"environment": {"kafka": "kfake v0.0.0-20260918054303-01f206a7e32c", "postgres": "15.18", "go": "go1.26.8",
			"cpus": 2, "seed": 7, "started_at": "2026-01-05T14:02:11Z"},
		"plan": [
			{"lane": "eos + postgres + http", "instance": 1, "step": "worked", "passing": 3, "fired": true, "recovery_ms": 412.3},
			{"lane": "eos + postgres + http", "instance": 0, "step": "committed", "passing": 90, "fired": false, "recovery_ms": null},
			{"lane": "inbox + direct produce + http", "instance": 0, "step": "worked", "passing": 2, "fired": true, "recovery_ms": 388}],
		"results": [{"lane": "eos + postgres + http", "fault": "kill -9",
			"command": "go run ./cmd/eos-pipeline --guarantee=exactly-once --touch=postgres --call=payments",
			"events": 20000, "injections": 1,
			"scopes": {
				"kafka": {"expected": 20000, "once": 20000, "lost": 0, "duplicated": 0, "aborted_visible": 0, "reordered": 0, "claim": "once", "held": true},
				"kafka-uncommitted": {"expected": 20000, "once": 19880, "lost": 0, "duplicated": 0, "aborted_visible": 120, "reordered": 0, "claim": "aborted visible", "held": true},
				"postgres": {"expected": 20000, "once": 19966, "lost": 0, "duplicated": 34, "aborted_visible": 0, "reordered": 0, "claim": "may duplicate", "held": true},
				"http": {"expected": 20000, "once": 19966, "lost": 0, "duplicated": 34, "aborted_visible": 0, "reordered": 0, "claim": "may duplicate", "held": true}},
			"throughput": 1234.6, "latency_ms": {"p50": 61.2, "p99": 812.9, "max": 1433}, "recovery_ms": 412.3, "wall_s": 16.2}]
	}`, b.String())
}

func TestJSONOfNothingHasLists(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, report.Report{Plan: []report.Kill{}}.Encode(&b))
	var form map[string]any
	require.NoError(t, json.Unmarshal(b.Bytes(), &form))
	require.Equal(t, []any{}, form["plan"])
	require.Equal(t, []any{}, form["results"])
}

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0 cells", 1: "1 cell", 2: "2 cells", 20_000: "20,000 cells"} {
		require.Equal(t, want, report.Count(n, "cell"))
	}
}

func TestNoPasswordLeaves(t *testing.T) {
	for _, c := range []struct{ name, command, want string }{
		{"in a URL", "go run ./cmd/x --database-url=postgres://app:s3cret@db:5432/shop --touch=postgres",
			"go run ./cmd/x --database-url=postgres://app:xxxxx@db:5432/shop --touch=postgres"},
		{"with every odd character", `--database-url=postgres://app:s3cret/@:"\&<s3cret@db/shop?sslmode=disable`,
			"--database-url=postgres://app:xxxxx@db/shop?sslmode=disable"},
		{"as a parameter", "postgres://db/shop?user=app&password=s3cret&sslmode=disable", "postgres://db/shop?user=app&password=xxxxx&sslmode=disable"},
		{"as a keyword", `host=db password='s3cret s3cret' user=app`, "host=db password=xxxxx user=app"},
		{"in the environment", "PGPASSWORD=s3cret go run ./cmd/x", "PGPASSWORD=xxxxx go run ./cmd/x"},
		{"nothing to hide", "--brokers=kafka:9092 --database-url=postgres://app@db/shop", "--brokers=kafka:9092 --database-url=postgres://app@db/shop"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := headline(t)
			r.Results[0].Command = c.command
			r.Environment.Postgres = "15.18 at " + c.command
			dir := t.TempDir()
			require.NoError(t, r.Write(dir))
			b, err := os.ReadFile(filepath.Join(dir, report.FileName))
			require.NoError(t, err)
			require.NotContains(t, string(b), "s3cret")
			require.NotContains(t, render(t, r), "s3cret")
			got, err := report.Read(dir)
			require.NoError(t, err, "what is left must still be JSON")
			require.Equal(t, c.want, got.Results[0].Command)
		})
	}
}

func TestReadSaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	_, err := report.Read(dir)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(filepath.Join(dir, report.FileName), []byte("[]"), 0o600))
	_, err = report.Read(dir)
	require.ErrorContains(t, err, "results.json is not what a run writes")
}
