package pginbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/delivered-twice/delivered-twice/internal/pginbox"
)

// A process that stood still while another took its partitions over wakes up with a
// batch in hand.
func TestAFormerOwnerIsRefused(t *testing.T) {
	for _, remember := range rememberOffsets {
		t.Run(string(remember), func(t *testing.T) {
			db := newDatabase(t)
			ids := numbered(15)
			o := pginbox.Options{Remember: remember, Handlers: []pginbox.Handler{worker("warehouse"), worker("loyalty")}}
			zombie, heir := db.inbox(o), db.inbox(o)
			require.EqualValues(t, 0, claim(t, zombie))
			require.NoError(t, zombie.Process(within(t), sequence(0, ids[:5]...)))

			require.EqualValues(t, 5, claim(t, heir))
			err := zombie.Process(within(t), sequence(5, ids[5:10]...))
			require.ErrorIs(t, err, pginbox.ErrStale)
			require.ErrorContains(t, err, "topic orders.paid, partition 2: another owner has claimed it for handler warehouse")
			require.Equal(t, ids[:5], db.done("warehouse"))
			require.EqualValues(t, 5, db.stored("warehouse"))
			// Not even what was dropped can be passed over.
			require.ErrorIs(t, zombie.Process(within(t), sequence(10, ids[10:]...)), pginbox.ErrStale)

			require.NoError(t, heir.Process(within(t), sequence(5, ids[5:10]...)))
			require.EqualValues(t, 10, claim(t, zombie), "it may claim again, and then the other is the former one")
			require.ErrorIs(t, heir.Process(within(t), nil), pginbox.ErrStale, "found out without an event")
			require.ErrorIs(t, heir.Process(within(t), sequence(10, ids[10:]...)), pginbox.ErrStale)
			require.NoError(t, zombie.Process(within(t), nil))
			require.NoError(t, zombie.Process(within(t), sequence(10, ids[10:]...)))
			require.Equal(t, ids, db.done("warehouse"))
			require.Equal(t, ids, db.done("loyalty"))
		})
	}
}

// Even where somebody deletes the rows to begin anew.
func TestAFenceNeverComesAgain(t *testing.T) {
	db := newDatabase(t)
	o := pginbox.Options{Remember: pginbox.RememberOffsets, Handlers: []pginbox.Handler{worker("warehouse")}}
	zombie, heir := db.inbox(o), db.inbox(o)
	claim(t, zombie)
	db.exec(`DELETE FROM stored_offsets`)
	require.ErrorIs(t, zombie.Process(within(t), nil), pginbox.ErrStale)
	claim(t, zombie)
	db.exec(`DELETE FROM stored_offsets`)
	require.EqualValues(t, 0, claim(t, heir))
	require.ErrorIs(t, zombie.Process(within(t), sequence(0, "evt_1")), pginbox.ErrStale)
	require.Empty(t, db.done("warehouse"))
}

// It stands still inside its transaction and keeps its locks, for as long as Postgres
// lets it.
func TestAFormerOwnerInsideATransaction(t *testing.T) {
	db := newDatabase(t, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "200"
	})
	standing, wake := make(chan struct{}), make(chan struct{})
	var calls counter
	zombie := db.inbox(pginbox.Options{Remember: pginbox.RememberOffsets, MaxAttempts: 1, Handlers: []pginbox.Handler{worker("warehouse", func(context.Context, pgx.Tx, pginbox.Event) error {
		if calls.next() == 1 {
			close(standing)
			<-wake
		}
		return nil
	})}})
	heir := db.inbox(pginbox.Options{Remember: pginbox.RememberOffsets, Handlers: []pginbox.Handler{worker("warehouse")}})
	claim(t, zombie)
	result := make(chan error, 1)
	go func() { result <- zombie.Process(t.Context(), sequence(0, "evt_1")) }()
	<-standing
	require.EqualValues(t, 0, claim(t, heir))
	close(wake)
	require.ErrorIs(t, <-result, pginbox.ErrStale)
	require.NoError(t, heir.Process(within(t), sequence(0, "evt_1")))
	require.Equal(t, []string{"evt_1"}, db.done("warehouse"))
	require.Empty(t, db.letters())
}

