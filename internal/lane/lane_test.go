package lane_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/lane"
)

func TestHeld(t *testing.T) {
	var (
		once         = lane.Claim{Says: lane.ClaimsOnce}
		mayLose      = lane.Claim{Says: lane.MayLose}
		mayDuplicate = lane.Claim{Says: lane.MayDuplicate}
		mustDup      = lane.Claim{Says: lane.MayDuplicate, MustShow: true}
		mustAbort    = lane.Claim{Says: lane.ShowsAborted, MustShow: true}
		nothing      = lane.Claim{}
	)
	all := lane.Counts{Expected: 10, Once: 10}
	lost := lane.Counts{Expected: 10, Once: 9, Lost: 1}
	duplicated := lane.Counts{Expected: 10, Once: 9, Duplicated: 1}
	aborted := lane.Counts{Expected: 10, Once: 9, AbortedVisible: 1}
	reordered := lane.Counts{Expected: 10, Once: 9, Reordered: 1}
	lostToo := lane.Counts{Expected: 10, Once: 8, Duplicated: 1, Lost: 1}
	duplicatedToo := lane.Counts{Expected: 10, Once: 8, Duplicated: 1, AbortedVisible: 1}
	uninvited := lane.Counts{Expected: 10, Once: 10, Unexpected: 1}
	uninvitedDup := lane.Counts{Expected: 10, Once: 9, Duplicated: 1, Unexpected: 1}
	missing := lane.Counts{Expected: 10, Once: 9}
	tooMany := lane.Counts{Expected: 10, Once: 11}

	for _, c := range []struct {
		name  string
		claim lane.Claim
		holds []lane.Counts
		fails []lane.Counts
	}{
		{"once", once, []lane.Counts{all},
			[]lane.Counts{{}, lost, duplicated, aborted, reordered, uninvited, missing, tooMany}},
		{"may lose", mayLose, []lane.Counts{all, lost},
			[]lane.Counts{{}, duplicated, aborted, reordered, lostToo, uninvited, missing, tooMany}},
		{"may duplicate", mayDuplicate, []lane.Counts{all, duplicated},
			[]lane.Counts{{}, lost, aborted, reordered, lostToo, duplicatedToo, uninvited, uninvitedDup, missing, tooMany}},
		{"must duplicate", mustDup, []lane.Counts{duplicated},
			[]lane.Counts{{}, all, lost, aborted, reordered, lostToo, duplicatedToo, uninvitedDup, missing, tooMany}},
		{"must show aborted", mustAbort, []lane.Counts{aborted},
			[]lane.Counts{{}, all, lost, duplicated, reordered, lostToo, duplicatedToo, missing, tooMany}},
		{"may duplicate and show aborted", lane.Claim{Says: lane.MayDuplicateAndShowAborted, MustShow: true}, []lane.Counts{duplicated, aborted, duplicatedToo},
			[]lane.Counts{{}, all, lost, reordered, lostToo, uninvitedDup, missing, tooMany}},
		{"an empty claim is as strict as once", nothing, []lane.Counts{all},
			[]lane.Counts{{}, lost, duplicated, aborted, reordered}},
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

func TestCountsAddUp(t *testing.T) {
	var n lane.Counts
	for _, o := range []lane.Outcome{lane.Once, lane.Once, lane.Lost, lane.Duplicated, lane.AbortedVisible, lane.Reordered} {
		n.Add(o)
	}
	require.Equal(t, lane.Counts{Expected: 6, Once: 2, Lost: 1, Duplicated: 1, AbortedVisible: 1, Reordered: 1}, n)
}

// What the catalogue must be like for a report on any of its lanes to make sense.
func TestCatalogue(t *testing.T) {
	taken := map[string]bool{}
	for _, l := range slices.Concat(lane.All(), lane.Headline(false), lane.Headline(true)) {
		t.Run(l.Name, func(t *testing.T) {
			for _, name := range []string{l.Name, l.Short, l.Slug()} {
				require.False(t, taken[name], "the name %q is taken", name)
			}
			taken[l.Name], taken[l.Short], taken[l.Slug()] = true, true, true
			require.Regexp(t, `^[a-z0-9]+$`, l.Short)
			require.NotEmpty(t, l.Says)
			require.NotEmpty(t, l.Progress)
			require.NotEmpty(t, l.Scopes)
			require.Len(t, l.Claims, len(l.Scopes), "a claim for each scope, and no other")
			for _, step := range slices.Concat(l.Exposed, l.Pauses) {
				plain, _, _ := strings.Cut(step, "@")
				require.Contains(t, l.Steps, plain)
			}
			for _, s := range l.Scopes {
				claims := l.Claims[s]
				require.NotEmpty(t, claims.Always.Why, "in %s", s)
				for f, c := range claims.Under {
					require.NotEmpty(t, c.Why, "under %s in %s", f, s)
					require.False(t, c.MustShow && c.Says == lane.ClaimsOnce, "once has nothing to show")
				}
				quiet, _ := l.Claim(lane.NoFault, s)
				require.False(t, quiet.MustShow, "nothing has to go wrong where nothing is done")
			}
		})
	}
}

// The headline: what each approach claims when its instances are killed.
func TestClaimsUnderKill(t *testing.T) {
	for _, c := range []struct {
		lane     string
		scope    lane.Scope
		says     lane.Promise
		mustShow bool
	}{
		{lane.EOSPostgres, lane.Kafka, lane.ClaimsOnce, false},
		{lane.EOSPostgres, lane.KafkaUncommitted, lane.ShowsAborted, true},
		{lane.EOSPostgres, lane.Postgres, lane.MayDuplicate, true},
		{lane.InboxDirectProduce, lane.Kafka, lane.MayDuplicate, true},
		{lane.InboxDirectProduce, lane.KafkaUncommitted, lane.MayDuplicate, true},
		{lane.InboxDirectProduce, lane.Postgres, lane.ClaimsOnce, false},
		{lane.EOSPostgres + " + http", lane.Kafka, lane.ClaimsOnce, false},
		{lane.EOSPostgres + " + http", lane.Postgres, lane.MayDuplicate, true},
		{lane.EOSPostgres + " + http", lane.HTTP, lane.MayDuplicate, true},
		{lane.EOSPostgres + " + http + key", lane.HTTP, lane.ClaimsOnce, false},
		{lane.InboxDirectProduce + " + http", lane.Kafka, lane.MayDuplicate, true},
		{lane.InboxDirectProduce + " + http", lane.Postgres, lane.ClaimsOnce, false},
		{lane.InboxDirectProduce + " + http", lane.HTTP, lane.MayDuplicate, true},
		{lane.InboxDirectProduce + " + http + key", lane.HTTP, lane.ClaimsOnce, false},
	} {
		l, err := lane.Find(c.lane)
		require.NoError(t, err)
		claim, claimed := l.Claim(lane.Kill9, c.scope)
		require.True(t, claimed)
		require.Equal(t, c.says, claim.Says, "%s / %s", c.lane, c.scope)
		require.Equal(t, c.mustShow, claim.MustShow, "%s / %s", c.lane, c.scope)
	}
}

func TestCommand(t *testing.T) {
	l, err := lane.Find(lane.EOSPostgres)
	require.NoError(t, err)
	require.Equal(t, "go run ./cmd/eos-pipeline --guarantee=exactly-once --touch=postgres", l.Command())
	l, err = lane.Find(lane.InboxDirectProduce)
	require.NoError(t, err)
	require.Equal(t, "go run ./cmd/inbox-pipeline --guard=inbox --publish=direct", l.Command())
	require.Equal(t, "go run ./cmd/inbox-pipeline --guard=inbox --publish=direct --call=payments", lane.Headline(false)[1].Command())
	require.Equal(t, "go run ./cmd/eos-pipeline --guarantee=exactly-once --touch=postgres --call=payments --idempotency-key", lane.Headline(true)[0].Command())
}

// A key is as good as it is kept, and what comes again then finds nothing of the event
// that the lane has kept, either.
func TestClaimsOfAnExpiredKey(t *testing.T) {
	for _, c := range []struct {
		lane  string
		scope lane.Scope
		says  lane.Promise
	}{
		{"inbox + http + key", lane.HTTP, lane.MayDuplicate},
		{"inbox + http + key", lane.Postgres, lane.MayDuplicate},
		{"eos + http + key", lane.HTTP, lane.MayDuplicate},
		{"eos + http + key", lane.Kafka, lane.MayDuplicate},
	} {
		l, err := lane.Find(c.lane)
		require.NoError(t, err)
		require.True(t, l.SendsKey())
		claim, _ := l.Claim(lane.KeyExpired, c.scope)
		require.Equal(t, c.says, claim.Says, "%s / %s", c.lane, c.scope)
		require.True(t, claim.MustShow, "%s / %s", c.lane, c.scope)
		for _, f := range []lane.Fault{lane.Purged, lane.OffsetsRewound, lane.PublisherDuplicates} {
			claim, _ = l.Claim(f, lane.HTTP)
			require.Equal(t, lane.ClaimsOnce, claim.Says, "%s under %s", c.lane, f)
		}
	}
}

func TestFind(t *testing.T) {
	_, err := lane.Find("inbx")
	require.ErrorContains(t, err, `there is no lane "inbx"; the nearest: inbox; compare lanes lists all`)
	l, err := lane.Find("inbox-async-commit-gated")
	require.NoError(t, err)
	require.Equal(t, "inbox, async commit, gated", l.Name)
	l, err = lane.Find("inbox-direct-produce-http-key")
	require.NoError(t, err, "those of the headline are found, too")
	require.Equal(t, lane.Headline(true)[1].Name, l.Name)
}
