package fault_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/audit"
	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/fault"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/process"
	"github.com/delivered-twice/delivered-twice/internal/sandbox"
	"github.com/delivered-twice/delivered-twice/internal/stage"
)

// services are shared by the cells whose faults disturb nobody.
var services *sandbox.Services

func TestMain(m *testing.M) {
	process.Register(cli.EOSPipelineName, cli.EOSPipeline)
	process.Register(cli.InboxPipelineName, cli.InboxPipeline)
	process.Init()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var err error
	if services, err = sandbox.Start(ctx, sandbox.Options{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = services.Close() }()
	return m.Run()
}

var cells atomic.Int64

// cell does a fault to a lane and returns what is found in the lane's scopes.
func cell(t *testing.T, f fault.Fault, l lane.Lane, on *sandbox.Services) (found map[lane.Scope]lane.Counts, injections int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s, err := stage.Open(ctx, stage.Options{
		Services: on,
		Lane:     l,
		Name:     fmt.Sprintf("cell%d", cells.Add(1)),
		Seed:     7,
		Dir:      t.TempDir(),
	})
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := s.Close(ctx, t.Failed()); !t.Failed() {
			require.NoError(t, err)
		}
	}()
	require.NoError(t, err)
	require.NoError(t, f.Inject(ctx, s))
	require.NoError(t, s.Settle(ctx))

	found = make(map[lane.Scope]lane.Counts)
	if l.Writes(lane.Kafka) {
		a, err := audit.Topic(ctx, s.Output, s.Expected(), kgo.SeedBrokers(on.Brokers...))
		require.NoError(t, err)
		found[lane.Kafka], found[lane.KafkaUncommitted] = a.Committed, a.Uncommitted
	}
	if l.Writes(lane.Postgres) {
		pool, err := pgxpool.New(ctx, s.DatabaseURL)
		require.NoError(t, err)
		defer pool.Close()
		a, err := audit.Tables(ctx, pool, s.Expected())
		require.NoError(t, err)
		found[lane.Postgres] = a.Rows
	}
	return found, s.Injections()
}

// Every fault, done to every lane that it fits, finds what the lane claims under it.
func TestClaims(t *testing.T) {
	for _, f := range fault.All() {
		if f.Disturbs != fault.DisturbsNothing {
			continue
		}
		for _, l := range built(t) {
			t.Run(f.Slug()+"/"+l.Slug(), func(t *testing.T) {
				t.Parallel()
				check(t, f, l, services)
			})
		}
	}
}

func check(t *testing.T, f fault.Fault, l lane.Lane, on *sandbox.Services) {
	if f.Unfit != nil {
		if why := f.Unfit(l, on); why != "" {
			t.Skip(why)
		}
	}
	began := time.Now()
	found, injections := cell(t, f, l, on)
	if f.Name != lane.NoFault {
		require.Positive(t, injections)
	}
	for scope, n := range found {
		if !l.Writes(scope) {
			continue
		}
		claim, _ := l.Claim(f.Name, scope)
		require.True(t, claim.Held(n), "%s claims %+v, found %+v", scope, claim, n)
	}
	t.Logf("%s / %s: %d injections, %v, %+v", f.Name, l.Name, injections, time.Since(began).Round(time.Millisecond), found)
}

// built are the lanes that one can run.
func built(t *testing.T) []lane.Lane {
	t.Helper()
	var lanes []lane.Lane
	for _, name := range strings.Split("eos + postgres,kafka eos,kafka at-least-once,inbox,inbox + direct produce", ",") {
		l, err := lane.Find(name)
		require.NoError(t, err)
		lanes = append(lanes, l)
	}
	return lanes
}
