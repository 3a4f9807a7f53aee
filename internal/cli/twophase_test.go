package cli_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/failpoint"
	"github.com/delivered-twice/delivered-twice/internal/kafkatx"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/twophase"
)

var twoPhase = []string{"--guarantee=two-phase", "--touch=postgres", "--max-transaction-records=100"}

// Killed at any step, a pipeline that commits Kafka and Postgres together has done every
// event once in both.
func TestTwoPhaseKilledAtEveryStep(t *testing.T) {
	for _, step := range twophase.Steps() {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			expected := b.publish(order.StreamOptions{Events: 400, Seed: 7})
			b.killed(cli.EOSPipelineName, string(step), append(twoPhase, farOff)...)
			require.Equal(t, lane.Counts{Expected: 400, Once: 400}, b.auditTopic(expected).Committed)
			require.Equal(t, lane.Counts{Expected: 400, Once: 400}, b.auditTables(expected).Rows)
		})
	}
}

// A member that has decided dies for good: another one ends its transaction, long before
// the transaction timeout, and takes its partitions over.
func TestTwoPhaseFinishedByAnotherInstance(t *testing.T) {
	b := newBench(t)
	expected := b.publish(order.StreamOptions{Events: 400, Seed: 7})
	args := append(twoPhase, farOff)
	victim := b.start(cli.EOSPipelineName, []string{failpoint.Variable + "=" + string(kafkatx.Decided) + ":2:kill"}, args...)
	require.Equal(t, sigkill, victim.wait(), victim.stderr.String())
	_, err := b.admin.LeaveGroup(t.Context(), kadm.LeaveGroup(b.group).InstanceIDs("0"))
	require.NoError(t, err)
	heir := b.start(cli.EOSPipelineName, nil, append(args, "--instance=1")...)
	b.awaitConsumed()
	heir.end()
	require.Contains(t, heir.stderr.String(), "finished what another member has decided")
	found := b.auditTopic(expected)
	require.Equal(t, lane.Counts{Expected: 400, Once: 400}, found.Committed)
	require.Equal(t, lane.Counts{Expected: 400, Once: 400}, found.Uncommitted, "nothing was aborted")
	require.Equal(t, lane.Counts{Expected: 400, Once: 400}, b.auditTables(expected).Rows)
}

func TestTwoPhaseUnusable(t *testing.T) {
	for says, args := range map[string][]string{
		"--touch=postgres, not with --touch=none":  {"--guarantee=two-phase"},
		"--touch=postgres, not with --touch=inbox": {"--guarantee=two-phase", "--touch=inbox"},
		"no transaction would be decided in time":  {"--guarantee=two-phase", "--touch=postgres", "--commit-interval=5s"},
		"exactly-once": {"--guarantee=twophase", "--touch=postgres"},
	} {
		t.Run(says, func(t *testing.T) {
			p := newBench(t).start(cli.EOSPipelineName, nil, args...)
			require.Equal(t, cli.ExitUnusable, p.wait(), p.stderr.String())
			require.Contains(t, p.stderr.String(), says)
			require.Contains(t, p.stderr.String(), "usage: ")
		})
	}
}
