package process_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/process"
)

func TestMain(m *testing.M) {
	process.Register("exit", func(args []string) int { return len(args) })
	process.Register("worker", func([]string) int { select {} })
	process.RegisterService("service", service)
	process.Register("parent", parent)
	process.Init()
	os.Exit(m.Run())
}

// service holds a folder for as long as it may live.
func service(ctx context.Context, args []string) int {
	if err := os.Mkdir(args[0], 0o700); err != nil {
		return 1
	}
	fmt.Println("ready")
	<-ctx.Done()
	if err := os.Remove(args[0]); err != nil {
		return 1
	}
	return 0
}

// parent starts two workers, one of them stopped, and a service, which all share
// its standard output, and waits to be killed.
func parent(args []string) int {
	worker, stopped, cleaner := process.Command("worker"), process.Command("worker"), process.Command("service", args[0])
	for _, child := range []*process.Cmd{worker, stopped, cleaner} {
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		if err := child.Start(); err != nil {
			fmt.Println(err)
			return 1
		}
		if child == stopped {
			if err := child.Process.Signal(syscall.SIGSTOP); err != nil {
				fmt.Println(err)
				return 1
			}
		}
	}
	select {}
}

// readUntil reads r until what was read contains want.
func readUntil(t *testing.T, r io.Reader, want string) {
	t.Helper()
	var got []byte
	buf := make([]byte, 64)
	for !bytes.Contains(got, []byte(want)) {
		n, err := r.Read(buf)
		got = append(got, buf[:n]...)
		require.NoError(t, err, "waiting for %q, read %q", want, got)
	}
}

func TestArgumentsAndExitCode(t *testing.T) {
	for n := range 3 {
		err := process.Command("exit", make([]string, n)...).Run()
		if n == 0 {
			require.NoError(t, err)
			continue
		}
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
		require.Equal(t, n, exit.ExitCode())
	}
}

func TestChildHasItsOwnProcessGroup(t *testing.T) {
	child := process.Command("worker")
	require.NoError(t, child.Start())
	group, err := syscall.Getpgid(child.Process.Pid)
	require.NoError(t, err)
	require.Equal(t, child.Process.Pid, group)
	require.NoError(t, child.Process.Kill())
	require.Error(t, child.Wait())
}

func TestCutLifelineEndsAWorker(t *testing.T) {
	child := process.Command("worker")
	require.NoError(t, child.Start())
	child.CutLifeline()
	child.CutLifeline()
	var exit *exec.ExitError
	require.ErrorAs(t, child.Wait(), &exit)
	require.Equal(t, process.ExitOrphaned, exit.ExitCode())
}

func TestServiceCleansUp(t *testing.T) {
	for _, tell := range []struct {
		name string
		end  func(*process.Cmd) error
	}{
		{"lifeline cut", func(c *process.Cmd) error { c.CutLifeline(); return nil }},
		{"SIGTERM", func(c *process.Cmd) error { return c.Process.Signal(syscall.SIGTERM) }},
	} {
		t.Run(tell.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "held")
			child := process.Command("service", dir)
			stdout, err := child.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, child.Start())
			readUntil(t, stdout, "ready")
			require.DirExists(t, dir)
			require.NoError(t, tell.end(child))
			require.NoError(t, child.Wait())
			require.NoDirExists(t, dir)
		})
	}
}

// When a parent is killed with SIGKILL, its workers die, a stopped one too, and
// its services clean up and end.
func TestNothingOutlivesAKilledParent(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "held")
	out, w, err := os.Pipe()
	require.NoError(t, err)
	defer func() { _ = out.Close() }()

	cmd := process.Command("parent", dir)
	cmd.Stdout, cmd.Stderr = w, w
	require.NoError(t, cmd.Start())
	require.NoError(t, w.Close())
	readUntil(t, out, "ready")
	require.DirExists(t, dir)

	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())

	// The pipe ends when the last process that holds its write end does: unlike a
	// look at process ids, this can be fooled by neither zombies nor reused ids.
	require.NoError(t, out.SetReadDeadline(time.Now().Add(10*time.Second)))
	rest, err := io.ReadAll(out)
	require.NoError(t, err, "a child is still alive")
	require.Empty(t, strings.TrimSpace(string(rest)))
	require.NoDirExists(t, dir)
}
