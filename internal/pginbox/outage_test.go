package pginbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/pginbox"
)

// inboxSteps are those that Process passes.
var inboxSteps = []pginbox.Step{pginbox.Begun, pginbox.Inserted, pginbox.Worked, pginbox.Committed}

// mishaps are what may happen at a step.
var mishaps = map[string]func(ctx context.Context, db *database) error{
	"the hook fails":             func(context.Context, *database) error { return errors.New("failed on purpose") },
	"the connection is ended":    func(ctx context.Context, db *database) error { return db.terminate(ctx) },
	"it is ended and hook fails": func(ctx context.Context, db *database) error { return errors.Join(db.terminate(ctx), errBoom) },
}

func TestAMishapAtEveryStep(t *testing.T) {
	for _, keys := range bothKeys {
		for _, step := range inboxSteps {
			for name, mishap := range mishaps {
				for _, poison := range []string{"", "evt_003"} {
					t.Run(fmt.Sprintf("%s, %s at %s, poison %q", keys, name, step, poison), func(t *testing.T) {
						t.Parallel()
						db := newDatabase(t)
						var passed counter
						in := db.inbox(pginbox.Options{
							Keys: keys,
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
						require.NoError(t, in.Process(within(t), events(ids...)))
						require.NoError(t, in.Process(within(t), events(ids...)))
						require.NotZero(t, passed.Load())
						require.ElementsMatch(t, without(ids, poison), db.done("warehouse"))
						if poison == "" {
							require.Empty(t, db.letters())
						} else {
							require.Equal(t, []string{poison}, db.deadIDs())
						}
					})
				}
			}
		}
	}
}

// The steps are passed in order, and say which events they are about.
func TestStepsOfADelivery(t *testing.T) {
	db := newDatabase(t)
	var passages []string
	in := db.inbox(pginbox.Options{MaxAttempts: 1, Handlers: []pginbox.Handler{worker("warehouse", func(_ context.Context, _ pgx.Tx, e pginbox.Event) error {
		if e.ID == "evt_3" {
			return errBoom
		}
		return nil
	})}, Hook: func(_ context.Context, p pginbox.Passage) error {
		line := string(p.Step) + " " + p.Handler
		for _, e := range p.Events {
			line += " " + e.ID
		}
		passages = append(passages, line)
		return nil
	}})
	require.NoError(t, in.Process(within(t), events("evt_1")))
	require.NoError(t, in.Process(within(t), events("evt_1", "evt_3", "evt_2")))
	require.NoError(t, in.Process(within(t), events("evt_1")))
	require.Equal(t, []string{
		"begun warehouse evt_1", "inserted warehouse evt_1", "worked warehouse evt_1", "committed warehouse evt_1",
		"begun warehouse evt_1 evt_3 evt_2",                                   // one is there
		"begun warehouse evt_1 evt_3 evt_2", "inserted warehouse evt_3 evt_2", // the handler fails
		"begun warehouse evt_3 evt_2", "inserted warehouse evt_3 evt_2", // event by event
		"worked warehouse evt_3 evt_2", "committed warehouse evt_3 evt_2", // one of them dead
		"begun warehouse evt_1", "inserted warehouse", // nothing to do
	}, passages)
	require.Equal(t, []pginbox.Step{pginbox.Polled, pginbox.Begun, pginbox.Inserted, pginbox.Worked, pginbox.Committed, pginbox.Acknowledged}, pginbox.Steps())
}

// cutter cuts connections at their next COMMIT.
type cutter struct {
	mode atomic.Value // "", "before", "after"
	cuts counter
}

type cutConn struct {
	net.Conn
	cutter *cutter
	deaf   atomic.Bool
}

func (c *cutConn) Write(p []byte) (int, error) {
	if mode := c.cutter.mode.Load(); mode != "" && bytes.Contains(p, []byte("commit\x00")) {
		c.cutter.mode.Store("")
		c.cutter.cuts.next()
		if mode == "before" {
			_ = c.Conn.Close()
			return len(p), nil // the client believes that it is on its way
		}
		c.deaf.Store(true)
	}
	return c.Conn.Write(p)
}

// Read of a deaf connection waits for the server's answer, so that the commit is
// over, and loses it.
func (c *cutConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.deaf.Load() {
		_ = c.Conn.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// A COMMIT of unknown outcome is not a case of its own: the insert finds out.
func TestCommitOfUnknownOutcome(t *testing.T) {
	for _, keys := range bothKeys {
		for _, mode := range []string{"before", "after"} {
			for _, poison := range []string{"", "evt_003"} {
				t.Run(fmt.Sprintf("%s, cut %s it is executed, poison %q", keys, mode, poison), func(t *testing.T) {
					t.Parallel()
					cut := &cutter{}
					cut.mode.Store("")
					db := newDatabase(t, func(c *pgxpool.Config) {
						dial := c.ConnConfig.DialFunc
						c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
							conn, err := dial(ctx, network, address)
							return &cutConn{Conn: conn, cutter: cut}, err
						}
					})
					var worked counter
					in := db.inbox(pginbox.Options{
						Keys:        keys,
						MaxAttempts: 2,
						Handlers: []pginbox.Handler{worker("warehouse", func(_ context.Context, _ pgx.Tx, e pginbox.Event) error {
							if e.ID == poison {
								return errBoom
							}
							return nil
						})},
						Hook: func(_ context.Context, p pginbox.Passage) error {
							if p.Step == pginbox.Worked && worked.next() <= 2 {
								cut.mode.Store(mode)
							}
							return nil
						},
					})
					ids := numbered(8)
					require.NoError(t, in.Process(within(t), events(ids...)))
					require.NotZero(t, cut.cuts.Load())
					require.ElementsMatch(t, without(ids, poison), db.done("warehouse"))
					if poison != "" {
						require.Equal(t, []string{poison}, db.deadIDs())
						require.Equal(t, 2, db.letters()[0].Attempts)
					}
				})
			}
		}
	}
}

// Nobody's fault, however often: with a single attempt allowed, no event dies of it.
func TestAnOutageIsNeverAnAttempt(t *testing.T) {
	for name, mishap := range map[string]func(ctx context.Context, db *database, tx pgx.Tx) error{
		"serialization failure": func(context.Context, *database, pgx.Tx) error { return &pgconn.PgError{Code: "40001"} },
		"deadlock, wrapped": func(context.Context, *database, pgx.Tx) error {
			return fmt.Errorf("pick: %w", &pgconn.PgError{Code: "40P01"})
		},
		"lock timeout": func(ctx context.Context, _ *database, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `SELECT * FROM parent FOR UPDATE NOWAIT`)
			return err
		},
		"marked": func(context.Context, *database, pgx.Tx) error { return pginbox.Unavailable(errBoom) },
		"a service that refuses connections": func(context.Context, *database, pgx.Tx) error {
			return fmt.Errorf("call: %w", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED})
		},
		"lost connection": func(ctx context.Context, db *database, tx pgx.Tx) error {
			_ = db.terminate(ctx)
			_, err := tx.Exec(ctx, `SELECT 1`)
			return err
		},
		"lost connection, made unrecognizable": func(ctx context.Context, db *database, tx pgx.Tx) error {
			_ = db.terminate(ctx)
			_, err := tx.Exec(ctx, `SELECT 1`)
			return fmt.Errorf("something went wrong: %v", err)
		},
		"lost connection, swallowed": func(ctx context.Context, db *database, tx pgx.Tx) error {
			_ = db.terminate(ctx)
			_, _ = tx.Exec(ctx, `SELECT 1`)
			return nil
		},
		"lost connection, unnoticed": func(ctx context.Context, db *database, _ pgx.Tx) error {
			return db.terminate(ctx)
		},
		"a timeout of its own": func(ctx context.Context, _ *database, tx pgx.Tx) error {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
			defer cancel()
			_, err := tx.Exec(ctx, `SELECT pg_sleep(60)`)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			db := newDatabase(t)
			db.exec(`CREATE TABLE parent AS SELECT 1 AS id`)
			holder, err := db.own.Begin(t.Context())
			require.NoError(t, err)
			defer func() { _ = holder.Rollback(context.Background()) }()
			_, err = holder.Exec(t.Context(), `SELECT * FROM parent FOR UPDATE`)
			require.NoError(t, err)

			var calls counter
			in := db.inbox(pginbox.Options{MaxAttempts: 1, Handlers: []pginbox.Handler{worker("warehouse", func(ctx context.Context, tx pgx.Tx, e pginbox.Event) error {
				if e.ID == "evt_001" && calls.next() <= 5 {
					return mishap(ctx, db, tx)
				}
				return nil
			})}})
			require.NoError(t, in.Process(within(t), events(numbered(4)...)))
			require.Equal(t, numbered(4), db.done("warehouse"))
			require.Empty(t, db.letters())
			require.EqualValues(t, 6, calls.Load())
		})
	}
}

