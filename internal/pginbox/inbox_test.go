package pginbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/pginbox"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

func TestFiveDeliveriesAreFiveAcknowledgementsAndOneEffect(t *testing.T) {
	for _, keys := range bothKeys {
		t.Run(string(keys), func(t *testing.T) {
			db := newDatabase(t)
			in := db.inbox(pginbox.Options{Keys: keys, Handlers: []pginbox.Handler{worker("warehouse")}})
			for range 5 {
				require.NoError(t, in.Process(within(t), events("evt_9f3k")))
			}
			require.Equal(t, []string{"evt_9f3k"}, db.done("warehouse"))
			require.NoError(t, in.Process(within(t), events("evt_9f3l")))
			require.Equal(t, []string{"evt_9f3k", "evt_9f3l"}, db.done("warehouse"))
			require.Empty(t, db.letters())
		})
	}
}

func TestTheSameIDTwiceInABatch(t *testing.T) {
	for _, keys := range bothKeys {
		t.Run(string(keys), func(t *testing.T) {
			db := newDatabase(t)
			var got [][]pginbox.Event
			h := worker("warehouse")
			handle := h.Handle
			h.Handle = func(ctx context.Context, tx pgx.Tx, events []pginbox.Event) error {
				got = append(got, events)
				return handle(ctx, tx, events)
			}
			in := db.inbox(pginbox.Options{Keys: keys, Handlers: []pginbox.Handler{h}})
			batch := events("evt_c", "evt_a", "evt_c", "evt_b", "evt_a")
			require.NoError(t, in.Process(within(t), batch))
			require.Equal(t, []string{"evt_c", "evt_a", "evt_b"}, db.done("warehouse"), "each once, in the order of delivery")
			require.Len(t, got, 1)
			require.Same(t, batch[0].Record, got[0][0].Record, "the first of the two")

			// Some fresh, some not.
			require.NoError(t, in.Process(within(t), events("evt_z", "evt_a", "evt_y", "evt_z", "evt_b")))
			require.Equal(t, []string{"evt_c", "evt_a", "evt_b", "evt_z", "evt_y"}, db.done("warehouse"))
			// None fresh: nothing to hand over.
			require.NoError(t, in.Process(within(t), batch))
			require.NoError(t, in.Process(within(t), nil))
			require.Len(t, got, 2)
		})
	}
}

// Batches that are fresh throughout are inserted in another way than those after one
// that was not.
func TestRedeliveriesFarApart(t *testing.T) {
	for _, keys := range bothKeys {
		t.Run(string(keys), func(t *testing.T) {
			db := newDatabase(t)
			var insertions []int // transactions begun for each batch
			in := db.inbox(pginbox.Options{Keys: keys, Handlers: []pginbox.Handler{worker("warehouse")}, Hook: func(_ context.Context, p pginbox.Passage) error {
				if p.Step == pginbox.Begun {
					insertions[len(insertions)-1]++
				}
				return nil
			}})
			var all []string
			process := func(batch ...string) {
				insertions = append(insertions, 0)
				require.NoError(t, in.Process(within(t), events(batch...)))
				for _, id := range batch {
					if !slices.Contains(all, id) {
						all = append(all, id)
					}
				}
			}
			for i := range 60 {
				id := fmt.Sprintf("evt_%02d", i)
				if i%20 == 19 {
					process("evt_00", id, all[len(all)-1])
					process(all[len(all)-2:]...)
				} else {
					process(id)
				}
			}
			require.Equal(t, all, db.done("warehouse"))
			again := 0
			for _, n := range insertions {
				again += n - 1
			}
			require.Equal(t, 3, again, "only the first of two redeliveries that come together is tried twice")
		})
	}
}

// Two workers that take the same locks in different orders deadlock sooner or later,
// and Postgres fails one of them after deadlock_timeout. Nothing of the kind may be
// needed here.
func TestOverlappingIDsInOppositeOrder(t *testing.T) {
	for _, keys := range bothKeys {
		for insert, size := range inserts(400, 1_200) {
			t.Run(fmt.Sprintf("%s, %s", keys, insert), func(t *testing.T) {
				db := newDatabase(t)
				var all []string
				for round := range 20 {
					var ids []string
					for i := range size {
						ids = append(ids, fmt.Sprintf("evt_%d_%d", round, i))
					}
					all = append(all, ids...)
					opposite := slices.Clone(ids)
					slices.Reverse(opposite)
					var workers sync.WaitGroup
					errs := make([]error, 4)
					for i := range errs {
						batch := [][]string{ids, opposite}[i%2]
						// An inbox each: two processes share nothing but the database.
						in := db.inbox(pginbox.Options{Keys: keys, Handlers: []pginbox.Handler{worker("warehouse")}})
						workers.Go(func() { errs[i] = in.Process(within(t), events(batch...)) })
					}
					workers.Wait()
					require.NoError(t, errors.Join(errs...))
					require.NotContains(t, db.log.text(), "deadlock")
				}
				require.ElementsMatch(t, all, db.done("warehouse"))
			})
		}
	}
}

