package lane_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/lane"
)

// The words that tables show and files keep.
func TestPromiseInWords(t *testing.T) {
	for _, c := range []struct {
		promise lane.Promise
		says    string
	}{
		{lane.ClaimsOnce, "once"},
		{lane.MayLose, "may lose"},
		{lane.MayDuplicate, "may duplicate"},
		{lane.MayReorder, "may reorder"},
		{lane.ShowsAborted, "aborted visible"},
		{lane.MayDuplicateAndShowAborted, "may duplicate, aborted visible"},
		{lane.MayReorder | lane.MayLose, "may lose, may reorder"},
		{lane.MayLose | lane.MayDuplicate | lane.MayReorder | lane.ShowsAborted, "may lose, may duplicate, may reorder, aborted visible"},
		{lane.NotApplicable, "not applicable"},
	} {
		t.Run(c.says, func(t *testing.T) {
			require.Equal(t, c.says, c.promise.String())
			written, err := json.Marshal(c.promise)
			require.NoError(t, err)
			require.JSONEq(t, `"`+c.says+`"`, string(written))
			read := lane.MayReorder // of what was there before nothing remains
			require.NoError(t, json.Unmarshal(written, &read))
			require.Equal(t, c.promise, read)
		})
	}
	for _, nonsense := range []string{`""`, `"may explode"`, `"may lose, may explode"`, `"once, may lose"`, `"may lose,may duplicate"`} {
		var p lane.Promise
		require.Error(t, json.Unmarshal([]byte(nonsense), &p), nonsense)
	}
}

func TestHeldWhereSeveralOutcomesAreAllowed(t *testing.T) {
	const either = lane.MayLose | lane.MayDuplicate
	all := lane.Counts{Expected: 10, Once: 10}
	lost := lane.Counts{Expected: 10, Once: 9, Lost: 1}
	duplicated := lane.Counts{Expected: 10, Once: 9, Duplicated: 1}
	both := lane.Counts{Expected: 10, Once: 8, Lost: 1, Duplicated: 1}
	reordered := lane.Counts{Expected: 10, Once: 9, Reordered: 1}
	more := lane.Counts{Expected: 10, Once: 7, Lost: 1, Duplicated: 1, Reordered: 1}
	missing := lane.Counts{Expected: 10, Once: 7, Lost: 1, Duplicated: 1}

	for _, c := range []struct {
		name  string
		claim lane.Claim
		holds []lane.Counts
		fails []lane.Counts
	}{
		{"may lose, may duplicate", lane.Claim{Says: either},
			[]lane.Counts{all, lost, duplicated, both}, []lane.Counts{{}, reordered, more, missing}},
		{"one of both must show", lane.Claim{Says: either, MustShow: true},
			[]lane.Counts{lost, duplicated, both}, []lane.Counts{all, more}},
		{"the loss must show", lane.Claim{Says: either, Shows: lane.MayLose},
			[]lane.Counts{lost, both}, []lane.Counts{all, duplicated, more}},
		{"each must show", lane.Claim{Says: either, Shows: either},
			[]lane.Counts{both}, []lane.Counts{all, lost, duplicated, more}},
		{"what must show but is not allowed", lane.Claim{Says: lane.MayLose, Shows: lane.MayDuplicate},
			nil, []lane.Counts{all, lost, duplicated, both}},
		{"may reorder", lane.Claim{Says: lane.MayReorder},
			[]lane.Counts{all, reordered}, []lane.Counts{lost, duplicated, more}},
		{"not applicable", lane.Claim{Says: lane.NotApplicable},
			nil, []lane.Counts{{}, all, lost, reordered}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, n := range c.holds {
				require.True(t, c.claim.Held(n), "%+v", n)
			}
			for _, n := range c.fails {
				require.False(t, c.claim.Held(n), "%+v", n)
			}
		})
	}
}