// Nothing is done, nothing may be acknowledged, and the next delivery is served.
func TestTheContextEnds(t *testing.T) {
	endings := map[string]func(context.CancelFunc) pginbox.Handler{
		"in the handler": func(cancel context.CancelFunc) pginbox.Handler {
			return worker("warehouse", func(ctx context.Context, _ pgx.Tx, _ pginbox.Event) error { cancel(); return ctx.Err() })
		},
		"in the handler, which returns nil": func(cancel context.CancelFunc) pginbox.Handler {
			return worker("warehouse", func(context.Context, pgx.Tx, pginbox.Event) error { cancel(); return nil })
		},
		"in the pause after an outage": func(cancel context.CancelFunc) pginbox.Handler {
			return worker("warehouse", func(context.Context, pgx.Tx, pginbox.Event) error {
				time.AfterFunc(10*time.Millisecond, cancel)
				return pginbox.Unavailable(errBoom)
			})
		},
	}
	for name, ending := range endings {
		t.Run(name, func(t *testing.T) {
			db := newDatabase(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			in := db.inbox(pginbox.Options{MaxAttempts: 1, RetryBackoff: time.Hour, Handlers: []pginbox.Handler{ending(cancel)}})
			err := in.Process(ctx, events("evt_1"))
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorContains(t, err, "deliver 1 events to handler warehouse")
			require.Empty(t, db.done("warehouse"))
			require.Empty(t, db.letters())
			require.Zero(t, db.inboxRows())

			in = db.inbox(pginbox.Options{Handlers: []pginbox.Handler{worker("warehouse")}})
			require.ErrorIs(t, in.Process(ctx, events("evt_1")), context.Canceled)
			require.NoError(t, in.Process(within(t), events("evt_1")))
			require.Equal(t, []string{"evt_1"}, db.done("warehouse"))
		})
	}
}

func TestTransient(t *testing.T) {
	code := func(c string) error { return fmt.Errorf("insert: %w", &pgconn.PgError{Code: c}) }
	for _, c := range []string{"08000", "08006", "25006", "25P03", "40001", "40P01", "53100", "53200", "53300", "55P03", "57P01", "57P02", "57P03", "58030"} {
		require.True(t, pginbox.Transient(code(c)), c)
	}
	for _, c := range []string{"22021", "22P05", "23505", "25P02", "28P01", "3D000", "42P01", "42501", "57014", "57P04", ""} {
		require.False(t, pginbox.Transient(code(c)), c)
	}
	for _, err := range []error{io.EOF, io.ErrUnexpectedEOF, pgconn.ErrConnClosed, &net.OpError{Op: "read", Err: syscall.ECONNRESET}} {
		require.True(t, pginbox.Transient(fmt.Errorf("insert: %w", err)), err)
	}
	for _, err := range []error{nil, errBoom, context.Canceled, pgx.ErrNoRows, pgx.ErrTxCommitRollback} {
		require.False(t, pginbox.Transient(err), err)
	}

	_, err := pgx.Connect(t.Context(), "postgres://u@127.0.0.1:1/nothing-listens-there")
	require.True(t, pginbox.Transient(err), err)
}

// A server that is away is waited for.
func TestTheServerIsAway(t *testing.T) {
	var away atomic.Bool
	away.Store(true)
	var refused counter
	db := newDatabase(t, func(c *pgxpool.Config) {
		dial := c.ConnConfig.DialFunc
		c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			if away.Load() {
				if refused.next() == 5 {
					away.Store(false)
				}
				return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
			}
			return dial(ctx, network, address)
		}
	})
	for _, keys := range bothKeys {
		in := db.inbox(pginbox.Options{Keys: keys, MaxAttempts: 1, Handlers: []pginbox.Handler{worker(string(keys))}})
		require.NoError(t, in.Process(within(t), events("evt_1")))
		require.Equal(t, []string{"evt_1"}, db.done(string(keys)))
	}
	require.GreaterOrEqual(t, refused.Load(), int64(5))
}

