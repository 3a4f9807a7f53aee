package cli_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/failpoint"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/outbox"
)

// Killed at any step of its relay, a pipeline with an outbox has published every event
// when it ends: those between publishing and stamping twice, the others once.
func TestRelayKilledAtEveryStep(t *testing.T) {
	for _, step := range outbox.Steps() {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			expected := b.publish(order.StreamOptions{Events: 400, Seed: 7})
			b.killed(cli.InboxPipelineName, string(step), "--publish=outbox", "--batch-size=50")
			require.Equal(t, lane.Counts{Expected: 400, Once: 400}, b.auditTables(expected).Rows)
			found := b.auditTopic(expected)
			require.Equal(t, lane.Counts{Expected: 400, Once: 400}, found.Order)
			twice := found.Committed.Duplicated
			require.Equal(t, lane.Counts{Expected: 400, Once: 400 - twice, Duplicated: twice}, found.Committed)
			require.Equal(t, step == outbox.Published, twice > 0, "%d are there twice", twice)
		})
	}
}

// Rows wait for a relay, wherever it is. One that is nothing else needs neither the
// input nor the group.
func TestRelayElsewhere(t *testing.T) {
	b := newBench(t)
	expected := b.publish(order.StreamOptions{Events: 100, Seed: 7})
	writer := b.start(cli.InboxPipelineName, nil, "--publish=outbox", "--relay=elsewhere")
	b.awaitConsumed()
	writer.end()
	require.Equal(t, lane.Counts{Expected: 100, Lost: 100}, b.auditTopic(expected).Committed)
	backlog, err := outbox.ReadBacklog(t.Context(), b.pool())
	require.NoError(t, err)
	require.EqualValues(t, 100, backlog.Pending)

	victim := b.start(cli.InboxPipelineName, []string{failpoint.Variable + "=published:1:kill"}, "--publish=outbox", "--relay=only", "--input=none-that-is-there")
	require.Equal(t, sigkill, victim.wait(), victim.stderr.String())
	successor := b.start(cli.InboxPipelineName, nil, "--publish=outbox", "--relay=only", "--input=none-that-is-there")
	require.Eventually(t, func() bool {
		backlog, err := outbox.ReadBacklog(t.Context(), b.pool())
		return err == nil && backlog.Pending == 0
	}, patience, patience/1000)
	successor.end()
	found := b.auditTopic(expected)
	require.Positive(t, found.Committed.Duplicated)
	require.Zero(t, found.Committed.Lost)
	topics, err := b.admin.ListTopics(t.Context())
	require.NoError(t, err)
	require.False(t, topics.Has("none-that-is-there"))
}
