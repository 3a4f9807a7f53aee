// Package process runs parts of this program as child processes of itself
// that never outlive it, however it ends: kill -9 of the parent included.
//
// A program names its roles with [Register] and [RegisterService], calls
// [Init] first thing in main (and in TestMain), and starts a role with
// [Command]. The child is the same binary, so one `go run` or one test binary
// is all there is to build, and parent and child always speak the same version
// of whatever they speak.
//
// Every child holds the read end of a pipe, its lifeline, as standard input.
// Nobody writes to it. The kernel closes the write end when the parent ends,
// and the child reads end-of-file: that works on every Unix and for every way
// to die. On Linux a worker also asks the kernel to be killed with its parent,
// which reaches it even while it is stopped (SIGSTOP).
package process

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/moby/sys/reexec"
)

// ExitOrphaned is the exit code of a worker whose lifeline was cut.
const ExitOrphaned = 2

// services holds the names of the roles that clean up after themselves.
var services = map[string]bool{}

// Register makes main a role of this program, a worker: a child that ends at
// once, with no chance to clean up, when its parent is gone. main gets the
// arguments given to [Command], and its result is the exit code. Standard input
// is the lifeline and belongs to this package.
//
// Register panics if the name is taken. Call it before [Init].
func Register(name string, main func(args []string) int) {
	reexec.Register(name, func() {
		go func() {
			awaitEOF()
			os.Exit(ExitOrphaned)
		}()
		os.Exit(main(os.Args[1:]))
	})
}

// RegisterService makes main a role of this program, a service: a child that
// has something to remove or to stop before it ends. Its context ends when the
// parent is gone, when the parent calls [Cmd.CutLifeline], and at SIGTERM or
// SIGINT; main must then clean up and return, because nothing else will end it.
// Writing to a standard output that nobody reads any more fails without killing
// the process, as SIGPIPE would.
//
// RegisterService panics if the name is taken. Call it before [Init].
func RegisterService(name string, main func(ctx context.Context, args []string) int) {
	reexec.Register(name, func() {
		ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		// The parent may have held the other end of our standard output: a write
		// must then fail, and not kill the process in the middle of cleaning up.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
		go func() {
			awaitEOF()
			cancel()
		}()
		os.Exit(main(ctx, os.Args[1:]))
	})
	services[name] = true
}

// awaitEOF returns when the write end of the lifeline is closed.
func awaitEOF() {
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// Init becomes the registered role that this process was started as, and then
// never returns. In a process that was not started by [Command] it does nothing.
// It must be the first call of main and of TestMain.
func Init() {
	reexec.Init() // a registered role ends in os.Exit
}

// Cmd is a child process in one of this program's roles. Set what you need in
// the embedded exec.Cmd before Start, except Stdin, which is the lifeline.
// SysProcAttr is never nil: set Credential in it to run the child as another
// user.
type Cmd struct {
	*exec.Cmd

	lifeline io.Closer
	service  bool
}

// Command returns the command that runs this binary again as the role name.
// The child gets a process group of its own, so that Ctrl-C in a terminal
// reaches only the parent, which then decides in which order its children end.
func Command(name string, args ...string) *Cmd {
	cmd := reexec.Command(append([]string{name}, args...)...)
	if runtime.GOOS != "linux" {
		// Away from /proc, reexec derives the path from os.Args[0], which in a
		// child is the name of its role.
		cmd.Path, cmd.Err = os.Executable()
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return &Cmd{Cmd: cmd, service: services[name]}
}

// Start starts the child. As with exec.Cmd, a successful Start needs a Wait.
func (c *Cmd) Start() error {
	lifeline, err := c.StdinPipe()
	if err != nil {
		return fmt.Errorf("start %s: %w", c.Args[0], err)
	}
	c.lifeline = lifeline
	if err := c.start(); err != nil {
		return fmt.Errorf("start %s: %w", c.Args[0], err)
	}
	return nil
}

// Run starts the child and waits until it ends.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// CutLifeline makes the child see what it would see if this process had died:
// a worker exits with [ExitOrphaned], a service cleans up and exits. It returns
// at once; Wait tells when the child is gone. Calling it again, or after the
// child ended, does nothing.
func (c *Cmd) CutLifeline() {
	_ = c.lifeline.Close() // a second close is the only error there is
}
