package matrix_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/fault"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/matrix"
	"github.com/delivered-twice/delivered-twice/internal/sandbox"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

// What is left out differs in nothing: every lane, every fault that can be injected,
// and everything that must show is there.
func TestQuick(t *testing.T) {
	services, err := sandbox.Start(t.Context(), sandbox.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, services.Close()) })

	cells := matrix.Cells(lane.All(), fault.All(), 1)
	quick := matrix.Quick(cells, services)
	lanes, faults, there := map[string]bool{}, map[lane.Fault]bool{}, map[string]bool{}
	for _, c := range quick {
		lanes[c.Lane.Name], faults[c.Fault.Name], there[c.String()] = true, true, true
	}
	for _, c := range cells {
		require.True(t, lanes[c.Lane.Name], "lane %s", c.Lane.Name)
		if c.Unfit(services) != "" {
			continue
		}
		require.True(t, faults[c.Fault.Name], "fault %s", c.Fault.Name)
		if c.MustShow() {
			require.True(t, there[c.String()], "%s must show something", c)
		}
	}
	require.Less(t, len(quick), len(cells)/2)
}

// Each fault that a claim speaks of is one that can be injected.
func TestClaimsSpeakOfFaultsThatThereAre(t *testing.T) {
	faults := map[lane.Fault]bool{lane.Kill9AndDuplicates: true} // that of a run side by side
	for _, f := range fault.All() {
		require.False(t, faults[f.Name], "%s twice", f.Name)
		faults[f.Name] = true
		require.NotEmpty(t, f.Says)
	}
	for _, l := range lane.All() {
		for s, claims := range l.Claims {
			for f := range claims.Under {
				require.True(t, faults[f], "lane %s claims something in %s under %q", l.Name, s, f)
			}
		}
	}
}
