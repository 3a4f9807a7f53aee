package suite_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/benchmarks/contest"
	"github.com/delivered-twice/delivered-twice/benchmarks/results"
	"github.com/delivered-twice/delivered-twice/benchmarks/suite"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/process"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	suite.Register()
	process.Register(passerName, passer)
	sandboxtest.Main(m)
}

// passer is a program that passes records on and does, if told so, what a contender should
// not.
const passerName = "passer"

func passer(args []string) int {
	f := flag.NewFlagSet(passerName, flag.ExitOnError)
	input, output, group := f.String("input", "", ""), f.String("output", "", ""), f.String("group", "", "")
	delay := f.Duration("delay", 0, "how much later it passes each record on")
	stall := f.Duration("stall", 0, "for how long it stands still, once")
	drop := f.Int("drop", -1, "the record that it does not pass on")
	twice := f.Int("twice", -1, "the record that it passes on twice")
	_ = f.Parse(args) // exits
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(os.Getenv("KAFKA_BROKERS"), ",")...), kgo.ProducerLinger(0),
		kgo.ConsumeTopics(*input), kgo.ConsumerGroup(*group), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(), kgo.FetchMaxWait(20*time.Millisecond))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	defer client.Close()
	for n := 0; ; {
		records := client.PollFetches(ctx).Records()
		if ctx.Err() != nil {
			return 0
		}
		time.Sleep(*delay)
		for _, r := range records {
			copies := 1
			switch n {
			case *drop:
				copies = 0
			case *twice:
				copies = 2
			case 1_000:
				time.Sleep(*stall)
			}
			n++
			for range copies {
				client.Produce(ctx, &kgo.Record{Topic: *output, Key: r.Key, Value: r.Value, Headers: r.Headers}, nil)
			}
		}
		if err := errors.Join(client.Flush(ctx), client.CommitUncommittedOffsets(ctx)); err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
	}
}

// passing returns the program as a contender, with flags.
func passing(flags ...string) contest.Contender {
	return contest.Contender{Name: passerName, Command: func(a contest.Assignment) *exec.Cmd {
		return process.Command(passerName, append([]string{"--input=" + a.Input, "--output=" + a.Output, "--group=" + a.Group}, flags...)...).Cmd
	}}
}

func measure(t *testing.T, o contest.Options, s suite.Sizes) results.Run {
	t.Helper()
	o.Brokers = sandboxtest.Brokers(t)
	run, err := suite.Measure(t.Context(), o, s, true)
	require.NoError(t, err)
	return run
}

// So few events are done in one go, and there is nothing to count between.
func TestTooFewEventsBecomeMore(t *testing.T) {
	o := contest.Options{Contender: passing(), Events: 400, RequestEvents: 400}
	o.Brokers = sandboxtest.Brokers(t)
	_, err := contest.Run(t.Context(), o)
	require.ErrorIs(t, err, contest.ErrTooFew)
	run := measure(t, o, suite.Sizes{})
	require.Equal(t, results.Passed, run.Audit)
	require.Greater(t, run.Events, o.Events)
	require.Positive(t, run.EventsPerSecond)
	require.Positive(t, run.RequestsPerRecord)
}

func TestADelayIsInEveryLatency(t *testing.T) {
	run := measure(t, contest.Options{Contender: passing("--delay=100ms"), Events: 500, Rate: 250}, suite.Sizes{})
	require.Equal(t, results.Passed, run.Audit)
	require.GreaterOrEqual(t, run.P50, 100.0)
	require.GreaterOrEqual(t, run.P99, run.P50)
	require.GreaterOrEqual(t, run.Max, run.P99)
}

// Events that should have been created while a contender stands still are as late as that
// makes them: who waits with the next one until the last one is done would measure one
// late event.
func TestAStallIsInTheLatencyOfAllThatWaited(t *testing.T) {
	run := measure(t, contest.Options{Contender: passing("--stall=2s"), Events: 2_000, Rate: 500}, suite.Sizes{})
	require.Equal(t, results.Passed, run.Audit)
	require.GreaterOrEqual(t, run.Max, 1_900.0)
	// Of 1,600 events that are measured, 900 and more became due within those 2 seconds.
	require.GreaterOrEqual(t, run.P50, 200.0)
	require.GreaterOrEqual(t, run.P99, 1_500.0)
}

func TestWhatIsLostOrDuplicatedIsInTheAudit(t *testing.T) {
	for flags, says := range map[string]string{"--drop=300": "lost 1,", "--twice=300": "duplicated 1,"} {
		run := measure(t, contest.Options{Contender: passing(flags), Events: 1_000, Rate: 500}, suite.Sizes{})
		require.Contains(t, run.Audit, says)
		require.False(t, run.Passed())
	}
}