func TestWhatThePublisherSendsTwice(t *testing.T) {
	for remember, want := range map[pginbox.Remember][]string{
		pginbox.RememberOffsets: {"evt_1", "evt_2", "evt_1", "evt_2", "evt_3", "evt_1", "evt_2"},
		pginbox.RememberBoth:    {"evt_1", "evt_2", "evt_3"},
	} {
		for _, keys := range bothKeys {
			t.Run(fmt.Sprintf("%s, %s", remember, keys), func(t *testing.T) {
				db := newDatabase(t)
				in := db.inbox(pginbox.Options{Remember: remember, Keys: keys, Handlers: []pginbox.Handler{worker("warehouse")}})
				claim(t, in)
				require.NoError(t, in.Process(within(t), sequence(0, "evt_1", "evt_2", "evt_1")))
				require.NoError(t, in.Process(within(t), sequence(3, "evt_2", "evt_3")))
				require.NoError(t, in.Process(within(t), sequence(5, "evt_1", "evt_2")), "none of them new")
				require.Equal(t, want, db.done("warehouse"))
				require.EqualValues(t, 7, db.stored("warehouse"))

				// What the source delivers again is another matter.
				require.NoError(t, in.Process(within(t), sequence(3, "evt_2", "evt_3", "evt_1", "evt_2")))
				again := db.inbox(pginbox.Options{Remember: remember, Keys: keys, Handlers: []pginbox.Handler{worker("warehouse")}})
				require.EqualValues(t, 7, claim(t, again))
				require.NoError(t, again.Process(within(t), sequence(0, "evt_1", "evt_2", "evt_1", "evt_2", "evt_3", "evt_1", "evt_2")))
				require.Equal(t, want, db.done("warehouse"))
			})
		}
	}
}

// One handler has committed a batch, the other has not, and the process dies.
func TestHandlersGetAheadOfEachOther(t *testing.T) {
	for _, remember := range rememberOffsets {
		t.Run(string(remember), func(t *testing.T) {
			db := newDatabase(t)
			ids := numbered(12)
			ctx, die := context.WithCancel(t.Context())
			first := db.inbox(pginbox.Options{
				Remember: remember,
				Handlers: []pginbox.Handler{worker("a"), worker("b", func(ctx context.Context, _ pgx.Tx, e pginbox.Event) error {
					if e.ID == ids[4] {
						<-ctx.Done()
					}
					return ctx.Err()
				})},
				Hook: func(_ context.Context, p pginbox.Passage) error {
					if p.Step == pginbox.Committed && p.Handler == "a" && p.Events[0].ID == ids[4] {
						die()
					}
					return nil
				},
			})
			claim(t, first)
			require.NoError(t, first.Process(ctx, sequence(0, ids[:4]...)))
			require.ErrorIs(t, first.Process(ctx, sequence(4, ids[4:8]...)), context.Canceled)
			require.Equal(t, []int64{8, 4}, []int64{db.stored("a"), db.stored("b")})

			second := db.inbox(pginbox.Options{Remember: remember, Handlers: []pginbox.Handler{worker("a"), worker("b"), worker("new")}})
			require.EqualValues(t, 0, claim(t, second), "a handler that is new has done nothing yet")
			for from := 0; from < 12; from += 3 { // batches of other sizes
				require.NoError(t, second.Process(within(t), sequence(int64(from), ids[from:from+3]...)))
			}
			for _, handler := range []string{"a", "b", "new"} {
				require.Equal(t, ids, db.done(handler), handler)
				require.EqualValues(t, 12, db.stored(handler))
			}
		})
	}
}

