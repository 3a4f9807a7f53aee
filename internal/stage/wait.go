package stage

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/outbox"
	"github.com/delivered-twice/delivered-twice/internal/trace"
)

// poll is how often something is looked at that nobody tells of.
const poll = 20 * time.Millisecond

// Await waits until reached says so. What it returns beside false is the reason that
// is told if ctx ends first, or if a member ends that nobody has ended.
func (s *Stage) Await(ctx context.Context, what string, reached func(context.Context) (bool, error)) error {
	var reason error
	for {
		ok, err := reached(ctx)
		if ok {
			return nil
		}
		if err != nil && ctx.Err() == nil {
			reason = err
		}
		if err := s.surprise(); err != nil {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
		if s.provider != nil && s.provider.failure() != nil {
			return fmt.Errorf("wait for %s: %w", what, s.provider.failure())
		}
		if err := wait(ctx, poll); err != nil {
			return fmt.Errorf("wait for %s: %w", what, errors.Join(err, reason))
		}
	}
}

// AwaitStep waits until a member has passed a step n times.
func (s *Stage) AwaitStep(ctx context.Context, m *Member, step string, n int) error {
	return s.Await(ctx, fmt.Sprintf("%s to pass %s, %d times", m.Attempt, step, n), func(context.Context) (bool, error) {
		passed, err := m.Passed(step)
		return passed >= n, err
	})
}

// AwaitPassings waits until a member has passed steps, whichever, n times.
func (s *Stage) AwaitPassings(ctx context.Context, m *Member, n int) error {
	return s.Await(ctx, fmt.Sprintf("%s to pass steps, %d times", m.Attempt, n), func(context.Context) (bool, error) {
		passed, err := m.Passings()
		return passed >= n, err
	})
}

// AwaitStopped waits until a member stands still at a failpoint that pauses it.
func (s *Stage) AwaitStopped(ctx context.Context, m *Member) error {
	if err := s.Await(ctx, m.Attempt+" to stand still", func(context.Context) (bool, error) { return m.Stopped() }); err != nil {
		return err
	}
	return m.keep(trace.Incident{What: paused})
}

// AwaitMembers waits until the group has formed with so many members; behind a webhook,
// until so many can be reached.
func (s *Stage) AwaitMembers(ctx context.Context, n int) error {
	return s.Await(ctx, fmt.Sprintf("group %s to have %d members", s.Group, n), func(ctx context.Context) (bool, error) {
		state, members, err := s.groupState(ctx)
		if err != nil {
			return false, err
		}
		if state != "Stable" || members != n {
			return false, fmt.Errorf("it is %q with %d", state, members)
		}
		return true, nil
	})
}

func (s *Stage) groupState(ctx context.Context) (state string, members int, err error) {
	if byWebhook(s.Lane) {
		return "Stable", s.provider.listening(ctx), nil
	}
	if s.Lane.Progress == lane.SharedRecords {
		groups, err := s.Admin.DescribeShareGroups(ctx, s.Group)
		if err != nil {
			return "", 0, err
		}
		g := groups[s.Group]
		return g.GroupState, len(g.Members), g.Err
	}
	groups, err := s.Admin.DescribeGroups(ctx, s.Group)
	if err != nil {
		return "", 0, err
	}
	g := groups[s.Group]
	return g.State, len(g.Members), g.Err
}

// stall ends a wait in which nothing has moved for so long. It is longer than any
// timeout that a pipeline waits out.
const stall = 90 * time.Second

// AwaitConsumed waits until everything that was sent is consumed, by the lane's own
// account. It gives up where the lane does not get any further.
func (s *Stage) AwaitConsumed(ctx context.Context) error { return s.AwaitConsumedBy(ctx, s.Group) }

// AwaitConsumedBy does so for another group than the stage's.
func (s *Stage) AwaitConsumedBy(ctx context.Context, group string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	moved := time.AfterFunc(stall, func() { cancel(fmt.Errorf("nothing has moved for %v", stall)) })
	defer moved.Stop()
	var before error
	return s.Await(ctx, "group "+group+" of lane "+s.Lane.Name+" to consume all", func(ctx context.Context) (bool, error) {
		done, err := s.consumed(ctx, group)
		if err != nil && (before == nil || err.Error() != before.Error()) {
			before = err
			moved.Reset(stall)
		}
		return done, err
	})
}

func (s *Stage) consumed(ctx context.Context, group string) (bool, error) {
	behind, err := s.behind(ctx, group)
	if len(behind) > 0 && byWebhook(s.Lane) {
		return false, fmt.Errorf("%d webhooks are not answered with 2xx", behind[0])
	}
	if len(behind) > 0 {
		return false, fmt.Errorf("of topic %s, by partition, so many records are not consumed: %v", s.Input, behind)
	}
	if err != nil || !s.Lane.Outbox {
		return err == nil, err
	}
	unpublished, err := s.unpublished(ctx)
	if unpublished > 0 {
		return false, fmt.Errorf("%d rows of the outbox are not published", unpublished)
	}
	return err == nil, err
}

// unpublished counts the rows that are pending in the lane's outbox.
func (s *Stage) unpublished(ctx context.Context) (int64, error) {
	conn, err := pgx.Connect(ctx, s.DatabaseURL)
	if err != nil {
		return 0, fmt.Errorf("look into the outbox: %w", err)
	}
	defer conn.Close(ctx)
	backlog, err := outbox.ReadBacklog(ctx, conn)
	return backlog.Pending, err
}

// Pending counts the records that are not consumed yet, by the lane's own account. It
// waits until there is somebody to ask.
func (s *Stage) Pending(ctx context.Context) (int, error) {
	n := 0
	err := s.Await(ctx, "an answer on how far lane "+s.Lane.Name+" is", func(ctx context.Context) (bool, error) {
		behind, err := s.behind(ctx, s.Group)
		n = 0
		for _, records := range behind {
			n += int(records)
		}
		return err == nil, err
	})
	return n, err
}

// behind returns how many records of which partitions are not consumed yet.
func (s *Stage) behind(ctx context.Context, group string) (map[int32]int64, error) {
	if byWebhook(s.Lane) {
		behind := make(map[int32]int64)
		if n := s.provider.left.Load(); n > 0 {
			behind[0] = n
		}
		return behind, nil
	}
	ends, err := s.Admin.ListEndOffsets(ctx, s.Input)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("list end offsets of topic %s: %w", s.Input, err)
	}
	if s.Lane.Progress == lane.SharedRecords {
		return s.shared(ctx, group, ends)
	}
	at, err := s.progress(ctx, group)
	if err != nil {
		return nil, err
	}
	behind := make(map[int32]int64)
	ends.Each(func(end kadm.ListedOffset) {
		if n := end.Offset - max(at[end.Partition], 0); n > 0 { // -1 where nothing is known
			behind[end.Partition] = n
		}
	})
	return behind, nil
}