func TestRunnerTakesTurns(t *testing.T) {
	ran := make(map[string]int) // by case, as often as its contender was asked for
	r := suite.Runner{
		Brokers:     sandboxtest.Brokers(t),
		DatabaseURL: sandboxtest.Database(t),
		Peer: func(_ context.Context, name string, args []string) (contest.Contender, error) {
			ran[name]++
			if name == "absent" {
				return contest.Contender{}, errors.New("it is\nnot there")
			}
			return passing(args...), nil
		},
		Rounds: 2,
		Scale:  0.5,
		Dir:    t.TempDir(),
		Log:    io.Discard,
	}
	path := filepath.Join(r.Dir, suite.RunsFile)
	other := results.Run{Part: "other", Case: "x", Round: 1, Audit: results.Passed}
	old := results.Run{Part: "trial", Case: "old", Round: 1, Audit: results.Passed}
	require.NoError(t, results.WriteFile(path, []results.Run{other, old}))

	part := suite.Part{Name: "trial", Cases: []suite.Case{
		{Name: "lossy", Peer: "passer", Args: []string{"--drop=1500"}, Rate: 2_000, Events: 4_000},
		{Name: "nobody", Peer: "absent", Events: 4_000},
		{Name: "inbox", Lane: "inbox", Sizes: suite.Sizes{Batch: 50}, Events: 10_000},
	}}
	broken, err := r.Run(t.Context(), part)
	require.NoError(t, err)

	runs, err := results.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, other, runs[0], "other parts stay as they are")
	type turn struct {
		name  string
		round int
	}
	var turns []turn
	for _, run := range runs[1:] {
		require.Equal(t, "trial", run.Part)
		turns = append(turns, turn{run.Case, run.Round})
	}
	require.Equal(t, []turn{{"lossy", 1}, {"nobody", 1}, {"inbox", 1}, {"lossy", 2}, {"nobody", 2}, {"inbox", 2}}, turns)
	require.Equal(t, map[string]int{"passer": 3, "absent": 3}, ran, "a round to warm up, and two that are kept")
	require.Len(t, broken, 4, "both rounds of those that lost something or are not there")

	lossy, nobody, inbox := runs[1], runs[2], runs[3]
	require.Contains(t, lossy.Audit, "lost 1,")
	require.Equal(t, "failed: it is not there", nobody.Audit)
	require.Equal(t, results.Passed, inbox.Audit)
	require.Equal(t, 5_000, inbox.Events)
	require.Contains(t, inbox.Settings, "--batch-size=50")
	for name, figure := range map[string]float64{
		"events/s": inbox.EventsPerSecond, "requests": inbox.RequestsPerRecord, "WAL": inbox.WALBytesPerRecord, "RSS": float64(inbox.MaxRSSBytes),
	} {
		require.Positive(t, figure, name)
	}
	require.Zero(t, inbox.P99, "latency at full speed is how long events were in the topic")
	require.Zero(t, runs[6].RequestsPerRecord, "they are counted once")
}

func TestTheSetIsOneThatCanBeRun(t *testing.T) {
	short := make(map[string]lane.Lane)
	for _, l := range lane.All() {
		short[l.Short] = l
	}
	parts := make(map[string]bool)
	for _, p := range suite.Parts() {
		require.False(t, parts[p.Name], p.Name)
		parts[p.Name] = true
		cases := make(map[string]bool)
		for _, c := range p.Cases {
			require.False(t, cases[c.Name], "%s, %s is there twice", p.Name, c.Name)
			cases[c.Name] = true
			require.Positive(t, c.Events, "%s, %s", p.Name, c.Name)
			if c.Peer == "" {
				require.Contains(t, short, c.Lane, "%s, %s", p.Name, c.Name)
			}
		}
		for _, g := range p.Goals {
			require.Equal(t, p.Name, g.Part)
			for _, name := range slices.Concat(g.Of, g.To) {
				require.True(t, cases[name] || len(p.Cases) == 0, "%q wants a case %q", g.Measure, name)
			}
		}
	}
	for _, c := range suite.Costs() {
		for _, l := range c.Lines {
			for _, at := range []results.At{l.Full, l.AtARate} {
				if at.Part == "" {
					continue
				}
				i := slices.IndexFunc(suite.Parts(), func(p suite.Part) bool { return p.Name == at.Part })
				require.GreaterOrEqual(t, i, 0)
				require.True(t, slices.ContainsFunc(suite.Parts()[i].Cases, func(c suite.Case) bool { return c.Name == at.Case }), "%v", at)
			}
		}
	}
}

func TestTheGridHasWhatMakesSense(t *testing.T) {
	sizes := make(map[string][]suite.Sizes)
	for _, p := range suite.Grid(false) {
		sizes[p.Lane.Short] = append(sizes[p.Lane.Short], p.Sizes)
	}
	require.Len(t, sizes["keos"], 5*3*2)
	require.Len(t, sizes["kalo"], 5*2, "nothing is in flight without transactions")
	require.Len(t, sizes["twophase"], 5*2)
	require.Len(t, sizes["inbox"], 5*2)
	for _, short := range []string{"webhook", "redis"} {
		require.NotContains(t, slices.Collect(maps.Keys(sizes)), short)
	}
	for _, p := range suite.Grid(true) {
		require.False(t, p.Lane.Writes(lane.HTTP), p.Name())
	}
}
