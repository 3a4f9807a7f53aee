package pginbox_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/pginbox"
	"github.com/delivered-twice/delivered-twice/internal/process"
)

// become is the role that turns into another program, so that one that was not made
// for it ends with its parent too.
const become = "become"

func init() {
	process.Register(become, func(args []string) int {
		fmt.Fprintln(os.Stderr, syscall.Exec(args[0], args, os.Environ()))
		return 1
	})
}

// server is a PostgreSQL of the test's own, to be killed.
type server struct {
	t        *testing.T
	binaries string
	dir      string
	port     int
	url      string
	cmd      *process.Cmd
}

func newServer(t *testing.T) *server {
	t.Helper()
	binaries, err := exec.Command("pg_config", "--bindir").Output()
	s := &server{t: t, binaries: strings.TrimSpace(string(binaries))}
	if _, missing := os.Stat(filepath.Join(s.binaries, "postgres")); err != nil || missing != nil {
		t.Skip("no PostgreSQL is installed here that could be killed")
	}
	s.dir, err = os.MkdirTemp("/tmp", "pginbox-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(s.dir)) })
	initdb := s.command(filepath.Join(s.binaries, "initdb"), "-D", filepath.Join(s.dir, "data"), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	if c := initdb.SysProcAttr.Credential; c != nil {
		require.NoError(t, os.Chown(s.dir, int(c.Uid), int(c.Gid)))
	}
	require.NoError(t, initdb.Run())

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s.port = listener.Addr().(*net.TCPAddr).Port
	require.NoError(t, listener.Close())
	s.url = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", s.port)
	s.start()
	t.Cleanup(s.kill)
	return s
}

// command runs a program as a user that PostgreSQL accepts.
func (s *server) command(program string, args ...string) *process.Cmd {
	cmd := process.Command(become, append([]string{program}, args...)...)
	cmd.Stderr = s.t.Output()
	cmd.Dir = "/"
	if os.Geteuid() == 0 {
		account, err := user.Lookup("postgres")
		if err != nil {
			account, err = user.Lookup("nobody")
		}
		require.NoError(s.t, err)
		uid, err := strconv.ParseUint(account.Uid, 10, 32)
		require.NoError(s.t, err)
		gid, err := strconv.ParseUint(account.Gid, 10, 32)
		require.NoError(s.t, err)
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	return cmd
}

// start starts it with a WAL writer that sleeps most of the time, so that much of what
// is committed is not on disk.
func (s *server) start() {
	s.t.Helper()
	s.cmd = s.command(filepath.Join(s.binaries, "postgres"), "-D", filepath.Join(s.dir, "data"), "-p", strconv.Itoa(s.port),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
		"-c", "wal_writer_delay=10s", "-c", "wal_writer_flush_after=1GB",
		"-c", "wal_level=minimal", "-c", "max_wal_senders=0", "-c", "checkpoint_timeout=1h", // nor does anybody else write
		"-c", "log_min_messages=panic")
	require.NoError(s.t, s.cmd.Start())
	require.Eventually(s.t, func() bool {
		conn, err := pgx.Connect(s.t.Context(), s.url)
		if err != nil {
			return false
		}
		return conn.Close(s.t.Context()) == nil
	}, patience, 10*time.Millisecond, "PostgreSQL does not start")
}

// kill ends all its processes with SIGKILL, the one that would start others first.
func (s *server) kill() {
	if s.cmd == nil {
		return
	}
	pid := s.cmd.Process.Pid
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	_ = s.cmd.Process.Kill()
	for _, child := range strings.Fields(string(children)) {
		if pid, err := strconv.Atoi(child); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	_ = s.cmd.Wait()
	s.cmd = nil
}

// committedOffset is the group's in partition 0.
func (s *stream) committedOffset(ctx context.Context) (int64, error) {
	offsets, err := s.admin.FetchOffsets(ctx, s.group)
	if err != nil {
		return 0, err
	}
	at, _ := offsets.Lookup(s.topic, 0)
	return max(at.At, 0), at.Err
}

// The database dies with commits that are not on disk, again and again. What was
// acknowledged by then must be there when it is back, and everything in the end.
func TestTheDatabaseCrashes(t *testing.T) {
	for name, c := range map[string]struct {
		remember  pginbox.Remember
		afterward bool // acknowledged after the flush
		loses     bool
	}{
		"ids, acknowledged at once":         {pginbox.RememberIDs, false, true},
		"ids, acknowledged after flush":     {pginbox.RememberIDs, true, false},
		"offsets, whatever is acknowledged": {pginbox.RememberOffsets, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			server := newServer(t)
			db, s := newDatabaseAt(t, server.url), newStream(t, 1)
			ids := numbered(400)
			s.send(ids...)

			// rows counts the events that are done, up to an offset.
			rows := func(ctx context.Context, below int64) (n int64) {
				require.Eventually(t, func() bool { // connections from before are of no use
					return db.own.QueryRow(ctx, `SELECT count(DISTINCT event) FROM work WHERE convert_from(event, 'UTF8')::bigint < $1`, below).Scan(&n) == nil
				}, patience, 10*time.Millisecond)
				return n
			}
			var committed counter
			var lost int64
			crash := func(ctx context.Context) error {
				server.kill()
				offset, err := s.committedOffset(ctx)
				server.start()
				if err != nil {
					return err
				}
				if n := rows(ctx, offset); c.remember == pginbox.RememberIDs && n < offset {
					lost += offset - n
				}
				return nil
			}
			in := db.inbox(pginbox.Options{
				Remember: c.remember, AsynchronousCommit: true,
				Handlers: []pginbox.Handler{positions("warehouse")},
				Hook: func(ctx context.Context, p pginbox.Passage) error {
					if p.Step != pginbox.Committed {
						return nil
					}
					switch committed.next() {
					case 4, 9, 11:
						return crash(ctx)
					}
					return nil
				},
			})
			o := s.options(in)
			o.BatchSize = 25
			if c.afterward {
				o.AcknowledgeAfterFlush = db.pool
			}
			if c.remember != pginbox.RememberIDs {
				o.Resume = in.Resume
			}
			consumer := start(t, o)
			require.Eventually(t, func() bool { return s.lag() == 0 && (c.loses || rows(t.Context(), 400) == 400) }, patience, 20*time.Millisecond)
			consumer.end()
			require.GreaterOrEqual(t, committed.Load(), int64(11))
			if c.loses {
				require.NotZero(t, lost, "the crashes take nothing with them, so nothing is proved")
				require.Less(t, rows(t.Context(), 400), int64(400))
				return
			}
			require.Zero(t, lost, "records were acknowledged whose work was not on disk")
			done := db.done("warehouse 0")
			require.Len(t, done, 400)
			for i, offset := range done {
				require.Equal(t, strconv.Itoa(i), offset, "each once, and in order")
			}
		})
	}
}

// A consumer that stops brings what it has done to the disk and acknowledges it.
func TestAConsumerStopsBeforeTheFlush(t *testing.T) {
	server := newServer(t)
	db, s := newDatabaseAt(t, server.url), newStream(t, 1)
	s.send(numbered(30)...)
	committed := make(chan struct{})
	in := db.inbox(pginbox.Options{AsynchronousCommit: true, Handlers: []pginbox.Handler{positions("warehouse")}, Hook: func(_ context.Context, p pginbox.Passage) error {
		if p.Step == pginbox.Committed {
			close(committed)
		}
		return nil
	}})
	o := s.options(in)
	o.AcknowledgeAfterFlush = db.pool
	consumer := start(t, o)
	<-committed
	consumer.end()
	require.Zero(t, s.lag())
	server.kill()
	server.start()
	require.Eventually(t, func() bool { return db.own.Ping(t.Context()) == nil }, patience, 10*time.Millisecond)
	require.Len(t, db.done("warehouse 0"), 30)
}

// The log ends at the end of a page: flushed to its end it is still short of where the
// next record will go.
func TestTheLogEndsWithAPage(t *testing.T) {
	server := newServer(t)
	db, s := newDatabaseAt(t, server.url), newStream(t, 1)
	s.send(numbered(3)...)
	in := db.inbox(pginbox.Options{Handlers: []pginbox.Handler{positions("warehouse")}, Hook: func(ctx context.Context, p pginbox.Passage) error {
		if p.Step != pginbox.Committed {
			return nil
		}
		if _, err := db.own.Exec(ctx, `SELECT pg_switch_wal()`); err != nil {
			return err
		}
		var short bool
		if err := db.own.QueryRow(ctx, `SELECT pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()`).Scan(&short); err != nil {
			return err
		}
		if !short {
			return pginbox.Permanent(errors.New("the log is not flushed to the end of a page"))
		}
		return nil
	}})
	o := s.options(in)
	o.AcknowledgeAfterFlush = db.pool
	consumer := start(t, o)
	s.awaitAcknowledged()
	consumer.end()
}

// What is processed and not on disk yet is brought there and acknowledged before the
// partitions go to another member.
func TestMembersThatAcknowledgeAfterTheFlushComeAndGo(t *testing.T) {
	server := newServer(t)
	db, s := newDatabaseAt(t, server.url), newStream(t, 4)
	member := func() pginbox.ConsumerOptions {
		o := s.options(db.inbox(pginbox.Options{AsynchronousCommit: true, Handlers: []pginbox.Handler{positions("warehouse")}}))
		o.InstanceID, o.BatchSize, o.AcknowledgeAfterFlush = "", 10, db.pool
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