// Effects come in the order of the events, whatever fails, and no stored offset ever
// passes an event that is neither done nor a dead letter.
func TestPoisonKeepsItsPlace(t *testing.T) {
	ids := numbered(24)
	for name, c := range map[string]struct {
		poison     []string
		recoversAt int // attempts alone after which it does; 0 for never
		permanent  bool
	}{
		"recovers":           {[]string{ids[7]}, 2, false},
		"two that recover":   {[]string{ids[0], ids[23]}, 3, false},
		"never recovers":     {[]string{ids[7], ids[8], ids[20]}, 0, false},
		"permanent":          {[]string{ids[0], ids[11]}, 0, true},
		"all of them":        {ids, 0, true},
		"all of them, twice": {ids[:6], 2, false},
	} {
		for _, remember := range rememberOffsets {
			t.Run(fmt.Sprintf("%s, %s", name, remember), func(t *testing.T) {
				t.Parallel()
				db := newDatabase(t)
				var alone tally
				h := worker("warehouse")
				work := h.Handle
				h.Handle = func(ctx context.Context, tx pgx.Tx, events []pginbox.Event) error {
					if err := work(ctx, tx, events); err != nil {
						return err
					}
					for _, e := range events {
						if !slices.Contains(c.poison, e.ID) {
							continue
						}
						if c.permanent {
							return pginbox.Permanent(errBoom)
						}
						if len(events) > 1 || alone.add(e.ID) < c.recoversAt || c.recoversAt == 0 {
							return errBoom
						}
					}
					return nil
				}
				in := db.inbox(pginbox.Options{Remember: remember, Handlers: []pginbox.Handler{h}, Hook: func(ctx context.Context, p pginbox.Passage) error {
					if p.Step != pginbox.Committed {
						return nil
					}
					var next, settled int64
					err := db.own.QueryRow(ctx, `SELECT next_offset, (SELECT count(*) FROM work) + (SELECT count(*) FROM dead_letters) FROM stored_offsets`).Scan(&next, &settled)
					if err == nil && next != settled {
						err = pginbox.Permanent(fmt.Errorf("the stored offset is %d, and %d events are settled", next, settled))
						t.Error(err)
					}
					return err
				}})
				claim(t, in)
				require.NoError(t, in.Process(within(t), sequence(0, ids[:20]...)))
				require.NoError(t, in.Process(within(t), sequence(20, ids[20:]...)))
				require.EqualValues(t, 24, db.stored("warehouse"))
				if c.recoversAt > 0 {
					require.Equal(t, ids, db.done("warehouse"))
					require.Empty(t, db.letters())
					return
				}
				require.Equal(t, without(ids, c.poison...), append([]string{}, db.done("warehouse")...))
				require.Equal(t, c.poison, db.deadIDs(), "in their order")
			})
		}
	}
}

func TestAMishapAtEveryStepWithOffsets(t *testing.T) {
	for _, remember := range rememberOffsets {
		for _, step := range inboxSteps {
			for name, mishap := range mishaps {
				for _, poison := range []string{"", "evt_003"} {
					t.Run(fmt.Sprintf("%s, %s at %s, poison %q", remember, name, step, poison), func(t *testing.T) {
						t.Parallel()
						db := newDatabase(t)
						var passed counter
						in := db.inbox(pginbox.Options{
							Remember: remember,
							Handlers: []pginbox.Handler{worker("warehouse", func(_ context.Context, _ pgx.Tx, e pginbox.Event) error {
								if e.ID == poison {
									return errBoom
								}
								return nil
							})},
							Hook: func(ctx context.Context, p pginbox.Passage) error {
								if p.Step == step && passed.next() <= 3 {
									return mishap(ctx, db)
								}
								return nil
							},
						})
						ids := numbered(8)
						claim(t, in)
						require.NoError(t, in.Process(within(t), sequence(0, ids[:5]...)))
						require.NoError(t, in.Process(within(t), sequence(5, ids[5:]...)))
						require.NoError(t, in.Process(within(t), sequence(0, ids...)))
						require.NotZero(t, passed.Load())
						require.Equal(t, without(ids, poison), db.done("warehouse"))
						require.Len(t, db.letters(), len(ids)-len(without(ids, poison)))
						require.EqualValues(t, 8, db.stored("warehouse"))
					})
				}
			}
		}
	}
}

// A crash of the database under asynchronous commits, or a failover, may take back
// what was committed.
func TestStoredOffsetsGoBack(t *testing.T) {
	for _, remember := range rememberOffsets {
		t.Run(string(remember), func(t *testing.T) {
			db := newDatabase(t)
			ids := numbered(12)
			in := db.inbox(pginbox.Options{Remember: remember, Handlers: []pginbox.Handler{worker("warehouse")}})
			claim(t, in)
			require.NoError(t, in.Process(within(t), sequence(0, ids[:4]...)))
			require.NoError(t, in.Process(within(t), sequence(4, ids[4:8]...)))
			db.forget(4)
			err := in.Process(within(t), sequence(8, ids[8:]...))
			require.ErrorIs(t, err, pginbox.ErrStale)
			require.ErrorContains(t, err, "has gone back from 8 to 4")
			require.EqualValues(t, 4, claim(t, in))
			require.NoError(t, in.Process(within(t), sequence(4, ids[4:]...)))
			db.forget(10)
			require.ErrorIs(t, in.Process(within(t), nil), pginbox.ErrStale)
			require.EqualValues(t, 10, claim(t, in))
			require.NoError(t, in.Process(within(t), sequence(10, ids[10:]...)))
			require.Equal(t, ids, db.done("warehouse"))
		})
	}
}