// inserts are the two ways in which ids are inserted that are expected not to be there,
// each with a number of events for which it is taken.
func inserts(few, many int) map[string]int { return map[string]int{"INSERT": few, "COPY": many} }

// Ids that were there before are found, however they are inserted, and once they have
// been nobody expects anything.
func TestRedeliveriesAmongMany(t *testing.T) {
	for _, keys := range bothKeys {
		for insert, size := range inserts(10, 1_200) {
			t.Run(fmt.Sprintf("%s, %s", keys, insert), func(t *testing.T) {
				db := newDatabase(t)
				ids := numbered(size)
				handlers := []pginbox.Handler{worker("warehouse"), worker("loyalty")}
				loyalty := db.inbox(pginbox.Options{Keys: keys, Handlers: handlers[1:]})
				require.NoError(t, loyalty.Process(within(t), events(ids[size/2:]...)))
				warehouse := db.inbox(pginbox.Options{Keys: keys, Handlers: handlers[:1]})
				require.NoError(t, warehouse.Process(within(t), events(ids[:size/2]...)))
				in := db.inbox(pginbox.Options{Keys: keys, Handlers: handlers})
				require.NoError(t, in.Process(within(t), events(ids[size/3:]...)))
				for range 3 {
					require.NoError(t, in.Process(within(t), events(ids...)))
				}
				require.ElementsMatch(t, ids, db.done("warehouse"))
				require.ElementsMatch(t, ids, db.done("loyalty"))
				require.Equal(t, 2*size, db.inboxRows())
			})
		}
	}
}

// The second delivery waits inside its INSERT or COPY until the first transaction has ended.
func TestTwoDeliveriesOfOneEventAtTheSameMoment(t *testing.T) {
	for _, keys := range bothKeys {
		for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
			for _, first := range []string{"commits", "rolls back"} {
				for insert, size := range inserts(1, 600) {
					t.Run(fmt.Sprintf("%s, %s, %s, the first %s", keys, level, insert, first), func(t *testing.T) {
						db := newDatabase(t)
						ids := numbered(size)
						var calls counter
						entered, leave := make(chan struct{}), make(chan struct{})
						release := sync.OnceFunc(func() { close(leave) })
						t.Cleanup(release)
						h := worker("warehouse", func(_ context.Context, _ pgx.Tx, e pginbox.Event) error {
							if e.ID != ids[0] || calls.next() > 1 {
								return nil
							}
							close(entered)
							<-leave
							if first == "rolls back" {
								return pginbox.Unavailable(errBoom)
							}
							return nil
						})
						in := db.inbox(pginbox.Options{Keys: keys, Isolation: level, Handlers: []pginbox.Handler{h}})
						ctx, cancel := context.WithCancel(t.Context())
						defer cancel()
						results := make(chan error, 2)
						go func() { results <- in.Process(ctx, events(ids...)) }()
						<-entered
						go func() { results <- in.Process(within(t), events(ids...)) }()
						db.awaitWaiting(1)
						release()
						require.NoError(t, <-results)
						require.NoError(t, <-results)
						require.ElementsMatch(t, ids, db.done("warehouse"))
						if first == "commits" {
							require.EqualValues(t, 1, calls.Load(), "the second saw it done")
						} else {
							require.EqualValues(t, 2, calls.Load(), "the one that comes next does it")
						}
					})
				}
			}
		}
	}
}

