package audit_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/audit"
)

func TestOvertakenTellsBeforeWhichEffect(t *testing.T) {
	second := audit.Effect{EventID: "a2", Where: "picked", Position: "1@9", Key: "A", Sequence: 2}
	third := audit.Effect{EventID: "a3", Where: "pick_tasks", Position: "12", Key: "A", Sequence: 3}
	first := audit.Effect{EventID: "a1", Where: "picked", Position: "1@10", Key: "A", Sequence: 1}
	late := audit.Effect{EventID: "a2", Where: "pick_tasks", Position: "13", Key: "A", Sequence: 2}
	require.Equal(t, map[string]audit.Overtaking{
		"a1": {First: first, By: second},
		"a2": {First: late, By: third},
	}, audit.Overtaken([]audit.Effect{
		// However they are mixed: 9 is before 10, and a duplicate is none of it.
		{EventID: "a2", Where: "pick_tasks", Position: "14", Key: "A", Sequence: 2},
		first,
		second,
		third,
		late,
		{EventID: "a1", Where: "pick_tasks", Position: "2", Key: "A", Sequence: 1},
		{EventID: "a3", Where: "picked", Position: "1@2", Key: "A", Sequence: 3, Aborted: true},
		{EventID: "a1", Where: "loyalty_points", Position: "3"},
	}))
}

func TestEffectsFromTheirFile(t *testing.T) {
	dir := t.TempDir()
	effects := []audit.Effect{
		{EventID: "a", Attempt: "eos-0.1", Where: "picked", Position: "1@2", At: time.Now().UTC().Round(0), Aborted: true, Key: "A", Sequence: 2},
		{EventID: "b", Where: "loyalty_points", Position: "17"},
	}
	require.NoError(t, audit.WriteEffects(dir, effects))
	got, err := audit.ReadEffects(dir)
	require.NoError(t, err)
	require.Equal(t, effects, got)
	_, err = audit.ReadEffects(t.TempDir())
	require.ErrorIs(t, err, os.ErrNotExist)
}