// forget takes everything back that was done from the n-th event on.
func (db *database) forget(n int) {
	db.t.Helper()
	tx, err := db.own.Begin(db.t.Context())
	require.NoError(db.t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	for _, sql := range []string{
		`DELETE FROM processed_messages WHERE convert_to(event_id, 'UTF8') IN (SELECT event FROM work ORDER BY id OFFSET $1)`,
		`DELETE FROM work WHERE id IN (SELECT id FROM work ORDER BY id OFFSET $1)`,
		`UPDATE stored_offsets SET next_offset = $1`,
	} {
		_, err := tx.Exec(db.t.Context(), sql, n)
		require.NoError(db.t, err)
	}
	require.NoError(db.t, tx.Commit(db.t.Context()))
}

func TestAnErrorOfProcessGivesUpTheClaims(t *testing.T) {
	db := newDatabase(t)
	in := db.inbox(pginbox.Options{Remember: pginbox.RememberOffsets, Handlers: []pginbox.Handler{worker("warehouse")}})
	require.ErrorIs(t, in.Process(within(t), sequence(0, "evt_1")), pginbox.ErrStale, "never claimed")
	claim(t, in)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, in.Process(ctx, sequence(0, "evt_1")), context.Canceled)
	require.ErrorIs(t, in.Process(within(t), sequence(1, "evt_2")), pginbox.ErrStale, "nothing may pass evt_1")
	require.EqualValues(t, 0, claim(t, in))
	require.ErrorContains(t, in.Process(within(t), slices.Concat(sequence(1, "evt_2"), sequence(0, "evt_1"))), "offset 0 comes after offset 1")
	require.ErrorContains(t, in.Process(within(t), []pginbox.Event{{ID: "evt_1"}}), `event "evt_1" has no record`)
	require.NoError(t, in.Process(within(t), sequence(0, "evt_1", "evt_2")))
	require.Equal(t, []string{"evt_1", "evt_2"}, db.done("warehouse"))
}

func TestResumeNeedsStoredOffsets(t *testing.T) {
	db := newDatabase(t)
	in := db.inbox(pginbox.Options{Handlers: []pginbox.Handler{worker("warehouse")}})
	_, err := in.Resume(within(t), map[string][]int32{topic: {2}})
	require.ErrorContains(t, err, `set Remember to "offsets" or "both"`)
}

func TestAsynchronousCommit(t *testing.T) {
	for _, remember := range allRemember {
		for asynchronous, want := range map[bool]string{true: "off", false: "on"} {
			t.Run(fmt.Sprintf("%s, %s", remember, want), func(t *testing.T) {
				db := newDatabase(t)
				var got string
				in := db.inbox(pginbox.Options{Remember: remember, AsynchronousCommit: asynchronous, Handlers: []pginbox.Handler{worker("warehouse", func(ctx context.Context, tx pgx.Tx, _ pginbox.Event) error {
					return tx.QueryRow(ctx, `SHOW synchronous_commit`).Scan(&got)
				})}})
				if remember != pginbox.RememberIDs {
					claim(t, in)
				}
				require.NoError(t, in.Process(within(t), sequence(0, "evt_1")))
				require.Equal(t, want, got)
				require.Equal(t, []string{"evt_1"}, db.done("warehouse"))
				var after string
				require.NoError(t, db.pool.QueryRow(t.Context(), `SHOW synchronous_commit`).Scan(&after))
				require.Equal(t, "on", after, "for that transaction only")
			})
		}
	}
}

// resuming is a consumer that goes by stored offsets.
func (s *stream) resuming(in *pginbox.Inbox) pginbox.ConsumerOptions {
	o := s.options(in)
	o.Resume = in.Resume
	return o
}

// Whatever the group's offsets say.
func TestAConsumerStartsFromStoredOffsets(t *testing.T) {
	for name, moved := range map[string]int64{"rewound": 0, "moved ahead": 15} {
		t.Run(name, func(t *testing.T) {
			db, s := newDatabase(t), newStream(t, 1)
			in := db.inbox(pginbox.Options{Remember: pginbox.RememberOffsets, Handlers: []pginbox.Handler{worker("warehouse")}})
			ids := numbered(20)
			s.send(ids[:10]...)
			o := s.resuming(in)
			o.InstanceID = "" // so that it leaves, and the group's offsets can be set
			first := start(t, o)
			s.awaitAcknowledged()
			first.end()
			s.send(ids[10:]...)

			offsets := kadm.Offsets{}
			offsets.AddOffset(s.topic, 0, moved, -1)
			require.NoError(t, s.admin.CommitAllOffsets(t.Context(), s.group, offsets))
			second := start(t, o)
			s.awaitAcknowledged()
			second.end()
			require.Equal(t, ids, db.done("warehouse"))
		})
	}
}

