package shortcut_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/pginbox"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
	"github.com/delivered-twice/delivered-twice/internal/shortcut"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

// bench is a schema with a table of work, and a Redis.
type bench struct {
	t     *testing.T
	pool  *pgxpool.Pool
	redis *miniredis.Miniredis
}

func newBench(t *testing.T) *bench {
	t.Helper()
	url := sandboxtest.Database(t)
	require.NoError(t, pginbox.Migrate(t.Context(), url))
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	require.NoError(t, shortcut.Migrate(t.Context(), pool))
	require.NoError(t, shortcut.Migrate(t.Context(), pool), "again")
	_, err = pool.Exec(t.Context(), `CREATE TABLE work (handler text NOT NULL, event_id text NOT NULL)`)
	require.NoError(t, err)
	return &bench{t: t, pool: pool, redis: miniredis.RunT(t)}
}

// worker is a handler that does its work, unless fail says otherwise.
func worker(name string, fail func(id string) error) pginbox.Handler {
	return pginbox.Handler{Name: name, Handle: func(ctx context.Context, tx pgx.Tx, events []pginbox.Event) error {
		for _, e := range events {
			if _, err := tx.Exec(ctx, `INSERT INTO work (handler, event_id) VALUES ($1, $2)`, name, e.ID); err != nil {
				return err
			}
			if err := fail(e.ID); err != nil {
				return err
			}
		}
		return nil
	}}
}

func never(string) error { return nil }

func (b *bench) guard(g shortcut.Guard, hook pginbox.Hook, handlers ...pginbox.Handler) *shortcut.Shortcut {
	b.t.Helper()
	client := redis.NewClient(&redis.Options{Addr: b.redis.Addr(), MaxRetries: -1})
	b.t.Cleanup(func() { _ = client.Close() })
	s, err := shortcut.New(b.pool, shortcut.Options{
		Guard: g, Handlers: handlers, Redis: client, Hook: hook, RetryBackoff: time.Millisecond,
	})
	require.NoError(b.t, err)
	return s
}

func events(ids ...string) []pginbox.Event {
	var all []pginbox.Event
	for i, id := range ids {
		all = append(all, pginbox.Event{ID: id, Record: &kgo.Record{Topic: "orders", Partition: 1, Offset: int64(i), Value: []byte(id)}})
	}
	return all
}

// work returns what was done, as handler/id, sorted.
func (b *bench) work() []string {
	return b.column(`SELECT handler || '/' || event_id FROM work ORDER BY 1`)
}

func (b *bench) letters() []string {
	return b.column(`SELECT handler || '/' || convert_from(event_id, 'UTF8') || ' ' || attempts || ' ' || error FROM dead_letters ORDER BY 1`)
}

