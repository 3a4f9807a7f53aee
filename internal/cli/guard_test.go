package cli_test

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/delivered-twice/delivered-twice/internal/audit"
	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/failpoint"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/pginbox"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
	"github.com/delivered-twice/delivered-twice/internal/trace"
	"github.com/delivered-twice/delivered-twice/internal/warehouse"
)

// redisFor starts a Redis, if the guard needs one, and returns the flags of the guard.
func redisFor(t *testing.T, guard string) (*miniredis.Miniredis, []string) {
	t.Helper()
	args := []string{"--guard=" + guard, "--batch-size=100"}
	if guard != "redis" {
		return nil, args
	}
	server := miniredis.RunT(t)
	return server, append(args, "--redis-url=redis://"+server.Addr()+"/0")
}

// Killed at a step, and started again: where a guard holds, and where it stops.
func TestGuardsKilled(t *testing.T) {
	const (
		once       = "once"
		lost       = "lost"
		duplicated = "duplicated"
	)
	for _, c := range []struct {
		guard string
		at    map[string]string
	}{
		{"ack-first", map[string]string{"polled": once, "acknowledged": lost, "begun": lost, "worked": lost, "committed": once}},
		{"none", map[string]string{"polled": once, "begun": once, "worked": once, "committed": duplicated, "acknowledged": once}},
		{"shape", map[string]string{"worked": once, "committed": duplicated}},
		{"memory", map[string]string{"polled": once, "checked": once, "begun": once, "worked": once, "committed": duplicated, "acknowledged": once}},
		{"select-first", map[string]string{"polled": once, "begun": once, "selected": once, "worked": once, "committed": once, "acknowledged": once}},
		{"redis", map[string]string{"polled": once, "claimed": lost, "begun": lost, "worked": lost, "committed": once, "acknowledged": once}},
		{"offsets", map[string]string{"polled": once, "begun": once, "inserted": once, "worked": once, "committed": once, "acknowledged": once}},
		{"inbox+offsets", map[string]string{"polled": once, "begun": once, "inserted": once, "worked": once, "committed": once, "acknowledged": once}},
	} {
		for step, outcome := range c.at {
			t.Run(c.guard+"/"+step, func(t *testing.T) {
				t.Parallel()
				b := newBench(t)
				expected := b.publish(order.StreamOptions{Events: 400, Seed: 7})
				_, args := redisFor(t, c.guard)
				b.killed(cli.InboxPipelineName, step, args...)
				found := b.auditTables(expected).Rows
				switch outcome {
				case once:
					require.Equal(t, lane.Counts{Expected: 400, Once: 400}, found)
				case lost:
					require.Positive(t, found.Lost)
					require.LessOrEqual(t, found.Lost, 100, "more than one batch")
					require.Equal(t, lane.Counts{Expected: 400, Once: 400 - found.Lost, Lost: found.Lost}, found)
				case duplicated:
					requireDuplicated(t, found)
				}
			})
		}
	}
}

// An instance of several members dies as one, and they all come back at once.
func TestWorkersKilled(t *testing.T) {
	for _, guard := range []string{"inbox", "offsets"} {
		t.Run(guard, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			args := []string{"--guard=" + guard, "--batch-size=25", "--workers=2"}
			victim := b.start(cli.InboxPipelineName, []string{failpoint.Variable + "=committed:2:kill"}, args...)
			b.awaitMembers(2)
			expected := b.publish(order.StreamOptions{Events: 400, Seed: 7})
			require.Equal(t, sigkill, victim.wait(), victim.stderr.String())
			successor := b.start(cli.InboxPipelineName, nil, args...)
			b.awaitConsumed()
			successor.end()
			require.Equal(t, lane.Counts{Expected: 400, Once: 400}, b.auditTables(expected).Rows)
		})
	}
}

// A worker without a partition would do nothing.
func TestMoreWorkersThanPartitions(t *testing.T) {
	b := newBench(t)
	p := b.start(cli.InboxPipelineName, nil, "--workers=3")
	require.Equal(t, cli.ExitUnusable, p.wait())
	require.Contains(t, p.stderr.String(), "2 partitions, too few")
	require.Contains(t, p.stderr.String(), "1 of the 3 workers of instance 0")
}