// Nothing new arrives, and what was lost is done again all the same.
func TestAConsumerNoticesThatStoredOffsetsWentBack(t *testing.T) {
	db, s := newDatabase(t), newStream(t, 1)
	in := db.inbox(pginbox.Options{Remember: pginbox.RememberOffsets, Handlers: []pginbox.Handler{worker("warehouse")}})
	ids := numbered(20)
	s.send(ids...)
	consumer := start(t, s.resuming(in))
	s.awaitAcknowledged()
	db.forget(12)
	require.Eventually(t, func() bool { return len(db.done("warehouse")) == len(ids) }, patience, 5*time.Millisecond)
	consumer.end()
	require.Equal(t, ids, db.done("warehouse"))
}

// A member whose claim somebody else has taken finds out, and claims again what the
// group still assigns to it.
func TestAConsumerClaimsAgain(t *testing.T) {
	db, s := newDatabase(t), newStream(t, 1)
	ids := numbered(120)
	var committed counter
	other := db.inbox(pginbox.Options{Remember: pginbox.RememberOffsets, Handlers: []pginbox.Handler{worker("warehouse")}})
	in := db.inbox(pginbox.Options{Remember: pginbox.RememberOffsets, Handlers: []pginbox.Handler{worker("warehouse")}, Hook: func(ctx context.Context, p pginbox.Passage) error {
		if p.Step == pginbox.Committed && committed.next() == 1 {
			_, err := other.Resume(ctx, map[string][]int32{s.topic: {0}})
			return err
		}
		return nil
	}})
	s.send(ids...)
	consumer := start(t, s.resuming(in))
	s.awaitAcknowledged()
	consumer.end()
	require.Equal(t, ids, db.done("warehouse"))
}

// positions is a handler that writes down where each event stands in its topic.
func positions(name string) pginbox.Handler {
	return pginbox.Handler{Name: name, Handle: func(ctx context.Context, tx pgx.Tx, events []pginbox.Event) error {
		for _, e := range events {
			if _, err := tx.Exec(ctx, `INSERT INTO work (handler, event) VALUES ($1, $2)`,
				fmt.Sprintf("%s %d", name, e.Record.Partition), fmt.Appendf(nil, "%d", e.Record.Offset)); err != nil {
				return err
			}
		}
		return nil
	}}
}

func TestMembersWithStoredOffsetsComeAndGo(t *testing.T) {
	db, s := newDatabase(t), newStream(t, 4)
	member := func() pginbox.ConsumerOptions {
		o := s.resuming(db.inbox(pginbox.Options{Remember: pginbox.RememberOffsets, Handlers: []pginbox.Handler{positions("warehouse")}}))
		o.InstanceID, o.BatchSize = "", 10
		return o
	}
	a := start(t, member())
	ids := numbered(600)
	for round := range 3 {
		s.send(ids[round*200 : round*200+100]...)
		b := start(t, member())
		require.Eventually(t, func() bool { return s.members() == 2 }, patience, 5*time.Millisecond)
		s.send(ids[round*200+100 : round*200+200]...)
		s.awaitAcknowledged()
		b.end()
		require.Eventually(t, func() bool { return s.members() == 1 }, patience, 5*time.Millisecond)
	}
	a.end()
	s.requireEachOnceAndInOrder(db)
}

// requireEachOnceAndInOrder says so of what the handler positions has written down.
func (s *stream) requireEachOnceAndInOrder(db *database) {
	s.t.Helper()
	ends, err := s.admin.ListEndOffsets(s.t.Context(), s.topic)
	require.NoError(s.t, err)
	for p := range int32(4) {
		end, _ := ends.Lookup(s.topic, p)
		var want []string
		for offset := range end.Offset {
			want = append(want, fmt.Sprint(offset))
		}
		require.Equal(s.t, want, db.done(fmt.Sprintf("warehouse %d", p)), "each once, and in order")
	}
}