func (b *bench) column(sql string) []string {
	b.t.Helper()
	rows, err := b.pool.Query(b.t.Context(), sql)
	require.NoError(b.t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(b.t, err)
	return all
}

func each(t *testing.T, test func(t *testing.T, g shortcut.Guard)) {
	for _, g := range shortcut.Guards() {
		t.Run(string(g), func(t *testing.T) { test(t, g) })
	}
}

// keepsIDs says that a guard absorbs what comes again in the same process.
func keepsIDs(g shortcut.Guard) bool {
	return g == shortcut.Memory || g == shortcut.SelectFirst || g == shortcut.Redis
}

func TestWhatComesAgain(t *testing.T) {
	each(t, func(t *testing.T, g shortcut.Guard) {
		b := newBench(t)
		s := b.guard(g, nil, worker("a", never), worker("b", never))
		require.NoError(t, s.Process(t.Context(), nil))
		require.NoError(t, s.Process(t.Context(), events("1", "2", "1")))
		require.NoError(t, s.Process(t.Context(), events("2", "3")))
		if keepsIDs(g) {
			require.Equal(t, []string{"a/1", "a/2", "a/3", "b/1", "b/2", "b/3"}, b.work())
		} else {
			require.Equal(t, []string{"a/1", "a/1", "a/2", "a/2", "a/3", "b/1", "b/1", "b/2", "b/2", "b/3"}, b.work())
		}
	})
}

// Steps says which steps are passed, and in which order.
func TestSteps(t *testing.T) {
	each(t, func(t *testing.T, g shortcut.Guard) {
		b := newBench(t)
		var passed []pginbox.Step
		hook := func(_ context.Context, p pginbox.Passage) error {
			require.Equal(t, p.Step == pginbox.Worked, p.Handler == "a", "only Worked is passed by a handler")
			require.Equal(t, events("1"), p.Events)
			passed = append(passed, p.Step)
			return nil
		}
		require.NoError(t, b.guard(g, hook, worker("a", never)).Process(t.Context(), events("1")))
		require.Equal(t, slices.DeleteFunc(shortcut.Steps(g), func(s pginbox.Step) bool {
			return s == pginbox.Polled || s == pginbox.Acknowledged
		}), passed)
	})
	require.Nil(t, shortcut.Steps("dog"))
}

// What cannot be handled becomes a dead letter of its handler; the rest is done.
func TestPoison(t *testing.T) {
	each(t, func(t *testing.T, g shortcut.Guard) {
		b := newBench(t)
		poisoned := worker("a", func(id string) error {
			switch id {
			case "poison":
				return errors.New("it \x00 tastes\xff bad")
			case "panic":
				panic("help")
			}
			return nil
		})
		require.NoError(t, b.guard(g, nil, poisoned, worker("b", never)).Process(t.Context(), events("1", "poison", "2", "panic")))
		require.Equal(t, []string{"a/1", "a/2", "b/1", "b/2", "b/panic", "b/poison"}, b.work())
		letters := b.letters()
		require.Len(t, letters, 2)
		require.Contains(t, letters[0], "a/panic 3 panic: help")
		require.Equal(t, "a/poison 3 it \uFFFD tastes\uFFFD bad", letters[1])
	})
}

// What fails and then doesn't is done with the rest, and is no dead letter.
func TestFailureThatPasses(t *testing.T) {
	each(t, func(t *testing.T, g shortcut.Guard) {
		b := newBench(t)
		failures := 0
		moody := worker("a", func(id string) error {
			if failures++; id == "2" && failures < 5 {
				return errors.New("not now")
			}
			return nil
		})
		require.NoError(t, b.guard(g, nil, moody).Process(t.Context(), events("1", "2", "3")))
		require.Equal(t, []string{"a/1", "a/2", "a/3"}, b.work())
		require.Empty(t, b.letters())
	})
}

// What a handler marks is believed: a permanent error is not tried again, and one that
// is nobody's fault never counts.
func TestMarkedErrors(t *testing.T) {
	each(t, func(t *testing.T, g shortcut.Guard) {
		b := newBench(t)
		away := 5
		marked := worker("a", func(id string) error {
			if id == "2" && away > 0 {
				away--
				return pginbox.Unavailable(errors.New("not now"))
			}
			if id == "2" {
				return pginbox.Permanent(errors.New("never"))
			}
			return nil
		})
		require.NoError(t, b.guard(g, nil, marked).Process(t.Context(), events("1", "2", "3")))
		require.Equal(t, []string{"a/1", "a/3"}, b.work())
		require.Equal(t, []string{"a/2 1 never"}, b.letters())
	})
}

// A COMMIT that Postgres refuses is the fault of one of the events.
func TestRefusedCommit(t *testing.T) {
	b := newBench(t)
	_, err := b.pool.Exec(t.Context(), `ALTER TABLE work ADD UNIQUE (handler, event_id) DEFERRABLE INITIALLY DEFERRED`)
	require.NoError(t, err)
	s := b.guard(shortcut.None, nil, worker("a", never))
	require.NoError(t, s.Process(t.Context(), events("1")))
	err = s.Process(t.Context(), events("1", "2"))
	require.ErrorContains(t, err, "commit: ERROR: duplicate key")
	require.Equal(t, []string{"a/1"}, b.work())
}

// An outage before the commit is waited out; one after it, when nobody knows whether
// it was done, makes a duplicate, unless the database is asked.
func TestOutages(t *testing.T) {
	each(t, func(t *testing.T, g shortcut.Guard) {
		for _, step := range shortcut.Steps(g) {
			if step == pginbox.Polled || step == pginbox.Acknowledged {
				continue
			}
			t.Run(string(step), func(t *testing.T) {
				b := newBench(t)
				failed := false
				s := b.guard(g, func(_ context.Context, p pginbox.Passage) error {
					if p.Step == step && !failed {
						failed = true
						return errors.New("down")
					}
					return nil
				}, worker("a", never))
				require.NoError(t, s.Process(t.Context(), events("1")))
				if step == pginbox.Committed && g != shortcut.SelectFirst {
					require.Equal(t, []string{"a/1", "a/1"}, b.work())
				} else {
					require.Equal(t, []string{"a/1"}, b.work())
				}
			})
		}
	})
}

// A connection that breaks under the handler is not the events' fault, whatever the
// handler makes of it.
func TestBrokenConnection(t *testing.T) {
	b := newBench(t)
	attempts := 0
	breaking := pginbox.Handler{Name: "a", Handle: func(ctx context.Context, tx pgx.Tx, _ []pginbox.Event) error {
		if attempts++; attempts < 5 {
			_, _ = tx.Exec(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
			return errors.New("as a handler may put it")
		}
		return errors.New("bad")
	}}
	require.NoError(t, b.guard(shortcut.None, nil, breaking).Process(t.Context(), events("1")))
	require.Equal(t, []string{"a/1 3 bad"}, b.letters(), "what is not its fault does not count")
}

// A table that is missing will not come by waiting.
func TestMissingTable(t *testing.T) {
	b := newBench(t)
	_, err := b.pool.Exec(t.Context(), `DROP TABLE selected_ids`)
	require.NoError(t, err)
	err = b.guard(shortcut.SelectFirst, nil, worker("a", never)).Process(t.Context(), events("1"))
	require.ErrorContains(t, err, "selected_ids")
}

// Claims that Redis answered before it went away are not taken for somebody else's.
func TestRedisAwayForAWhile(t *testing.T) {
	b := newBench(t)
	client := redis.NewClient(&redis.Options{Addr: b.redis.Addr(), MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	cut := &cutPipeline{}
	client.AddHook(cut)
	s, err := shortcut.New(b.pool, shortcut.Options{
		Guard: shortcut.Redis, Handlers: []pginbox.Handler{worker("a", never)}, RetryBackoff: time.Millisecond, Redis: client,
	})
	require.NoError(t, err)
	require.NoError(t, s.Process(t.Context(), events("1", "2", "3")))
	require.Equal(t, []string{"a/1", "a/2", "a/3"}, b.work())
	require.Equal(t, []string{"1", "2", "3", "2", "3"}, cut.claimed)
}

// cutPipeline cuts the first pipeline of claims after its first command.
type cutPipeline struct{ claimed []string }

func (*cutPipeline) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*cutPipeline) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (c *cutPipeline) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() != "set" { // what a connection begins with
			return next(ctx, cmds)
		}
		first := len(c.claimed) == 0
		for _, cmd := range cmds {
			c.claimed = append(c.claimed, cmd.Args()[1].(string))
		}
		if !first {
			return next(ctx, cmds)
		}
		for _, cmd := range cmds[1:] {
			cmd.SetErr(io.ErrUnexpectedEOF)
		}
		return errors.Join(next(ctx, cmds[:1]), io.ErrUnexpectedEOF)
	}
}

// A process that is told to stop, and does not get its work done, takes its claims
// back: the events come again.
func TestRedisClaimsTakenBack(t *testing.T) {
	b := newBench(t)
	ctx, stop := context.WithCancel(t.Context())
	away := b.guard(shortcut.Redis, func(_ context.Context, p pginbox.Passage) error {
		if p.Step != pginbox.Begun {
			return nil
		}
		stop()
		return errors.New("down")
	}, worker("a", never))
	require.ErrorIs(t, away.Process(ctx, events("1", "2")), context.Canceled)
	require.NoError(t, b.guard(shortcut.Redis, nil, worker("a", never)).Process(t.Context(), events("1", "2")))
	require.Equal(t, []string{"a/1", "a/2"}, b.work())
}

// Where no id came with an event, its bytes stand for it.
func TestEventsWithoutIDs(t *testing.T) {
	b := newBench(t)
	s := b.guard(shortcut.Memory, nil, worker("a", never))
	same := []pginbox.Event{{Record: &kgo.Record{Value: []byte("x")}}, {Record: &kgo.Record{Value: []byte("x")}}, {}}
	require.NoError(t, s.Process(t.Context(), same))
	require.Len(t, b.work(), 2)
	require.True(t, strings.HasPrefix(b.work()[0], "a/sha256:"), b.work())
}

func TestNewRefuses(t *testing.T) {
	ok := worker("a", never)
	for says, o := range map[string]shortcut.Options{
		`unknown guard "dog"`:    {Guard: "dog", Handlers: []pginbox.Handler{ok}},
		"no handler":             {Guard: shortcut.None},
		"no name or no function": {Guard: shortcut.None, Handlers: []pginbox.Handler{{Name: "a"}}},
		`are named "a"`:          {Guard: shortcut.None, Handlers: []pginbox.Handler{ok, ok}},
		"at least 1":             {Guard: shortcut.None, Handlers: []pginbox.Handler{ok}, MaxAttempts: -1},
		"must be positive":       {Guard: shortcut.None, Handlers: []pginbox.Handler{ok}, RetryBackoff: -1},
		"needs a client":         {Guard: shortcut.Redis, Handlers: []pginbox.Handler{ok}},
		"at least 1ms":           {Guard: shortcut.Redis, Handlers: []pginbox.Handler{ok}, Redis: redis.NewClient(&redis.Options{}), RedisTTL: -1},
	} {
		_, err := shortcut.New(nil, o)
		require.ErrorContains(t, err, says, fmt.Sprintf("%+v", o))
	}
}