// Under --guard=shape a pick task has a natural key, and points have none.
func TestShapeHoldsForPickTasksOnly(t *testing.T) {
	b := newBench(t)
	expected := b.publish(order.StreamOptions{Events: 400, Seed: 7})
	b.killed(cli.InboxPipelineName, "committed", "--guard=shape", "--batch-size=100")
	rows := make(map[string]int)
	for _, e := range b.auditTables(expected).Effects {
		rows[e.Where]++
	}
	require.Equal(t, 400, rows[warehouse.PickTasks])
	require.Greater(t, rows[warehouse.LoyaltyPoints], 400)
}

// A share group has no offsets to look at: what is done is in Postgres.
func TestShareGroupKilledAtEveryStep(t *testing.T) {
	for _, step := range pginbox.Steps() {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			// Of several partitions a dead member keeps some until its session timeout.
			b.input = sandboxtest.Topic(t, 1)
			expected := b.publish(order.StreamOptions{Events: 400, Seed: 7})
			args := []string{"--source=share-group", "--batch-size=100"}
			victim := b.start(cli.InboxPipelineName, []string{failpoint.Variable + "=" + string(step) + ":2:kill"}, args...)
			require.Equal(t, sigkill, victim.wait(), victim.stderr.String())
			successor := b.start(cli.InboxPipelineName, nil, args...)
			pool := b.pool()
			require.Eventually(t, func() bool {
				found, err := audit.Tables(t.Context(), pool, expected)
				return err == nil && found.Rows.Lost == 0
			}, patience, 50*time.Millisecond, "the group does not get to the end of the input")
			successor.end()
			require.Equal(t, lane.Counts{Expected: 400, Once: 400}, b.auditTables(expected).Rows)
		})
	}
}

// What a publisher sent twice is absorbed by the guards that keep ids; by the shortcuts
// among them, while there is one process.
func TestGuardsAndPublisherDuplicates(t *testing.T) {
	for guard, absorbed := range map[string]bool{
		"offsets": false, "inbox+offsets": true, "none": false, "memory": true, "select-first": true, "redis": true,
	} {
		t.Run(guard, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			expected := b.publish(order.StreamOptions{Events: 400, Seed: 7, PublisherDuplicates: 0.1})
			_, args := redisFor(t, guard)
			b.consume(args...)
			found := b.auditTables(expected).Rows
			if absorbed {
				require.Equal(t, lane.Counts{Expected: 400, Once: 400}, found)
			} else {
				require.Positive(t, found.Duplicated)
			}
		})
	}
}

// consume runs an inbox pipeline until all is consumed.
func (b *bench) consume(args ...string) {
	b.t.Helper()
	p := b.start(cli.InboxPipelineName, nil, args...)
	b.awaitConsumed()
	p.end()
}

// A consumer that stands still between asking and working, while another does the
// work: a SELECT finds nothing in both, a claim in Redis lets one of them through.
func TestTwoConsumersWithOneEvent(t *testing.T) {
	for _, c := range []struct {
		guard, step string
		twice       bool
	}{{"select-first", "selected", true}, {"memory", "checked", true}, {"redis", "claimed", false}} {
		t.Run(c.guard, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			expected := b.publish(order.StreamOptions{Events: 100, Seed: 7})
			_, args := redisFor(t, c.guard)
			args = append(args, "--batch-size=1000")
			passed := filepath.Join(t.TempDir(), "trace")
			zombie := b.start(cli.InboxPipelineName, []string{
				failpoint.Variable + "=" + c.step + ":1:pause", trace.Variable + "=" + passed,
			}, args...)
			require.Eventually(t, func() bool {
				lines, err := os.ReadFile(passed)
				return err == nil && bytes.Contains(lines, []byte(c.step))
			}, patience, 10*time.Millisecond, "it does not get to the step")

			// Its successor takes its place in the group, and gets the same events.
			successor := b.start(cli.InboxPipelineName, nil, args...)
			b.awaitConsumed()
			b.awaitFenced(zombie)
			successor.end()

			found := b.auditTables(expected).Rows
			if c.twice {
				require.Positive(t, found.Duplicated)
			} else {
				require.Equal(t, lane.Counts{Expected: 100, Once: 100}, found)
			}
		})
	}
}

