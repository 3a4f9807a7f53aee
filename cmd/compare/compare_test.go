package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/process"
	"github.com/delivered-twice/delivered-twice/internal/report"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

const role = "compare"

func TestMain(m *testing.M) {
	registerPipelines()
	process.Register(role, run)
	sandboxtest.Main(m)
}

// compared is what a run of the program left behind.
type compared struct {
	code           int
	stdout, stderr string
}

func compare(t *testing.T, env []string, args ...string) compared {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := process.Command(role, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Env = append(cmd.Environ(), env...)
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return compared{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

func onSharedServices(t *testing.T) []string {
	return []string{
		"KAFKA_BROKERS=" + strings.Join(sandboxtest.Brokers(t), ","),
		"DATABASE_URL=" + sandboxtest.Database(t),
	}
}

func TestRun(t *testing.T) {
	dir := t.TempDir()
	// Whatever it is, it stays out of everything that is kept or shown.
	env := onSharedServices(t)
	done := compare(t, env, "run", "--events=4000", "--rate=1000", "--kills=8", "--seed=7", "--json", "--out="+dir)
	require.Equal(t, cli.ExitOK, done.code, done.stderr)
	require.Empty(t, done.stderr, "no terminal, no progress")

	kept, err := report.Read(dir)
	require.NoError(t, err)
	var shown report.Report
	require.NoError(t, json.Unmarshal([]byte(done.stdout), &shown), "stdout is results.json and nothing else")
	require.Equal(t, kept, shown)

	require.Len(t, kept.Results, 2)
	eos, inbox := kept.Results[0], kept.Results[1]
	require.Equal(t, 4, eos.Injections)
	require.Equal(t, 4, inbox.Injections)
	require.Len(t, kept.Plan, 8)
	for _, kill := range kept.Plan {
		require.True(t, kill.Fired, "%+v", kill)
	}
	all := lane.Counts{Expected: 4000, Once: 4000}
	require.Equal(t, all, eos.Scopes[lane.Kafka].Counts)
	require.Positive(t, eos.Scopes[lane.KafkaUncommitted].AbortedVisible)
	require.Positive(t, eos.Scopes[lane.Postgres].Duplicated)
	require.Equal(t, all, inbox.Scopes[lane.Postgres].Counts)
	require.Positive(t, inbox.Scopes[lane.Kafka].Duplicated)
	require.Positive(t, eos.Scopes[lane.HTTP].Duplicated)
	require.Positive(t, inbox.Scopes[lane.HTTP].Duplicated)
	require.Positive(t, eos.LatencyMS.P99)
	require.Positive(t, *eos.RecoveryMS)
	require.Positive(t, *inbox.RecoveryMS)

	t.Run("report shows the same again", func(t *testing.T) {
		again := compare(t, nil, "report", dir, "--json")
		require.Equal(t, cli.ExitOK, again.code)
		require.Equal(t, done.stdout, again.stdout)
		table := compare(t, nil, "report", dir)
		require.Equal(t, cli.ExitOK, table.code)
		require.Contains(t, table.stdout, eos.Lane)
	})
	t.Run("it replaces no matrix in a page", func(t *testing.T) {
		page := filepath.Join(t.TempDir(), "page.md")
		const text = "before\n<!-- matrix:begin -->\na matrix\n<!-- matrix:end -->\nafter\n"
		require.NoError(t, os.WriteFile(page, []byte(text), 0o600))
		refused := compare(t, nil, "report", dir, "--page="+page)
		require.Equal(t, cli.ExitUnusable, refused.code)
		require.Contains(t, refused.stderr, "name a folder that compare matrix has kept")
		left, err := os.ReadFile(page)
		require.NoError(t, err)
		require.Equal(t, text, string(left))
	})
	t.Run("a broken claim exits with 1", func(t *testing.T) {
		broken := t.TempDir()
		scope := kept.Results[0].Scopes[lane.Kafka]
		scope.Counts = lane.Counts{Expected: 4000, Once: 3999, Lost: 1}
		scope.Held = false
		kept.Results[0].Scopes[lane.Kafka] = scope
		require.NoError(t, kept.Write(broken))
		told := compare(t, nil, "report", broken)
		require.Equal(t, cli.ExitBroken, told.code)
		require.Contains(t, told.stdout, "BROKEN")
	})
	t.Run("no password is kept", func(t *testing.T) {
		config, err := pgx.ParseConfig(strings.TrimPrefix(env[1], "DATABASE_URL="))
		require.NoError(t, err)
		if config.Password == "" {
			return // the given database asks for none
		}
		require.NoError(t, filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			content, err := os.ReadFile(path)
			require.NotContains(t, string(content), config.Password, path)
			return err
		}))
	})
}

// With a key, the third party is charged once by either approach, and nothing else is
// any different.
func TestRunWithAKey(t *testing.T) {
	done := compare(t, onSharedServices(t), "--events=2000", "--rate=1000", "--kills=4", "--seed=7", "--idempotency-key", "--json", "--out="+t.TempDir())
	require.Equal(t, cli.ExitOK, done.code, done.stderr)
	var shown report.Report
	require.NoError(t, json.Unmarshal([]byte(done.stdout), &shown))
	for _, result := range shown.Results {
		require.Contains(t, result.Command, "--idempotency-key")
		require.Equal(t, lane.Counts{Expected: 2000, Once: 2000}, result.Scopes[lane.HTTP].Counts, result.Lane)
	}
	require.Positive(t, shown.Results[0].Scopes[lane.Postgres].Duplicated)
	require.Positive(t, shown.Results[1].Scopes[lane.Kafka].Duplicated)
}

// Nothing is killed: everything is once everywhere, and that is what is claimed.
func TestRunWithoutKills(t *testing.T) {
	done := compare(t, onSharedServices(t), "--events=500", "--rate=0", "--kills=0", "--instances=1", "--json", "--out="+t.TempDir())
	require.Equal(t, cli.ExitOK, done.code, done.stderr)
	var shown report.Report
	require.NoError(t, json.Unmarshal([]byte(done.stdout), &shown))
	for _, result := range shown.Results {
		require.Equal(t, lane.NoFault, result.Fault)
		for scope, counted := range result.Scopes {
			require.Equal(t, lane.Counts{Expected: 500, Once: 500}, counted.Counts, "%s, %s", result.Lane, scope)
		}
	}
}

// Ten events can't be killed over a hundred times.
func TestRunOutOfEvents(t *testing.T) {
	done := compare(t, onSharedServices(t), "--events=10", "--rate=0", "--kills=100", "--out="+t.TempDir())
	require.Equal(t, cli.ExitUnusable, done.code, done.stderr)
	require.Contains(t, done.stderr, "kills did not strike")
	require.Contains(t, done.stderr, "raise --events")
}

// What a publisher sends twice the inbox absorbs, and Kafka transactions do not.
func TestRunWithPublisherDuplicates(t *testing.T) {
	done := compare(t, onSharedServices(t), "--events=1000", "--rate=0", "--kills=0", "--publisher-duplicates=0.1", "--json", "--out="+t.TempDir())
	require.Equal(t, cli.ExitOK, done.code, done.stderr)
	var shown report.Report
	require.NoError(t, json.Unmarshal([]byte(done.stdout), &shown))
	eos, inbox := shown.Results[0], shown.Results[1]
	require.Equal(t, lane.PublisherDuplicates, eos.Fault)
	for scope, counted := range eos.Scopes {
		require.Positive(t, counted.Duplicated, scope)
	}
	for scope, counted := range inbox.Scopes {
		require.Equal(t, lane.Counts{Expected: 1000, Once: 1000}, counted.Counts, scope)
	}
}

// left returns the names with that prefix of what has been left on the shared services.
func left(t *testing.T, prefix string) (names []string) {
	admin := kadm.NewClient(sandboxtest.Client(t))
	topics, err := admin.ListTopics(t.Context())
	require.NoError(t, err)
	names = append(names, topics.Names()...)
	groups, err := admin.ListGroups(t.Context())
	require.NoError(t, err)
	names = append(names, groups.Groups()...)
	connection, err := pgx.Connect(t.Context(), sandboxtest.Database(t))
	require.NoError(t, err)
	defer connection.Close(t.Context())
	rows, err := connection.Query(t.Context(), `SELECT nspname FROM pg_namespace`)
	require.NoError(t, err)
	schemas, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	names = append(names, schemas...)
	ours := names[:0]
	for _, name := range names {
		if strings.HasPrefix(name, prefix) {
			ours = append(ours, name)
		}
	}
	return ours
}

// ofRuns is the prefix of what runs make.
const ofRuns = "delivered_twice_"

// created is how many topics, groups and schemas a run has.
const created = 10

func TestRunTakesItsTracesAway(t *testing.T) {
	args := []string{"--events=200", "--rate=0", "--kills=0", "--instances=1", "--json", "--out=" + t.TempDir()}
	before := left(t, ofRuns)
	require.Equal(t, cli.ExitOK, compare(t, onSharedServices(t), args...).code)
	require.Eventually(t, func() bool { return len(left(t, ofRuns)) == len(before) }, 30*time.Second, 50*time.Millisecond)
	require.Equal(t, cli.ExitOK, compare(t, onSharedServices(t), append(args, "--no-cleanup")...).code)
	require.Len(t, left(t, ofRuns), len(before)+created, "one input, two outputs, dead letters, two groups, four schemas")
}

func TestInterrupted(t *testing.T) {
	before := left(t, ofRuns)
	cmd := process.Command(role, "--events=100000", "--rate=100", "--out="+t.TempDir())
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.Env = append(cmd.Environ(), onSharedServices(t)...)
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool { return len(left(t, ofRuns)) == len(before)+created }, 30*time.Second, 10*time.Millisecond)
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	require.Error(t, cmd.Wait())
	require.Equal(t, cli.ExitUnusable, cmd.ProcessState.ExitCode())
	require.Contains(t, stderr.String(), "interrupted")
	require.Eventually(t, func() bool { return len(left(t, ofRuns)) == len(before) }, 30*time.Second, 50*time.Millisecond)
}

