package nearest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/nearest"
)

func TestHint(t *testing.T) {
	names := []string{"none", "inbox", "inbox-http", "kill-9", "broker-killed", "zombie", "at-most-once"}
	for name, want := range map[string]string{
		"inbx":        "; the nearest: inbox",
		"zombi":       "; the nearest: zombie",
		"kill9":       "; the nearest: kill-9",
		"kill":        "; the nearest: kill-9, broker-killed",
		"inbox-htpt":  "; the nearest: inbox-http",
		"atmostonce":  "; the nearest: at-most-once",
		"":            "",
		"x":           "",
		"no":          "",
		"qqqqqqqqqqq": "",
		"postgres":    "",
	} {
		require.Equal(t, want, nearest.Hint(name, names), name)
	}
}

func TestNames(t *testing.T) {
	require.Equal(t, []string{"evt_2", "evt_12"}, nearest.Names("evt_2", []string{"evt_99", "evt_12", "evt_2"}, 2))
	require.Empty(t, nearest.Names("evt_2", nil, 2))
}