// A topic that was deleted and created anew ends before its stored offset. What is in
// it then was never done.
func TestATopicThatEndsBeforeItsStoredOffset(t *testing.T) {
	db, s := newDatabase(t), newStream(t, 1)
	in := db.inbox(pginbox.Options{Remember: pginbox.RememberOffsets, Handlers: []pginbox.Handler{worker("warehouse")}})
	db.exec(`INSERT INTO stored_offsets (handler, topic, partition, next_offset) VALUES ('warehouse', $1, 0, 40)`, s.topic)
	s.send(numbered(3)...)
	err := start(t, s.resuming(in)).wait()
	require.ErrorContains(t, err, "there is a record at offset 0, but everything before offset 40 is stored as done")
	require.ErrorContains(t, err, "delete its rows from stored_offsets")
	db.exec(`DELETE FROM stored_offsets`)
	consumer := start(t, s.resuming(in))
	s.awaitAcknowledged()
	consumer.end()
	require.Equal(t, numbered(3), db.done("warehouse"))
}

// The topic's retention has removed what comes before.
func TestATopicThatBeginsAfterItsStoredOffset(t *testing.T) {
	db, s := newDatabase(t), newStream(t, 1)
	in := db.inbox(pginbox.Options{Remember: pginbox.RememberOffsets, Handlers: []pginbox.Handler{worker("warehouse")}})
	s.send(numbered(10)...)
	offsets := kadm.Offsets{}
	offsets.AddOffset(s.topic, 0, 4, -1)
	_, err := s.admin.DeleteRecords(t.Context(), offsets)
	require.NoError(t, err)
	consumer := start(t, s.resuming(in))
	s.awaitAcknowledged()
	consumer.end()
	require.Equal(t, numbered(10)[4:], db.done("warehouse"))
}

func TestAnErrorOfResumeEndsTheConsumer(t *testing.T) {
	db, s := newDatabase(t), newStream(t, 1)
	s.send("evt_1")
	in := db.inbox(pginbox.Options{Remember: pginbox.RememberOffsets, Handlers: []pginbox.Handler{worker("warehouse")}})
	db.exec(`DROP TABLE stored_offsets`)
	err := start(t, s.resuming(in)).wait()
	require.ErrorContains(t, err, "group "+s.group)
	require.ErrorContains(t, err, "42P01")
}

// At most once: what was acknowledged and not processed is lost.
func TestAcknowledgeFirst(t *testing.T) {
	db, s := newDatabase(t), newStream(t, 1)
	ids := numbered(60)
	s.send(ids[:40]...)
	in := db.inbox(pginbox.Options{Handlers: []pginbox.Handler{worker("warehouse")}})
	o := s.options(in)
	o.AcknowledgeFirst = true
	o.Process = func(context.Context, []pginbox.Event) error { return errors.New("the process dies here") }
	require.ErrorContains(t, start(t, o).wait(), "the process dies here")
	require.Zero(t, s.lag(), "acknowledged")

	s.send(ids[40:]...)
	var steps []string
	o.Process = func(ctx context.Context, events []pginbox.Event) error {
		steps = append(steps, "process")
		return in.Process(ctx, events)
	}
	processed := make(chan struct{})
	o.Hook = func(_ context.Context, p pginbox.Passage) error {
		steps = append(steps, string(p.Step))
		return nil
	}
	work := o.Process
	o.Process = func(ctx context.Context, events []pginbox.Event) error {
		defer close(processed)
		return work(ctx, events)
	}
	consumer := start(t, o)
	<-processed
	consumer.end()
	require.Equal(t, ids[40:], db.done("warehouse"), "the others are lost")
	require.Equal(t, []string{"polled", "acknowledged", "process"}, steps)
}

// The group has given the partitions away: another member processes the batch.
func TestAcknowledgeFirstRefused(t *testing.T) {
	db, s := newDatabase(t), newStream(t, 1)
	s.send(numbered(20)...)
	var polled counter
	o := s.options(db.inbox(pginbox.Options{Remember: pginbox.RememberIDs, Handlers: []pginbox.Handler{positions("warehouse")}}))
	o.AcknowledgeFirst = true
	o.Hook = func(ctx context.Context, p pginbox.Passage) error {
		if p.Step == pginbox.Polled && polled.next() == 1 {
			_, err := s.admin.LeaveGroup(ctx, kadm.LeaveGroup(s.group).InstanceIDs("0"))
			return err
		}
		return nil
	}
	var processed counter
	process := o.Process
	o.Process = func(ctx context.Context, events []pginbox.Event) error {
		processed.next()
		return process(ctx, events)
	}
	consumer := start(t, o)
	require.Eventually(t, func() bool { return len(db.done("warehouse 0")) == 20 }, patience, 5*time.Millisecond)
	consumer.end()
	require.EqualValues(t, 2, polled.Load())
	require.EqualValues(t, 1, processed.Load(), "not the batch whose acknowledgement was refused")
}
