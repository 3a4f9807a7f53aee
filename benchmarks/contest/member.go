package contest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/shirou/gopsutil/v4/process"

	ours "github.com/delivered-twice/delivered-twice/internal/process"
)

// stopPatience is how long a contender may take to end after SIGTERM.
const stopPatience = 30 * time.Second

// tailLines is how much of a contender's standard error is told when it fails.
const tailLines = 20

// member is one instance of a contender: a process.
type member struct {
	cmd   *exec.Cmd
	stats *process.Process
	// ended is closed when the process has ended, with err.
	ended chan struct{}
	err   error

	mu       sync.Mutex
	settings []string
	tail     []string
}

// start starts an instance, which dies with this process.
func start(cmd *exec.Cmd, environment []string, log io.Writer) (*member, error) {
	m := &member{cmd: cmd, ended: make(chan struct{})}
	cmd.Env = append(cmd.Environ(), environment...)
	// Nobody writes to it; it ends with this process.
	if _, err := cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := ours.StartTied(cmd, syscall.SIGKILL); err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	m.stats, err = process.NewProcess(int32(cmd.Process.Pid))
	go func() {
		defer close(m.ended)
		m.listen(stderr, log)
		m.err = cmd.Wait()
	}()
	if err != nil {
		m.kill()
		return nil, fmt.Errorf("look at %s: %w", cmd.Path, err)
	}
	return m, nil
}

func (m *member) listen(stderr io.Reader, log io.Writer) {
	lines := bufio.NewReader(stderr)
	for {
		line, err := lines.ReadString('\n')
		if line = strings.TrimSpace(line); line != "" {
			if log != nil {
				_, _ = fmt.Fprintln(log, line)
			}
			m.mu.Lock()
			if setting, ok := strings.CutPrefix(line, settingPrefix); ok {
				m.settings = append(m.settings, setting)
			}
			if m.tail = append(m.tail, line); len(m.tail) > tailLines {
				m.tail = slices.Delete(m.tail, 0, len(m.tail)-tailLines)
			}
			m.mu.Unlock()
		}
		if err != nil {
			return
		}
	}
}

func (m *member) lastWords() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Join(m.tail, "\n")
}

func (m *member) kill() {
	_ = m.cmd.Process.Kill() // that it has ended already is the only error there is
	<-m.ended
}

// stop ends it as it should end, and returns an error if it does not.
func (m *member) stop() error {
	if err := m.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		<-m.ended
		return fmt.Errorf("it ended by itself (%w); its last words:\n%s", errors.Join(err, m.err), m.lastWords())
	}
	select {
	case <-m.ended:
	case <-time.After(stopPatience):
		m.kill()
		return fmt.Errorf("it did not end within %v of SIGTERM; its last words:\n%s", stopPatience, m.lastWords())
	}
	if m.err != nil {
		return fmt.Errorf("it did not end well: %w; its last words:\n%s", m.err, m.lastWords())
	}
	return nil
}

// members are all instances.
type members []*member

// cpu are the seconds of processor time that they have had.
func (all members) cpu() float64 {
	sum := 0.0
	for _, m := range all {
		if times, err := m.stats.Times(); err == nil { // one that has ended is told elsewhere
			sum += times.User + times.System
		}
	}
	return sum
}

// memory is the most that one of them had resident. It is not what wait4 tells: on
// Linux that begins with the memory of whoever forked the process (ru_maxrss survives
// exec).
func (all members) memory() int64 {
	most := uint64(0)
	for _, m := range all {
		if memory, err := m.stats.MemoryInfo(); err == nil {
			most = max(most, memory.HWM, memory.RSS)
		}
	}
	return int64(most)
}

// ended returns an error if one of them has.
func (all members) ended() error {
	for i, m := range all {
		select {
		case <-m.ended:
			return fmt.Errorf("instance %d ended by itself: %w; its last words:\n%s", i, errors.Join(m.err, errEnded), m.lastWords())
		default:
		}
	}
	return nil
}

var errEnded = errors.New("nobody told it to")

// stop ends all of them at the same time.
func (all members) stop() error {
	errs := make([]error, len(all))
	var stopping sync.WaitGroup
	for i, m := range all {
		stopping.Go(func() { errs[i] = m.stop() })
	}
	stopping.Wait()
	return errors.Join(errs...)
}

// kill ends those that are left.
func (all members) kill() {
	for _, m := range all {
		m.kill()
	}
}
