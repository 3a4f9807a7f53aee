package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/failpoint"
	"github.com/delivered-twice/delivered-twice/internal/kafkatx"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/trace"
)

// With the work done through an inbox from inside the Kafka transaction, every event is
// once on both sides, wherever it is killed.
func TestKafkaTransactionsThroughAnInboxKilledAtEveryStep(t *testing.T) {
	steps := []string{"inserted@warehouse", "worked@loyalty", "committed@warehouse"}
	for _, step := range kafkatx.Steps(kafkatx.ExactlyOnce) {
		steps = append(steps, string(step))
	}
	for _, step := range steps {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			expected := b.publish(order.StreamOptions{Events: 400, Seed: 7})
			b.killed(cli.EOSPipelineName, step, farOff, "--max-transaction-records=100", "--touch=inbox")
			require.Equal(t, lane.Counts{Expected: 400, Once: 400}, b.auditTopic(expected).Committed)
			require.Equal(t, lane.Counts{Expected: 400, Once: 400}, b.auditTables(expected).Rows)
		})
	}
}

// Without a Kafka transaction the inbox holds what it holds, and Kafka has duplicates.
func TestAtLeastOnceThroughAnInboxKilled(t *testing.T) {
	b := newBench(t)
	expected := b.publish(order.StreamOptions{Events: 400, Seed: 7})
	b.killed(cli.EOSPipelineName, string(kafkatx.Produced), "--max-transaction-records=100", oneInFlight, "--guarantee=at-least-once", "--touch=inbox")
	requireDuplicated(t, b.auditTopic(expected).Committed)
	require.Equal(t, lane.Counts{Expected: 400, Once: 400}, b.auditTables(expected).Rows)
}

// An idempotent producer knows its own retries, and nothing of what it produced before
// it was killed.
func TestIdempotentProducerKilled(t *testing.T) {
	b := newBench(t)
	expected := b.publish(order.StreamOptions{Events: 400, Seed: 7})
	b.killed(cli.EOSPipelineName, string(kafkatx.Produced), "--max-transaction-records=100", oneInFlight, "--guarantee=idempotent-producer")
	requireDuplicated(t, b.auditTopic(expected).Committed)
}

// A killed process has left a line for every step that it passed, the last one
// included, with the events concerned.
func TestTraceOfAKilledPipeline(t *testing.T) {
	b := newBench(t)
	b.publish(order.StreamOptions{Events: 10, Seed: 7})
	file := filepath.Join(t.TempDir(), "trace.jsonl")
	p := b.start(cli.EOSPipelineName, []string{trace.Variable + "=" + file, failpoint.Variable + "=produced"}, "--touch=inbox", "--attempt=eos-0.1", "--commit-interval=2s")
	require.Equal(t, sigkill, p.wait(), p.stderr.String())

	lines, err := os.ReadFile(file)
	require.NoError(t, err)
	events := make(map[string]map[string]bool) // by step
	var last string
	for line := range strings.Lines(string(lines)) {
		var passing trace.Passing
		require.NoError(t, json.Unmarshal([]byte(line), &passing))
		require.Equal(t, "eos-0.1", passing.Attempt)
		last = passing.Step + "@" + passing.Handler
		if events[last] == nil {
			events[last] = make(map[string]bool)
		}
		for _, id := range passing.Events {
			events[last][id] = true
		}
	}
	require.Equal(t, "produced@", last)
	for _, step := range []string{"polled@", "handled@", "produced@", "inserted@warehouse", "committed@warehouse", "committed@loyalty"} {
		for e := range order.Stream(order.StreamOptions{Events: 10, Seed: 7}) {
			require.True(t, events[step][e.ID], "event %s at %s", e.ID, step)
		}
	}
	require.NotContains(t, events, "committed@")
}