// awaitFenced wakes a zombie up and waits until it has found out that it is one.
func (b *bench) awaitFenced(zombie *pipeline) {
	b.t.Helper()
	ended := make(chan struct{})
	go func() {
		// Again and again: it may not have stopped yet the first time.
		for tick := time.Tick(10 * time.Millisecond); ; <-tick {
			select {
			case <-ended:
				return
			default:
				_ = zombie.cmd.Process.Signal(syscall.SIGCONT)
			}
		}
	}()
	require.Equal(b.t, cli.ExitUnusable, zombie.wait(), zombie.stderr.String())
	close(ended)
	require.Contains(b.t, zombie.stderr.String(), pginbox.ErrFenced.Error())
}

// An event that comes again after its key has expired is done again.
func TestRedisKeyExpires(t *testing.T) {
	b := newBench(t)
	expected := b.publish(order.StreamOptions{Events: 100, Seed: 7})
	server, args := redisFor(t, "redis")
	args = append(args, "--redis-ttl=1h")
	b.consume(args...)
	b.rewind()
	b.consume(args...)
	require.Equal(t, lane.Counts{Expected: 100, Once: 100}, b.auditTables(expected).Rows)

	server.FastForward(time.Hour)
	b.rewind()
	b.consume(args...)
	require.Equal(t, lane.Counts{Expected: 100, Duplicated: 100}, b.auditTables(expected).Rows)
}

// rewind sets the offsets of a group without live members back to the beginning.
func (b *bench) rewind() {
	b.t.Helper()
	_, err := b.admin.LeaveGroup(b.t.Context(), kadm.LeaveGroup(b.group).InstanceIDs("0"))
	require.NoError(b.t, err)
	starts, err := b.admin.ListStartOffsets(b.t.Context(), b.input)
	require.NoError(b.t, err)
	require.NoError(b.t, b.admin.CommitAllOffsets(b.t.Context(), b.group, starts.Offsets()))
}

// Whatever the guard: what cannot be handled is a dead letter, and holds nobody up.
func TestStrangeRecordsUnderShortcuts(t *testing.T) {
	for _, guard := range []string{"ack-first", "none", "memory", "select-first", "redis"} {
		t.Run(guard, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			// Nothing but the work itself has trouble with an id.
			done, causes := sendStrange(b, func(s strange) string { return s.eos })
			_, args := redisFor(t, guard)
			b.consume(args...)
			requireDone(t, b, done, causes)
		})
	}
}

func requireDone(t *testing.T, b *bench, done audit.Expected, causes []string) {
	t.Helper()
	found := b.auditTables(done)
	require.Empty(t, found.Unexpected)
	require.Equal(t, len(done), found.Rows.Once, "%+v", found.Rows)
	for _, handler := range []string{"warehouse", "loyalty"} {
		requireCauses(t, causes, b.deadLetters(handler))
	}
}