func TestUnusable(t *testing.T) {
	const usage = "usage: compare"
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for name, c := range map[string]struct {
		args []string
		says []string
	}{
		"no events":          {[]string{"--events=0"}, []string{"--events is 0", usage}},
		"negative events":    {[]string{"run", "--events", "-5"}, []string{"--events is -5", usage}},
		"too many events":    {[]string{"--events=1000000000"}, []string{"--events is 1000000000", "10000000", usage}},
		"no instances":       {[]string{"--instances=0"}, []string{"--instances is 0", usage}},
		"too many instances": {[]string{"--instances=1000"}, []string{"--instances is 1000", usage}},
		"negative rate":      {[]string{"--rate=-1"}, []string{"--rate is -1", usage}},
		"negative kills":     {[]string{"--kills=-1"}, []string{"--kills is -1", usage}},
		"too few kills":      {[]string{"--kills=3"}, []string{"--kills is 3", "at least 4", usage}},
		"too many kills":     {[]string{"--kills=1000000000"}, []string{"--kills is 1000000000", "100000", usage}},
		"more than all":      {[]string{"--publisher-duplicates=2"}, []string{"--publisher-duplicates is 2", usage}},
		"no share at all":    {[]string{"--publisher-duplicates=NaN"}, []string{"--publisher-duplicates is NaN", usage}},
		"unknown Kafka":      {[]string{"--kafka=franz"}, []string{`"franz"`, "embedded", "apache", usage}},
		"unknown flag":       {[]string{"--evnts=5"}, []string{"no flag --evnts; the nearest: events", usage}},
		"one hyphen":         {[]string{"-database-url=postgres://u:open-sesame@h/d"}, []string{"write --database-url, with two hyphens", usage}},
		"no number":          {[]string{"--events=many"}, []string{`--events is "many", must be a whole number`, usage}},
		"a fraction":         {[]string{"--rate=1.5"}, []string{`--rate is "1.5", must be a whole number`, usage}},
		"out of range":       {[]string{"--events=99999999999999999999"}, []string{"must be a whole number that fits into 64 bits", usage}},
		"negative seed":      {[]string{"--seed=-1"}, []string{`--seed is "-1", must be a whole number from 0`, usage}},
		"no share":           {[]string{"--publisher-duplicates=half"}, []string{`--publisher-duplicates is "half", must be a number`, usage}},
		"neither nor":        {[]string{"--json=maybe"}, []string{`--json is "maybe", must be true or false`, usage}},
		"half a list":        {[]string{`--brokers="a`}, []string{"--brokers is", "a list with commas between", usage}},
		"no time":            {[]string{"matrix", "--soak=5"}, []string{`--soak is "5", must be a time with its unit`, usage}},
		"no value":           {[]string{"--events"}, []string{"--events needs a value: a whole number", usage}},
		"unknown command":    {[]string{"rum"}, []string{`no command "rum"; the nearest: run; all: explain, `, usage}},
		"help on nothing":    {[]string{"help", "rum"}, []string{`no command "rum"`, usage}},
		"an argument":        {[]string{"run", "fast"}, []string{`"fast"`, usage}},
		"an address":         {[]string{"run", "postgres://u:open-sesame@h/d"}, []string{"unexpected argument", usage}},
		"no folder":          {[]string{"report"}, []string{usage}},
		"an empty folder":    {[]string{"report", t.TempDir()}, []string{"results.json", "name a folder"}},
		"two forms at once":  {[]string{"report", filepath.Join("..", "..", "docs", "matrix"), "--json", "--page=x.md"}, []string{"--json and --page", usage}},
		"out is a file":      {[]string{"--out=" + file}, []string{"--out: ", "not a directory; name a folder that can be written", usage}},
		"out below a file":   {[]string{"matrix", "--out=" + filepath.Join(file, "x")}, []string{"--out: ", "name a folder that can be written", usage}},
		"out is not ours":    {[]string{"--out=/proc"}, []string{"--out: ", "name a folder that can be written", usage}},
		"no such part":       {[]string{"transactions", "lits"}, []string{`no command "lits"; the nearest: list; all: abort, commit, list`, usage}},
		"no part":            {[]string{"transactions"}, []string{"name a command: abort, commit, list", usage}},
		"unreachable":        {[]string{"--brokers=127.0.0.1:1"}, []string{"127.0.0.1:1"}},
		"wrong password":     {[]string{"--database-url=postgres://u:open-sesame@127.0.0.1:1/d"}, []string{"127.0.0.1:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			args := c.args
			if name == "unreachable" || name == "wrong password" {
				args = append(args, "--out="+t.TempDir())
			}
			done := compare(t, onSharedServices(t), args...)
			require.Equal(t, cli.ExitUnusable, done.code, done.stderr)
			for _, says := range c.says {
				require.Contains(t, done.stderr, says)
			}
			require.Empty(t, done.stdout)
			require.NotContains(t, done.stderr, "open-sesame")
			require.NotContains(t, done.stderr, "strconv")
		})
	}
}
