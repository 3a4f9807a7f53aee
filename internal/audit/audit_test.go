package audit_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/audit"
	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

// sent is what the tests below look for.
func sent(ids ...string) audit.Expected {
	expected := audit.Expected{}
	for _, id := range ids {
		expected[id] = struct{}{}
	}
	return expected
}

func TestAnEventThatItsPublisherSendsTwiceIsExpectedOnce(t *testing.T) {
	o := order.StreamOptions{Events: 300, Seed: 7, PublisherDuplicates: 0.2}
	sends := 0
	expected := audit.Expect(o)
	for e := range order.Stream(o) {
		sends++
		require.Contains(t, expected, e.ID)
	}
	require.Len(t, expected, 300)
	require.Greater(t, sends, 300)
}