// Flags that mean nothing together are refused, and no password is shown.
func TestGuardUnusable(t *testing.T) {
	locked := miniredis.RunT(t)
	locked.RequireAuth("sesame")
	gone := miniredis.RunT(t)
	away := gone.Addr()
	gone.Close()
	for name, c := range map[string]struct {
		args []string
		says []string
	}{
		"a misspelt guard":               {[]string{"--guard=selectfirst"}, []string{"the nearest: select-first", "usage: "}},
		"unknown source":                 {[]string{"--source=queue"}, []string{"share-group", "usage: "}},
		"async shortcut":                 {[]string{"--guard=none", "--async-commit"}, []string{"--async-commit", "usage: "}},
		"no workers":                     {[]string{"--workers=0"}, []string{"must be at least 1", "usage: "}},
		"workers of a share group":       {[]string{"--workers=2", "--source=share-group"}, []string{"--source=group", "usage: "}},
		"flushed anyway":                 {[]string{"--ack-after-flush"}, []string{"needs --async-commit", "usage: "}},
		"flush for stored offsets":       {[]string{"--guard=offsets", "--async-commit", "--ack-after-flush"}, []string{"does nothing", "usage: "}},
		"offsets of a share group":       {[]string{"--guard=inbox+offsets", "--source=share-group"}, []string{"no offsets", "usage: "}},
		"flush for a share group":        {[]string{"--async-commit", "--ack-after-flush", "--source=share-group"}, []string{"--source=group", "usage: "}},
		"retries for a group":            {[]string{"--retry-topic=again"}, []string{"--source=share-group", "usage: "}},
		"ack-first on a share group":     {[]string{"--guard=ack-first", "--source=share-group"}, []string{"--source=group", "usage: "}},
		"publishing under a shortcut":    {[]string{"--guard=memory", "--publish=direct"}, []string{"not for --guard=memory", "usage: "}},
		"an outbox under a shortcut":     {[]string{"--guard=memory", "--publish=outbox"}, []string{"not for --guard=memory", "usage: "}},
		"an outbox without its writer":   {[]string{"--handlers=loyalty", "--publish=outbox"}, []string{"--publish=outbox", "handler warehouse", "usage: "}},
		"an outbox that may be undone":   {[]string{"--publish=outbox", "--async-commit"}, []string{"--async-commit", "crash", "usage: "}},
		"a relay nowhere":                {[]string{"--publish=outbox", "--relay=outside"}, []string{"inside, elsewhere or only", "usage: "}},
		"a relay of nothing":             {[]string{"--publish=direct", "--relay=only"}, []string{"--publish=outbox", "usage: "}},
		"rows that nobody removes":       {[]string{"--publish=outbox", "--relay=elsewhere", "--outbox-retention=1h"}, []string{"--outbox-retention", "usage: "}},
		"a retention that can't be":      {[]string{"--publish=outbox", "--outbox-retention=-1h"}, []string{"must not be negative", "usage: "}},
		"keys of ids that nobody keeps":  {[]string{"--guard=offsets", "--event-key=hash"}, []string{"--event-key does nothing", "usage: "}},
		"purge of what nobody keeps":     {[]string{"--guard=none", "--purge-after=100h"}, []string{"--purge-after does nothing", "usage: "}},
		"horizon of what nobody keeps":   {[]string{"--guard=none", "--redelivery-horizon=1h"}, []string{"--redelivery-horizon does nothing", "usage: "}},
		"expiry of what nobody keeps":    {[]string{"--guard=inbox", "--redis-ttl=1h"}, []string{"--redis-ttl does nothing", "usage: "}},
		"a Redis that nobody uses":       {[]string{"--guard=inbox", "--redis-url=redis://h"}, []string{"--redis-url does nothing", "usage: "}},
		"no expiry":                      {[]string{"--guard=redis", "--redis-ttl=0s"}, []string{"at least 1ms", "usage: "}},
		"no Redis":                       {[]string{"--guard=redis"}, []string{"REDIS_URL", "usage: "}},
		"an unreadable address of Redis": {[]string{"--guard=redis", "--redis-url=rediss:/u:open-sesame@h"}, []string{"redis://user:password@host", "usage: "}},
		"Redis is away":                  {[]string{"--guard=redis", "--redis-url=redis://:open-sesame@" + away}, []string{away}},
		"a wrong password of Redis":      {[]string{"--guard=redis", "--redis-url=redis://:open-sesame@" + locked.Addr()}, []string{locked.Addr(), "WRONGPASS"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			p := b.start(cli.InboxPipelineName, []string{"REDIS_URL="}, c.args...)
			require.Equal(t, cli.ExitUnusable, p.wait(), p.stderr.String())
			for _, says := range c.says {
				require.Contains(t, p.stderr.String(), says)
			}
			require.NotContains(t, p.stderr.String(), "open-sesame")
		})
	}
}
