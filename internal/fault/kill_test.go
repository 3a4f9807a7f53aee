package fault_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/fault"
)

func TestPlanKills(t *testing.T) {
	o := fault.KillOptions{
		Seed: 7, Kills: 40, Instances: 3, Passings: 5,
		Steps: []string{"polled", "worked", "committed"}, Exposed: []string{"worked"},
	}
	plan := fault.PlanKills(o)
	require.Equal(t, plan, fault.PlanKills(o), "the seed is the plan")
	require.Len(t, plan, 40)
	seen := make(map[string]bool)
	for i, k := range plan {
		require.Equal(t, i%3, k.Instance)
		require.Contains(t, o.Steps, k.Step)
		require.GreaterOrEqual(t, k.Passing, 1)
		require.LessOrEqual(t, k.Passing, 5)
		if i < o.Instances {
			require.Equal(t, "worked", k.Step, "the first kill of an instance strikes where it costs something")
		}
		seen[k.Step] = true
	}
	require.Len(t, seen, 3, "every step has its turn")
	o.Exposed = []string{"worked@a", "worked@b", "worked@c", "worked@d"}
	for i, k := range fault.PlanKills(o)[:len(o.Exposed)] {
		require.Equal(t, o.Exposed[i], k.Step, "each step that costs something else has its turn")
	}
	o.Exposed = o.Exposed[:1]
	require.Equal(t, "worked@a", fault.PlanKills(o)[2].Step)
	o.Seed = 8
	require.NotEqual(t, plan, fault.PlanKills(o))
	o.Kills = 0
	require.Empty(t, fault.PlanKills(o))
}