// progress returns how far a group of the lane is in each partition.
func (s *Stage) progress(ctx context.Context, group string) (map[int32]int64, error) {
	at := make(map[int32]int64)
	switch s.Lane.Progress {
	case lane.StoredOffsets:
		return s.storedOffsets(ctx)
	default:
		offsets, err := s.Admin.FetchOffsets(ctx, group)
		if errors.Is(err, kerr.GroupIDNotFound) {
			return at, nil // no member has come yet
		}
		if err != nil {
			return nil, fmt.Errorf("fetch offsets of group %s: %w", group, err)
		}
		for partition, o := range offsets[s.Input] {
			at[partition] = o.At
		}
	}
	return at, nil
}

// shared returns how many records of which partitions a share group has not finished
// with. The start offset alone does not tell: the broker writes down how far it has
// moved only together with the next acknowledgement. The lag does (KIP-1226), where
// there is one.
func (s *Stage) shared(ctx context.Context, group string, ends kadm.ListedOffsets) (map[int32]int64, error) {
	groups, err := s.Admin.DescribeShareGroupOffsets(ctx, group)
	if err != nil {
		return nil, err
	}
	g := groups[group]
	if g.Err != nil && !errors.Is(g.Err, kerr.GroupIDNotFound) { // else no member has come yet
		return nil, fmt.Errorf("fetch offsets of share group %s: %w", group, g.Err)
	}
	behind := make(map[int32]int64)
	ends.Each(func(end kadm.ListedOffset) {
		at, known := g.Offsets[s.Input][end.Partition]
		left := end.Offset
		switch {
		case known && at.Lag >= 0:
			left = at.Lag
		case known:
			left -= max(at.StartOffset, 0) // -1 where nothing is known
		}
		if left > 0 {
			behind[end.Partition] = left
		}
	})
	return behind, nil
}

// undefinedTable is the SQLSTATE of a table that is not there (PostgreSQL manual,
// appendix A).
const undefinedTable = "42P01"

// storedOffsets returns for each partition the smallest offset of any handler.
func (s *Stage) storedOffsets(ctx context.Context) (map[int32]int64, error) {
	conn, err := pgx.Connect(ctx, s.DatabaseURL)
	if err != nil {
		return nil, fmt.Errorf("look up the stored offsets: %w", err)
	}
	defer conn.Close(ctx)
	at := make(map[int32]int64)
	var partition int32
	var next int64
	// An error of the query is in its rows, too.
	rows, _ := conn.Query(ctx, `SELECT partition, min(next_offset) FROM stored_offsets WHERE topic = $1 GROUP BY partition`, s.Input)
	_, err = pgx.ForEachRow(rows, []any{&partition, &next}, func() error {
		at[partition] = next
		return nil
	})
	var answered *pgconn.PgError
	if errors.As(err, &answered) && answered.Code == undefinedTable {
		return at, nil // no member has come yet
	}
	if err != nil {
		return nil, fmt.Errorf("look up the stored offsets: %w", err)
	}
	return at, nil
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
