package contest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/benchmarks/contest"
	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/process"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
	"github.com/delivered-twice/delivered-twice/internal/warehouse"
)

func TestMain(m *testing.M) {
	process.Register("passer", func(args []string) int { return exit(pass(args)) })
	process.Register("worker", func(args []string) int { return exit(work(args)) })
	process.Register("failing", func([]string) int { return exit(errors.New("no such luck")) })
	process.Register("idle", func([]string) int { return exit(idle()) })
	sandboxtest.Main(m)
}

func exit(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func idle() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	<-ctx.Done()
	return nil
}

// consume hands every batch of the input to do, and then acknowledges it, until SIGTERM.
func consume(args []string, do func(context.Context, *kgo.Client, []*kgo.Record) error) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(os.Getenv("KAFKA_BROKERS"), ",")...),
		kgo.ConsumeTopics(args[0]), kgo.DefaultProduceTopic(args[1]), kgo.ConsumerGroup(args[2]),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(), kgo.ProducerLinger(0))
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		fetches := client.PollRecords(ctx, 100)
		if ctx.Err() != nil {
			return nil
		}
		if err := errors.Join(fetches.Err(), do(ctx, client, fetches.Records()), client.CommitUncommittedOffsets(ctx)); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// pass passes everything on, and has its way with some events.
func pass(args []string) error {
	fmt.Fprintln(os.Stderr, "setting fault="+args[3])
	var held *kgo.Record
	wrong, first, second := chosen()
	return consume(args, func(ctx context.Context, client *kgo.Client, in []*kgo.Record) error {
		var out []*kgo.Record
		for _, r := range in {
			copied := &kgo.Record{Key: r.Key, Value: r.Value, Headers: r.Headers, Timestamp: r.Timestamp}
			switch {
			case args[3] == "lose" && order.ID(r) == wrong:
			case args[3] == "duplicate" && order.ID(r) == wrong:
				again := *copied
				out = append(out, copied, &again)
			case args[3] == "invent" && order.ID(r) == wrong:
				out = append(out, copied, kgo.StringRecord("nobody sent this"))
			case args[3] == "reorder" && order.ID(r) == first:
				held = copied
			case args[3] == "reorder" && order.ID(r) == second:
				out = append(out, copied, held)
			default:
				out = append(out, copied)
			}
		}
		return client.ProduceSync(ctx, out...).FirstErr()
	})
}

// chosen are the ids of the event that goes wrong, and of two of one key.
func chosen() (wrong, first, second string) {
	ids := make(map[string]string)
	n := 0
	for e := range order.Stream(order.StreamOptions{Events: events, Seed: contest.Seed}) {
		if e.Sequence == 2 && second == "" {
			first, second = ids[e.OrderID], e.ID
		}
		ids[e.OrderID] = e.ID
		if n++; n == spoilt {
			wrong = e.ID
		}
	}
	return wrong, first, second
}

