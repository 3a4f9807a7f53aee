package shortcut

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/pginbox"
)

// The set is bounded: the last ids are in it, and never more than twice as many.
func TestMemoryIsBounded(t *testing.T) {
	m := newMemory(2)
	for _, id := range []string{"1", "2", "3", "4"} {
		m.after([]pginbox.Event{{ID: id}})
	}
	require.True(t, m.has("1") && m.has("4"))
	m.after([]pginbox.Event{{ID: "5"}})
	require.False(t, m.has("1") || m.has("2"), "forgotten")
	require.True(t, m.has("4") && m.has("5"), "the last two")
	require.LessOrEqual(t, len(m.younger)+len(m.older), 4)
}
