package failpoint_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/failpoint"
)

// asVictim makes the re-executed test binary play the process that has a
// failpoint.
const asVictim = "FAILPOINT_TEST_VICTIM"

var steps = []string{"polled", "begun", "inserted", "worked", "committed", "acknowledged"}

func TestMain(m *testing.M) {
	if os.Getenv(asVictim) != "" {
		os.Exit(victim())
	}
	os.Exit(m.Run())
}

// victim passes all steps five times and says so on standard output.
func victim() int {
	f, err := failpoint.FromEnv(steps)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	for round := range 5 {
		for _, step := range steps {
			if err := f.Pass(step); err != nil {
				fmt.Println("error", step, round+1)
			}
			fmt.Println("passed", step, round+1)
		}
	}
	return 0
}

func startVictim(t *testing.T, spec string) (cmd *exec.Cmd, stdout *bufio.Scanner, stderr *bytes.Buffer) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	// A victim that stands still at the wrong step must not hold the tests up.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	cmd = exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), asVictim+"=yes", failpoint.Variable+"="+spec)
	stderr = new(bytes.Buffer)
	cmd.Stderr = stderr
	pipe, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	return cmd, bufio.NewScanner(pipe), stderr
}

func lines(s *bufio.Scanner) (all []string) {
	for s.Scan() {
		all = append(all, s.Text())
	}
	return all
}

func TestKillDiesOfSIGKILLAtThePlannedPassing(t *testing.T) {
	for _, spec := range []string{"worked:3:kill", "worked:3"} {
		cmd, stdout, stderr := startVictim(t, spec)
		passed := lines(stdout)
		var exit *exec.ExitError
		require.ErrorAs(t, cmd.Wait(), &exit)

		status := exit.Sys().(syscall.WaitStatus)
		require.True(t, status.Signaled(), "must die of a signal, not exit")
		require.Equal(t, syscall.SIGKILL, status.Signal())
		require.Equal(t, "passed inserted 3", passed[len(passed)-1], "nothing after the step may happen")
		require.Equal(t, "failpoint: kill at worked, passing 3\n", stderr.String())
	}
}

func TestPauseStandsStillUntilContinued(t *testing.T) {
	cmd, stdout, stderr := startVictim(t, "worked:2:pause")

	var status syscall.WaitStatus
	_, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
	require.NoError(t, err)
	require.True(t, status.Stopped())
	require.Equal(t, syscall.SIGSTOP, status.StopSignal())

	for stdout.Scan() && stdout.Text() != "passed inserted 2" {
	}
	require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
	after := lines(stdout)
	require.Equal(t, "passed worked 2", after[0], "it must go on from the step")
	require.Equal(t, "passed acknowledged 5", after[len(after)-1])
	require.NoError(t, cmd.Wait())
	require.Equal(t, "failpoint: pause at worked, passing 2\n", stderr.String())
}

func TestFailReturnsAnErrorOnce(t *testing.T) {
	cmd, stdout, stderr := startVictim(t, "committed:2:fail")
	said := lines(stdout)
	require.NoError(t, cmd.Wait())
	var failures []string
	for _, line := range said {
		if strings.HasPrefix(line, "error") {
			failures = append(failures, line)
		}
	}
	require.Equal(t, []string{"error committed 2"}, failures)
	require.Equal(t, "failpoint: fail at committed, passing 2\n", stderr.String())
}

func TestStrikesOnceUnderConcurrentPassings(t *testing.T) {
	f, err := failpoint.Parse("worked:500:fail")
	require.NoError(t, err)
	var failures atomic.Int64
	var passers sync.WaitGroup
	for range 8 {
		passers.Go(func() {
			for range 100 {
				if err := f.Pass("worked"); errors.Is(err, failpoint.ErrFailed) {
					failures.Add(1)
				}
				if f.Pass("begun") != nil {
					failures.Add(1000)
				}
			}
		})
	}
	passers.Wait()
	require.EqualValues(t, 1, failures.Load())
}

func TestNilNeverStrikes(t *testing.T) {
	t.Setenv(failpoint.Variable, "")
	f, err := failpoint.FromEnv(steps)
	require.NoError(t, err)
	require.Nil(t, f)
	require.NoError(t, f.Pass("worked"))
}

func TestParse(t *testing.T) {
	for _, c := range []struct{ spec, want, err string }{
		{spec: "worked", want: "worked:1:kill"},
		{spec: "worked:3", want: "worked:3:kill"},
		{spec: "worked:3:pause", want: "worked:3:pause"},
		{spec: "worked:12:fail", want: "worked:12:fail"},
		{spec: "", err: "must be step[:occurrence[:action]]"},
		{spec: ":1", err: "must be step[:occurrence[:action]]"},
		{spec: "worked:1:kill:now", err: "must be step[:occurrence[:action]]"},
		{spec: "worked:0", err: `occurrence "0" must be a whole number from 1`},
		{spec: "worked:kill", err: `occurrence "kill" must be a whole number from 1`},
		{spec: "worked:1:explode", err: `action "explode" must be kill, pause or fail`},
	} {
		t.Run(c.spec, func(t *testing.T) {
			f, err := failpoint.Parse(c.spec)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, f.String())
		})
	}
}

func TestFromEnvRefusesAStepThatIsNotThere(t *testing.T) {
	t.Setenv(failpoint.Variable, "comitted:2")
	_, err := failpoint.FromEnv(steps)
	require.EqualError(t, err, `environment variable FAILPOINT: there is no step "comitted"; `+
		`the nearest: committed; all: polled, begun, inserted, worked, committed, acknowledged`)
}