func work(args []string) error {
	conn, err := pgx.Connect(context.Background(), os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	return consume(args, func(ctx context.Context, _ *kgo.Client, in []*kgo.Record) error {
		effects := make([]warehouse.Effect, len(in))
		for i, r := range in {
			if effects[i], err = warehouse.FromRecord(r); err != nil {
				return err
			}
		}
		return warehouse.Award(ctx, conn, "worker", effects)
	})
}

func contender(role string, more ...string) contest.Contender {
	return contest.Contender{Name: role, Command: func(a contest.Assignment) *exec.Cmd {
		return process.Command(role, append([]string{a.Input, a.Output, a.Group}, more...)...).Cmd
	}}
}

const (
	events   = 2_000
	measured = 1_600 // after the warm-up
	spoilt   = 1_200 // number of the event that goes wrong
)

func TestWhatAContenderLeavesBehindIsAudited(t *testing.T) {
	for _, c := range []struct {
		fault string
		want  contest.Audit
	}{
		{"none", contest.Audit{Expected: events, Once: events}},
		{"lose", contest.Audit{Expected: events, Once: events - 1, Lost: 1}},
		{"duplicate", contest.Audit{Expected: events, Once: events - 1, Duplicated: 1}},
		{"invent", contest.Audit{Expected: events, Once: events, Unexpected: 1}},
		{"reorder", contest.Audit{Expected: events, Once: events, Reordered: 1}},
	} {
		t.Run(c.fault, func(t *testing.T) {
			t.Parallel()
			f, err := contest.Run(t.Context(), contest.Options{
				Brokers: sandboxtest.Brokers(t), Contender: contender("passer", c.fault), Events: events, Rate: events,
			})
			require.NoError(t, err)
			require.Equal(t, c.want, f.Audit)
			require.Equal(t, c.fault == "none", f.Audit.Clean())
			require.Equal(t, []string{"command=passer INPUT OUTPUT GROUP " + c.fault, "fault=" + c.fault}, f.Settings)
			require.Positive(t, f.EventsPerSecond)
			require.Positive(t, f.MaxRSSBytes)
			require.Positive(t, f.Latency.Min())
			require.EqualValues(t, measured-c.want.Lost, f.Latency.TotalCount())
		})
	}
}

func TestTwoInstancesShareTheWorkAndRequestsAreCounted(t *testing.T) {
	f, err := contest.Run(t.Context(), contest.Options{
		Brokers: sandboxtest.Brokers(t), Contender: contender("passer", "none"), Events: events, Rate: events, Instances: 2, RequestEvents: events,
	})
	require.NoError(t, err)
	require.Zero(t, f.Audit.Lost, "a rebalance may duplicate, as nothing is atomic here: %v", f.Audit)
	require.Positive(t, f.RequestsPerRecord)
	require.Zero(t, f.WALBytesPerRecord)
}

func TestRowsOfATableAreEffects(t *testing.T) {
	worker := contender("worker")
	worker.Table = warehouse.LoyaltyPoints
	database := sandboxtest.Database(t)
	f, err := contest.Run(t.Context(), contest.Options{
		Brokers: sandboxtest.Brokers(t), DatabaseURL: database, Contender: worker, Events: events, Rate: events,
	})
	require.NoError(t, err)
	require.Equal(t, contest.Audit{Expected: events, Once: events}, f.Audit)
	require.Positive(t, f.WALBytesPerRecord)
	require.EqualValues(t, measured, f.Latency.TotalCount())
}

func TestAContenderThatEndsByItself(t *testing.T) {
	_, err := contest.Run(t.Context(), contest.Options{Brokers: sandboxtest.Brokers(t), Contender: contender("failing"), Events: events})
	require.ErrorContains(t, err, "failing: instance 0 ended by itself: exit status 1")
	require.ErrorContains(t, err, "no such luck")
}

func TestAContenderThatDoesNothing(t *testing.T) {
	_, err := contest.Run(t.Context(), contest.Options{
		Brokers: sandboxtest.Brokers(t), Contender: contender("idle"), Events: events, Patience: time.Second,
	})
	require.ErrorContains(t, err, "idle: nothing has come of the events for")
}

func TestOptionsThatCannotBe(t *testing.T) {
	good := contest.Options{Brokers: []string{"127.0.0.1:1"}, Contender: contender("idle"), Events: events}
	for _, c := range []struct {
		change func(*contest.Options)
		says   string
	}{
		{func(o *contest.Options) { o.Contender.Name = "" }, "a name and a command"},
		{func(o *contest.Options) { o.Brokers = nil }, "no Kafka brokers"},
		{func(o *contest.Options) { o.Contender.Table = warehouse.PickTasks }, "there is no database"},
		{func(o *contest.Options) { o.Events = 99 }, "fewer than 100"},
		{func(o *contest.Options) { o.RequestEvents = 1 }, "fewer than 100"},
		{func(o *contest.Options) { o.Rate = -1 }, "negative"},
	} {
		o := good
		c.change(&o)
		_, err := contest.Run(t.Context(), o)
		require.ErrorContains(t, err, c.says)
	}
}