// A transaction that is lost while a batch is taken apart does not begin anew: the
// parts that have passed are not taken apart any further.
func TestALostTransactionForgetsNothing(t *testing.T) {
	db := newDatabase(t)
	var calls, passed counter
	var callsBefore []int64
	h := worker("warehouse", func(_ context.Context, _ pgx.Tx, e pginbox.Event) error {
		if e.ID == "evt_021" {
			return errBoom
		}
		return nil
	})
	work := h.Handle
	h.Handle = func(ctx context.Context, tx pgx.Tx, events []pginbox.Event) error {
		calls.next()
		return work(ctx, tx, events)
	}
	in := db.inbox(pginbox.Options{Handlers: []pginbox.Handler{h}, Hook: func(ctx context.Context, p pginbox.Passage) error {
		if p.Step != pginbox.Worked || passed.next() > 2 {
			return nil
		}
		callsBefore = append(callsBefore, calls.Load())
		return db.terminate(ctx)
	}})
	require.NoError(t, in.Process(within(t), events(numbered(64)...)))
	require.Equal(t, []int64{
		1 + 2*6,     // the whole; then six times two halves
		1 + 2*6 + 7, // once more one of each size, and the event that fails
	}, callsBefore)
	require.ElementsMatch(t, without(numbered(64), "evt_021"), db.done("warehouse"))
	require.Equal(t, []string{"evt_021"}, db.deadIDs())
	require.Equal(t, 3, db.letters()[0].Attempts)
}
