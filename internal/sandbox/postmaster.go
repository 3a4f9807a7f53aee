package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
	gops "github.com/shirou/gopsutil/v4/process"

	"github.com/delivered-twice/delivered-twice/internal/process"
)

// postgresServer is the server on a data folder, a child process of ours.
type postgresServer struct {
	binary, data string
	port         int
	url          string

	mu      sync.Mutex
	current *postmaster // the latest one, or nil
}

// parameters are the server's settings beside its port. A matrix runs hundreds of
// processes, each with connections of its own.
var parameters = map[string]string{
	"listen_addresses":        "127.0.0.1",
	"unix_socket_directories": "",
	"fsync":                   "on",
	"track_commit_timestamp":  "on",
	"max_connections":         "500",
}

// postmaster is the process that starts all others of a server.
type postmaster struct {
	cmd   *exec.Cmd
	log   tail
	ended chan struct{} // closed once all processes of the server have ended
	exit  error         // to be read after ended is closed
}

func (s *postgresServer) start(ctx context.Context) error {
	p, err := s.startProcess()
	if err != nil {
		return err
	}
	return await(ctx, func() error {
		select {
		case <-p.ended:
			return backoff.Permanent(fmt.Errorf("it ended (%w): %s", p.exit, p.log.line()))
		default:
			return accepts(ctx, s.url)
		}
	})
}

// accepts returns nil if the server at the address accepts connections.
func accepts(ctx context.Context, databaseURL string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

func (s *postgresServer) startProcess() (*postmaster, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current.runs() {
		return s.current, nil
	}
	p := &postmaster{ended: make(chan struct{})}
	p.cmd = exec.Command(s.binary, "-D", s.data, "-p", fmt.Sprint(s.port))
	for name, value := range parameters {
		p.cmd.Args = append(p.cmd.Args, "-c", name+"="+value)
	}
	// All processes of the server write to this pipe, so Wait waits for all of them.
	p.cmd.Stderr = io.MultiWriter(os.Stderr, &p.log)
	// SIGQUIT is the immediate shutdown (PostgreSQL manual, section 19.5): were we to
	// end without having stopped it, it would end, too.
	if err := process.StartTied(p.cmd, syscall.SIGQUIT); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.ended)
		p.exit = p.cmd.Wait()
	}()
	s.current = p
	return p, nil
}

func (p *postmaster) runs() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// running is the server, or nil if there is none.
func (s *postgresServer) running() *postmaster {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current.runs() {
		return s.current
	}
	return nil
}

// stop is the fast shutdown: it ends sessions, and writes a checkpoint.
func (s *postgresServer) stop(ctx context.Context) error {
	p := s.running()
	if p == nil {
		return nil
	}
	if err := ignoreEnded(p.cmd.Process.Signal(syscall.SIGINT)); err != nil {
		return err
	}
	select {
	case <-p.ended:
		return p.exit
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *postgresServer) kill(ctx context.Context) error {
	p := s.running()
	if p == nil {
		return nil
	}
	parent, err := gops.NewProcessWithContext(ctx, int32(p.cmd.Process.Pid))
	if err == nil {
		err = killFamily(ctx, parent)
	}
	if err != nil && !errors.Is(err, gops.ErrorProcessNotRunning) {
		return err
	}
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// end is the immediate shutdown: the data goes, too.
func (s *postgresServer) end() error {
	p := s.running()
	if p == nil {
		return nil
	}
	if err := ignoreEnded(p.cmd.Process.Signal(syscall.SIGQUIT)); err != nil {
		return err
	}
	<-p.ended
	return nil
}

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	end []byte
}

const tailSize = 4096

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, b...)
	t.end = t.end[max(0, len(t.end)-tailSize):]
	return len(b), nil
}

// line is the last line.
func (t *tail) line() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := bytes.Split(bytes.TrimSpace(t.end), []byte("\n"))
	return strings.TrimSpace(string(lines[len(lines)-1]))
}
