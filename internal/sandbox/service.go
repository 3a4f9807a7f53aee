package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/delivered-twice/delivered-twice/internal/process"
)

// grace bounds how long a service may take to stop and to remove its data.
const grace = 40 * time.Second

// announcement is a line of JSON that a service writes to standard output: once
// when it answers on its address, or an error, after which it ends.
type announcement struct {
	Address string `json:"address,omitempty"`
	Version string `json:"version,omitempty"`
	Nodes   []int  `json:"nodes,omitempty"` // the servers that the parent may control
	Error   string `json:"error,omitempty"`
}

func announce(a announcement) {
	// Nobody is left to be told if it fails.
	_ = json.NewEncoder(os.Stdout).Encode(a)
}

// service is what a role runs.
type service struct {
	announcement
	servers map[int]server // by node, for the parent to control
	end     func() error   // ends all of it; the data is removed afterwards
}

// host is the frame of a service's role. It gives start a folder of its own,
// announces what start returns, does what the parent asks, ends the service when
// ctx ends, and removes the folder. start must stop by itself what it began when
// it returns an error. The result is the exit code.
func host(ctx context.Context, name string, start func(ctx context.Context, dir string) (service, error)) int {
	if err := hostInFolder(ctx, name, start); err != nil {
		announce(announcement{Error: oneLine(err)})
		return 1
	}
	return 0
}

func hostInFolder(ctx context.Context, name string, start func(context.Context, string) (service, error)) (err error) {
	dir, err := os.MkdirTemp("", "delivered-twice-"+name+"-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	s, err := start(ctx, dir)
	if err != nil {
		return err
	}
	done := serveParent(ctx, s.servers)
	announce(s.announcement)
	<-ctx.Done()
	done() // a server that is just being started would not be seen by end
	return s.end()
}

// oneLine is the message of err on a single line.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// child is a role in a child process, seen from the parent.
type child struct {
	cmd     *process.Cmd
	name    string
	said    chan announcement // closed when it says no more
	ended   chan struct{}     // closed once the process has ended
	exit    error             // of the process; to be read after ended is closed
	control *remote           // of a service
}

// launchService is [launch] for a service: its standard error goes to a file in
// logs, named after the role, or nowhere if logs is empty.
func launchService(ctx context.Context, r role, logs string, args ...string) (_ *child, _ announcement, err error) {
	cmd := process.Command(r.name, args...)
	if r.prepare != nil {
		if err := r.prepare(cmd); err != nil {
			return nil, announcement{}, fmt.Errorf("%s: %w", r.title, err)
		}
	}
	if logs != "" {
		log, err := createLog(logs, r.name)
		if err != nil {
			return nil, announcement{}, fmt.Errorf("%s: %w", r.title, err)
		}
		defer func() { _ = log.Close() }() // the child has its own copy
		cmd.Stderr = log
	}
	control, theirs, err := newRemote()
	if err != nil {
		return nil, announcement{}, fmt.Errorf("%s: %w", r.title, err)
	}
	cmd.ExtraFiles = theirs
	c, said, err := launch(ctx, r, cmd)
	for _, file := range theirs {
		_ = file.Close() // the child has its own copy
	}
	if err != nil {
		return nil, announcement{}, errors.Join(err, control.Close())
	}
	c.control = control
	return c, said, nil
}

// launch starts a role and waits until it announces its address. It has stopped
// the child when it returns an error.
func launch(ctx context.Context, r role, cmd *process.Cmd) (*child, announcement, error) {
	stdout, w, err := os.Pipe()
	if err != nil {
		return nil, announcement{}, fmt.Errorf("%s: %w", r.title, err)
	}
	cmd.Stdout = w
	err = cmd.Start()
	_ = w.Close() // the child has its own copy
	if err != nil {
		_ = stdout.Close()
		return nil, announcement{}, fmt.Errorf("%s: %w", r.title, err)
	}

	// Room for every line there is, so that nothing depends on who listens when.
	c := &child{cmd: cmd, name: r.title, said: make(chan announcement, 2), ended: make(chan struct{})}
	go c.listen(stdout)

	select {
	case said, ok := <-c.said:
		switch {
		case !ok:
			<-c.ended
			return nil, announcement{}, fmt.Errorf("%s ended before it was ready: %w", r.title, c.exit)
		case said.Error != "":
			_ = c.stop() // it ends by itself, with this error
			return nil, announcement{}, fmt.Errorf("%s: %s", r.title, said.Error)
		}
		return c, said, nil
	case <-ctx.Done():
		return nil, announcement{}, fmt.Errorf("%s: %w", r.title, errors.Join(context.Cause(ctx), c.stop()))
	}
}

func createLog(dir, name string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return os.Create(filepath.Join(dir, name+".log"))
}

// listen passes on what the child says, and collects it when it ends.
func (c *child) listen(stdout io.ReadCloser) {
	defer close(c.ended)
	lines := json.NewDecoder(stdout)
	for {
		var a announcement
		if err := lines.Decode(&a); err != nil {
			break
		}
		c.said <- a
	}
	close(c.said)
	_ = stdout.Close()
	c.exit = c.cmd.Wait()
}

// runs reports whether the process has not ended. It does so on nil, too.
func (c *child) runs() bool {
	if c == nil {
		return false
	}
	select {
	case <-c.ended:
		return false
	default:
		return true
	}
}

// stop tells the child to clean up and waits until it has.
func (c *child) stop() error {
	c.cmd.CutLifeline()
	late := time.AfterFunc(grace, func() { _ = c.cmd.Process.Kill() })
	defer late.Stop()
	var failed error
	for said := range c.said {
		if said.Error != "" {
			failed = fmt.Errorf("stop %s: %s", c.name, said.Error)
		}
	}
	<-c.ended
	if failed == nil && c.exit != nil {
		failed = fmt.Errorf("stop %s: %w", c.name, c.exit)
	}
	if c.control != nil {
		_ = c.control.Close()
	}
	return failed
}
