package fault_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/fault"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/process"
	"github.com/delivered-twice/delivered-twice/internal/sandbox"
	"github.com/delivered-twice/delivered-twice/internal/stage"
)

func TestMain(m *testing.M) {
	process.Register(cli.EOSPipelineName, cli.EOSPipeline)
	process.Register(cli.InboxPipelineName, cli.InboxPipeline)
	process.Register(cli.PaymentsAPIName, cli.PaymentsAPI)
	process.Init()
	os.Exit(m.Run())
}

// start starts services of the test's own: what faults do to services disturbs
// whoever else uses them.
func start(t *testing.T) *sandbox.Services {
	t.Helper()
	services, err := sandbox.Start(t.Context(), sandbox.Options{BrokerConfigs: map[string]string{
		// A broker that forgets soon, and soon gives others what a member has locked.
		"transactional.id.expiration.ms":      "3000",
		"group.share.record.lock.duration.ms": "2000",
		"share.record.lock.sweep.interval.ms": "200", // kfake's
	}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, services.Close()) })
	return services
}

// The lanes that faults are done to here. What they do to every other lane is for the
// matrix to say.
var (
	// shows have something to show, in the order in which they are asked.
	shows = []string{"at-most-once", "at-least-once", "memory-set", "redis-setnx", "inbox, async commit", "kafka at-least-once", "eos + postgres", "two-phase", "inbox + outbox", "inbox + http", "inbox + http + key"}
	// hold survive everything.
	hold = []string{"inbox", "inbox + offsets", "inbox on a share group", "inbox behind a webhook", "kafka eos"}
	// call survive what is done to a third party, which is nothing to the others.
	call = []string{"inbox + http + key", "eos + http + key"}
)

// chosen returns the first lane that exists to show the fault, and those that hold.
func chosen(t *testing.T, f fault.Fault, on *sandbox.Services) []lane.Lane {
	t.Helper()
	fitting := func(names []string) (lanes []lane.Lane) {
		for _, name := range names {
			l, err := lane.Find(name)
			require.NoError(t, err)
			if f.Unfit == nil || f.Unfit(l, on) == "" {
				lanes = append(lanes, l)
			}
		}
		return lanes
	}
	lanes := fitting(hold)
	if len(lanes) == 0 {
		lanes = fitting(call)
	}
	for _, l := range fitting(shows) {
		if l.MustShow(f.Name) && !slices.ContainsFunc(lanes, func(other lane.Lane) bool { return other.Name == l.Name }) {
			return append(lanes, l)
		}
	}
	return lanes
}

// Every fault finds what the lanes claim under it: those that exist to show it, and
// those that hold.
func TestClaims(t *testing.T) {
	services := start(t)
	for i, f := range fault.All() {
		lanes := chosen(t, f, services)
		if len(lanes) == 0 {
			require.Equal(t, lane.BrokerKilled, f.Name, "%s fits no lane here", f.Name)
			continue
		}
		t.Run(f.Slug(), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			var (
				meeting = stage.NewMeeting(len(lanes))
				found   = make([]finding, len(lanes))
				cells   errgroup.Group
				dir     = t.TempDir()
			)
			for j, l := range lanes {
				cells.Go(func() (err error) {
					defer meeting.Leave()
					found[j], err = perform(ctx, f, stage.Options{
						Services: services,
						Lane:     l,
						Name:     fmt.Sprintf("cell%d", i),
						Seed:     7,
						Dir:      filepath.Join(dir, l.Slug()),
						Together: meeting,
					})
					if err != nil {
						return fmt.Errorf("lane %s: %w", l.Name, err)
					}
					return nil
				})
			}
			require.NoError(t, cells.Wait())
			for j, l := range lanes {
				check(t, f, l, found[j])
			}
		})
	}
}

// finding is what is found after a fault.
type finding struct {
	stage.Findings
	injections, poisoned int
}

// perform does a fault to a lane.
func perform(ctx context.Context, f fault.Fault, o stage.Options) (found finding, err error) {
	s, err := stage.Open(ctx, o)
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		err = errors.Join(err, s.Close(ctx, false))
	}()
	if err != nil {
		return found, err
	}
	if err := f.Inject(ctx, s); err != nil {
		return found, fmt.Errorf("inject: %w", err)
	}
	if err := s.Settle(ctx); err != nil {
		return found, err
	}
	found.Findings, err = s.Audit(ctx)
	found.injections, found.poisoned = s.Injections(), s.Poisoned()
	return found, err
}

func check(t *testing.T, f fault.Fault, l lane.Lane, found finding) {
	t.Helper()
	require.Equal(t, f.Name == lane.NoFault, found.injections == 0, "%s was done to %s %d times", f.Name, l.Name, found.injections)
	require.Equal(t, found.poisoned > 0, found.DeadLetters > 0, "%s has %d dead letters", l.Name, found.DeadLetters)
	for _, scope := range l.Scopes {
		claim, _ := l.Claim(f.Name, scope)
		require.True(t, claim.Held(found.Counts[scope]), "%s claims %q in %s, must show: %t; found %+v",
			l.Name, claim.Says, scope, claim.MustShow, found.Counts[scope])
	}
}

// Without an inbox, what the sender sends again while it is being worked on is done again:
// the fault strikes, and it is the inbox that holds.
func TestSenderRetriesWithoutInbox(t *testing.T) {
	l, err := lane.Find("inbox behind a webhook")
	require.NoError(t, err)
	l.Args = []string{"--source=webhook", "--guard=none"}
	f, err := fault.Find(string(lane.SenderRetries))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	found, err := perform(ctx, f, stage.Options{Services: start(t), Lane: l, Name: "retries", Seed: 7, Dir: t.TempDir()})
	require.NoError(t, err)
	require.Positive(t, found.Counts[lane.Postgres].Duplicated, "%+v", found.Counts)
}

func TestFind(t *testing.T) {
	f, err := fault.Find("kill-9")
	require.NoError(t, err)
	require.Equal(t, lane.Kill9, f.Name)
	_, err = fault.Find("zombi")
	require.ErrorContains(t, err, `there is no fault "zombi"; the nearest: zombie; compare faults lists all`)
}

// What the catalogue must be like for a report on any of its faults to make sense.
func TestCatalogue(t *testing.T) {
	seen := make(map[lane.Fault]bool)
	for _, f := range fault.All() {
		require.False(t, seen[f.Name], "%s is there twice", f.Name)
		seen[f.Name] = true
		require.NotEmpty(t, f.Says)
		require.NotNil(t, f.Inject)
	}
	for _, l := range lane.All() {
		for _, claims := range l.Claims {
			for f := range claims.Under {
				// That one belongs to a side-by-side run.
				require.True(t, seen[f] || f == lane.Kill9AndDuplicates, "%s claims something under %q, and no such fault can be done", l.Name, f)
			}
		}
	}
}
