package cli_test

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/failpoint"
	"github.com/delivered-twice/delivered-twice/internal/kafkatx"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/pginbox"
)

const sigkill = -int(syscall.SIGKILL)

// farOff is a transaction timeout that nobody waits out: what a dead process left
// open must be aborted by its successor.
const farOff = "--transaction-timeout=10m"

// oneInFlight bounds what a death may leave undone: one transaction.
const oneInFlight = "--transactions-in-flight=1"

// killed runs a program until it dies of SIGKILL at the second passing of a step,
// and then again until all is consumed.
func (b *bench) killed(program, step string, args ...string) {
	b.t.Helper()
	victim := b.start(program, []string{failpoint.Variable + "=" + step + ":2:kill"}, args...)
	require.Equal(b.t, sigkill, victim.wait(), victim.stderr.String())
	successor := b.start(program, nil, args...)
	b.awaitConsumed()
	successor.end()
}

// Killed at any step, a pipeline of Kafka transactions shows a read_committed
// reader every event once.
func TestKafkaTransactionsKilledAtEveryStep(t *testing.T) {
	for _, step := range kafkatx.Steps(kafkatx.ExactlyOnce) {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			expected := b.publish(order.StreamOptions{Events: 400, Seed: 7})
			b.killed(cli.EOSPipelineName, string(step), farOff, "--max-transaction-records=100")
			require.Equal(t, lane.Counts{Expected: 400, Once: 400}, b.auditTopic(expected).Committed)
		})
	}
}

// With several transactions in flight it is the same, and so it is when the next
// incarnation has more of them, or fewer: what is open under an id that it no longer uses
// is ended, too, long before its timeout.
func TestKafkaTransactionsInFlightKilledAtEveryStep(t *testing.T) {
	for _, step := range kafkatx.Steps(kafkatx.ExactlyOnce) {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			expected := b.publish(order.StreamOptions{Events: 600, Seed: 7})
			run := func(inFlight int, env ...string) *pipeline {
				return b.start(cli.EOSPipelineName, env, farOff, "--max-transaction-records=20", fmt.Sprintf("--transactions-in-flight=%d", inFlight))
			}
			for _, inFlight := range []int{2, 4, 3} {
				victim := run(inFlight, fmt.Sprintf("%s=%s:%d:kill", failpoint.Variable, step, 2+inFlight))
				require.Equal(t, sigkill, victim.wait(), victim.stderr.String())
			}
			successor := run(1)
			b.awaitConsumed()
			successor.end()
			found := b.auditTopic(expected)
			require.Equal(t, lane.Counts{Expected: 600, Once: 600}, found.Committed)
			require.Equal(t, lane.Counts{Expected: 600, Once: 600}, found.Order)
		})
	}
}

// Killed after it produced and before it committed, it shows everybody else the
// aborted attempt as well, and what it touched in Postgres is touched again.
func TestWhereKafkaTransactionsStop(t *testing.T) {
	b := newBench(t)
	expected := b.publish(order.StreamOptions{Events: 400, Seed: 7})
	b.killed(cli.EOSPipelineName, string(kafkatx.Produced), farOff, oneInFlight, "--max-transaction-records=100", "--touch=postgres")
	found := b.auditTopic(expected)
	require.Equal(t, lane.Counts{Expected: 400, Once: 400}, found.Committed)
	n := found.Uncommitted.AbortedVisible
	require.Positive(t, n)
	require.Equal(t, lane.Counts{Expected: 400, Once: 400 - n, AbortedVisible: n}, found.Uncommitted)
	require.Equal(t, lane.Counts{Expected: 400, Once: 400 - n, Duplicated: n}, b.auditTables(expected).Rows, "the same events")
}

// requireDuplicated asserts that some of 400 events are there twice, and none is
// missing. How many depends on how many were polled together.
func requireDuplicated(t *testing.T, found lane.Counts) {
	t.Helper()
	require.Positive(t, found.Duplicated)
	require.LessOrEqual(t, found.Duplicated, 100, "more than one batch")
	require.Equal(t, lane.Counts{Expected: 400, Once: 400 - found.Duplicated, Duplicated: found.Duplicated}, found)
}

// At least once means it: killed between producing and committing the offsets, the
// events are there twice.
func TestAtLeastOnceKilled(t *testing.T) {
	b := newBench(t)
	expected := b.publish(order.StreamOptions{Events: 400, Seed: 7})
	b.killed(cli.EOSPipelineName, string(kafkatx.Produced), "--max-transaction-records=100", oneInFlight, "--guarantee=at-least-once")
	requireDuplicated(t, b.auditTopic(expected).Committed)
}

// Killed at any step, an inbox pipeline has done the work of every event once.
func TestInboxKilledAtEveryStep(t *testing.T) {
	for _, step := range pginbox.Steps() {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			expected := b.publish(order.StreamOptions{Events: 400, Seed: 7})
			b.killed(cli.InboxPipelineName, string(step), "--batch-size=100")
			require.Equal(t, lane.Counts{Expected: 400, Once: 400}, b.auditTables(expected).Rows)
		})
	}
}

// Killed after it produced and before it committed, it produces again.
func TestWhereTheInboxStops(t *testing.T) {
	b := newBench(t)
	expected := b.publish(order.StreamOptions{Events: 400, Seed: 7})
	b.killed(cli.InboxPipelineName, string(pginbox.Worked), "--batch-size=100", "--publish=direct", "--handlers=warehouse")
	requireDuplicated(t, b.auditTopic(expected).Committed)
}

// An event that the publisher sent twice is two records. The inbox knows its id;
// a Kafka transaction knows offsets only.
func TestPublisherDuplicates(t *testing.T) {
	o := order.StreamOptions{Events: 500, Seed: 7, PublisherDuplicates: 0.1}
	repeats := 0
	for _, repeated := range order.Stream(o) {
		if repeated {
			repeats++
		}
	}
	require.Positive(t, repeats)
	t.Run("the inbox absorbs them", func(t *testing.T) {
		b := newBench(t)
		expected := b.publish(o)
		p := b.start(cli.InboxPipelineName, nil, "--batch-size=50")
		b.awaitConsumed()
		p.end()
		require.Equal(t, lane.Counts{Expected: 500, Once: 500}, b.auditTables(expected).Rows)
	})
	t.Run("Kafka transactions do not", func(t *testing.T) {
		b := newBench(t)
		expected := b.publish(o)
		p := b.start(cli.EOSPipelineName, nil)
		b.awaitConsumed()
		p.end()
		require.Equal(t, lane.Counts{Expected: 500, Once: 500 - repeats, Duplicated: repeats}, b.auditTopic(expected).Committed)
	})
}
