package fault_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/fault"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/process"
	"github.com/delivered-twice/delivered-twice/internal/sandbox"
	"github.com/delivered-twice/delivered-twice/internal/stage"
)

// brokerConfigs make the broker forget soon.
var brokerConfigs = map[string]string{"transactional.id.expiration.ms": "3000"}

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
	if services, err = sandbox.Start(ctx, sandbox.Options{BrokerConfigs: brokerConfigs}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = services.Close() }()
	return m.Run()
}

var cells atomic.Int64

// cell does a fault to a lane and returns what is found in the lane's scopes.
func cell(t *testing.T, f fault.Fault, l lane.Lane, on *sandbox.Services, meeting *stage.Meeting) (found map[lane.Scope]lane.Counts, injections int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s, err := stage.Open(ctx, stage.Options{
		Services: on,
		Lane:     l,
		Name:     fmt.Sprintf("cell%d", cells.Add(1)),
		Seed:     7,
		Dir:      t.TempDir(),
		Together: meeting,
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

	findings, err := s.Audit(ctx)
	require.NoError(t, err)
	require.Equal(t, s.Poisoned() > 0, findings.DeadLetters > 0, "%d dead letters", findings.DeadLetters)
	return findings.Counts, s.Injections()
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
				check(t, f, l, services, nil)
			})
		}
	}
}

// Faults that disturb services, done to lanes that meet on services of their own.
func TestClaimsOnDisturbedServices(t *testing.T) {
	for _, f := range fault.All() {
		if f.Disturbs == fault.DisturbsNothing {
			continue
		}
		t.Run(f.Slug(), func(t *testing.T) {
			own, err := sandbox.Start(t.Context(), sandbox.Options{})
			require.NoError(t, err)
			defer func() { require.NoError(t, own.Close()) }()
			var fit []lane.Lane
			for _, l := range built(t) {
				if f.Unfit == nil || f.Unfit(l, own) == "" {
					fit = append(fit, l)
				}
			}
			for crowd := range slices.Chunk(fit, 4) {
				meeting := stage.NewMeeting(len(crowd))
				t.Run("together", func(t *testing.T) {
					for _, l := range crowd {
						t.Run(l.Slug(), func(t *testing.T) {
							t.Parallel()
							defer meeting.Leave()
							check(t, f, l, own, meeting)
						})
					}
				})
			}
		})
	}
}

func check(t *testing.T, f fault.Fault, l lane.Lane, on *sandbox.Services, meeting *stage.Meeting) {
	if f.Unfit != nil {
		if why := f.Unfit(l, on); why != "" {
			t.Skip(why)
		}
	}
	began := time.Now()
	found, injections := cell(t, f, l, on, meeting)
	if f.Name != lane.NoFault {
		require.Positive(t, injections)
	}
	for _, scope := range l.Scopes {
		n := found[scope]
		claim, _ := l.Claim(f.Name, scope)
		require.True(t, claim.Held(n), "%s claims %+v, found %+v", scope, claim, n)
	}
	t.Logf("%s / %s: %d injections, %v, %+v", f.Name, l.Name, injections, time.Since(began).Round(time.Millisecond), found)
}

// built are the lanes that one can run.
func built(t *testing.T) []lane.Lane {
	t.Helper()
	var lanes []lane.Lane
	for _, name := range []string{
		"at-most-once", "at-least-once", "shape-only", "memory-set", "select-first", "redis-setnx",
		"inbox", "offsets-in-postgres", "inbox + offsets", "inbox, async commit", "inbox, async commit, gated",
		"offsets, async commit", "inbox + direct produce",
		"kafka at-least-once", "kafka eos", "eos + postgres",
	} {
		l, err := lane.Find(name)
		require.NoError(t, err)
		lanes = append(lanes, l)
	}
	return lanes
}