func TestAFailingHandlerNeitherBlocksNorRepeatsAnother(t *testing.T) {
	for _, keys := range bothKeys {
		t.Run(string(keys), func(t *testing.T) {
			db := newDatabase(t)
			ids := numbered(10)
			bDone := make(chan struct{})
			var aCalls, bCalls counter
			a := worker("a", func(ctx context.Context, _ pgx.Tx, e pginbox.Event) error {
				if e.ID != "evt_003" {
					return nil
				}
				if aCalls.next() == 1 {
					return errBoom
				}
				// From here on a waits for b, which must be able to finish meanwhile.
				select {
				case <-bDone:
					return errBoom
				case <-time.After(patience):
					return pginbox.Permanent(errors.New("b is blocked"))
				}
			})
			b := worker("b")
			work := b.Handle
			b.Handle = func(ctx context.Context, tx pgx.Tx, events []pginbox.Event) error {
				bCalls.next()
				return work(ctx, tx, events)
			}
			in := db.inbox(pginbox.Options{Keys: keys, Handlers: []pginbox.Handler{a, b}, Hook: func(_ context.Context, p pginbox.Passage) error {
				if p.Step == pginbox.Committed && p.Handler == "b" {
					close(bDone)
				}
				return nil
			}})
			require.NoError(t, in.Process(within(t), events(ids...)))
			select {
			case <-bDone:
			default:
				require.Fail(t, "b was not done when a failed again")
			}
			require.EqualValues(t, 1, bCalls.Load())
			require.Equal(t, ids, db.done("b"))
			require.ElementsMatch(t, without(ids, "evt_003"), db.done("a"))
			letters := db.letters()
			require.Len(t, letters, 1)
			require.Equal(t, "a", letters[0].Handler)
		})
	}
}

// Each handler has rows of its own: one that is added later gets its own deliveries.
func TestAHandlerAddedLater(t *testing.T) {
	for _, keys := range bothKeys {
		t.Run(string(keys), func(t *testing.T) {
			db := newDatabase(t)
			first := db.inbox(pginbox.Options{Keys: keys, Handlers: []pginbox.Handler{worker("a")}})
			require.NoError(t, first.Process(within(t), events("evt_1")))
			both := db.inbox(pginbox.Options{Keys: keys, Handlers: []pginbox.Handler{worker("b"), worker("a")}})
			require.NoError(t, both.Process(within(t), events("evt_1")))
			require.Equal(t, []string{"evt_1"}, db.done("a"))
			require.Equal(t, []string{"evt_1"}, db.done("b"))
		})
	}
}

func TestAnEmptyIDIsTheDigestOfTheValue(t *testing.T) {
	db := newDatabase(t)
	in := db.inbox(pginbox.Options{Handlers: []pginbox.Handler{worker("warehouse")}})
	one, two := event(""), event("")
	one.Record.Value, two.Record.Value = []byte("one"), []byte("two")
	require.NoError(t, in.Process(within(t), []pginbox.Event{one, two, one}))
	require.NoError(t, in.Process(within(t), []pginbox.Event{two, {}}))
	require.Equal(t, []string{
		"sha256:7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed",
		"sha256:3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3",
		"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", // of nothing
	}, db.done("warehouse"))
}

func TestWithoutTables(t *testing.T) {
	for _, keys := range bothKeys {
		t.Run(string(keys), func(t *testing.T) {
			pool, err := pgxpool.New(t.Context(), sandboxtest.Database(t))
			require.NoError(t, err)
			defer pool.Close()
			in, err := pginbox.New(pool, pginbox.Options{Keys: keys, Handlers: []pginbox.Handler{worker("warehouse")}})
			require.NoError(t, err)
			err = in.Process(within(t), events("evt_1"))
			require.ErrorContains(t, err, "handler warehouse")
			require.ErrorContains(t, err, "42P01") // undefined table
		})
	}
}

func TestOptions(t *testing.T) {
	h := worker("warehouse")
	for want, o := range map[string]pginbox.Options{
		"there is no handler":             {},
		"a handler has no name":           {Handlers: []pginbox.Handler{{Handle: h.Handle}}},
		`two handlers are named "a"`:      {Handlers: []pginbox.Handler{worker("a"), worker("a")}},
		`handler "a" has no function`:     {Handlers: []pginbox.Handler{{Name: "a"}}},
		"has 257 bytes, at most 256":      {Handlers: []pginbox.Handler{worker(strings.Repeat("a", 257))}},
		"has a NUL byte":                  {Handlers: []pginbox.Handler{worker("a\x00")}},
		"is not valid UTF-8":              {Handlers: []pginbox.Handler{worker("a\xff")}},
		`unknown kind of keys "uuid"`:     {Handlers: []pginbox.Handler{h}, Keys: "uuid"},
		`unknown isolation level "dirty"`: {Handlers: []pginbox.Handler{h}, Isolation: "dirty"},
		`unknown kind of memory "all"`:    {Handlers: []pginbox.Handler{h}, Remember: "all"},
		"at most -1 attempts":             {Handlers: []pginbox.Handler{h}, MaxAttempts: -1},
		"retry backoff is -1s":            {Handlers: []pginbox.Handler{h}, RetryBackoff: -time.Second},
	} {
		_, err := pginbox.New(nil, o)
		require.ErrorContains(t, err, want)
	}
}
