package sandbox

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/shirou/gopsutil/v4/process"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/delivered-twice/delivered-twice/compose"
)

// installation is what the script compose/local runs with one state folder. The
// script keeps process ids, ports and addresses in files there.
type installation struct{ state string }

// run runs the script and returns what it printed. Its messages go to standard
// error, and the last of them is the error if it fails.
func (i installation) run(ctx context.Context, args ...string) (_ string, err error) {
	dir, err := os.MkdirTemp("", "delivered-twice-script-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.CopyFS(dir, compose.Files); err != nil {
		return "", err
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "bash", append([]string{filepath.Join(dir, "local")}, args...)...)
	cmd.Env = append(os.Environ(), "DELIVERED_TWICE_STATE="+i.state)
	cmd.Stdout, cmd.Stderr = &stdout, io.MultiWriter(&stderr, os.Stderr)
	// bash handles a signal only once the command it waits for has ended, so the
	// signal goes to the whole group: to Maven, say, and then to the script.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = grace
	if err := cmd.Run(); err != nil {
		if last := lastLine(&stderr); last != "" && ctx.Err() == nil {
			return "", errors.New(last)
		}
		return "", fmt.Errorf("compose/local %s: %w", args[0], errors.Join(ctx.Err(), err))
	}
	return stdout.String(), nil
}

func lastLine(r io.Reader) (last string) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		if line := strings.TrimSpace(lines.Text()); line != "" {
			last = line
		}
	}
	return last
}

// read is the content of a file in the state folder.
func (i installation) read(path ...string) (string, error) {
	content, err := os.ReadFile(filepath.Join(append([]string{i.state}, path...)...))
	return strings.TrimSpace(string(content)), err
}

// bootstrap are the addresses of its Kafka.
func (i installation) bootstrap() ([]string, error) {
	addresses, err := i.read("kafka", "bootstrap")
	return strings.Split(addresses, ","), err
}

// brokers are its Kafka brokers by node id.
func (i installation) brokers() map[int]broker {
	all := make(map[int]broker)
	folders, _ := filepath.Glob(filepath.Join(i.state, "kafka", "*", "server.properties")) // fails only on a malformed pattern
	for _, folder := range folders {
		if node, err := strconv.Atoi(filepath.Base(filepath.Dir(folder))); err == nil {
			all[node] = installedBroker{i, strconv.Itoa(node)}
		}
	}
	return all
}

// process is the process whose id is in a file, or nil if there is none. The id may
// belong to somebody else by now, so its command line must contain the path it is
// known by, too.
func (i installation) process(pidFile, path string) (*process.Process, error) {
	content, err := os.ReadFile(pidFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	first, _, _ := strings.Cut(string(content), "\n")
	pid, err := strconv.ParseInt(strings.TrimSpace(first), 10, 32)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", pidFile, err)
	}
	p, err := process.NewProcess(int32(pid))
	if errors.Is(err, process.ErrorProcessNotRunning) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	line, err := p.Cmdline()
	if err != nil && !gone(p) {
		return nil, fmt.Errorf("command line of process %d: %w", pid, err)
	}
	if !strings.Contains(line, path) { // that of a process that has ended is empty
		return nil, nil
	}
	return p, nil
}

// installedBroker is one broker of an installation.
type installedBroker struct {
	installation
	node string
}

func (b installedBroker) process() (*process.Process, error) {
	dir := filepath.Join(b.state, "kafka", b.node)
	return b.installation.process(filepath.Join(dir, "pid"), filepath.Join(dir, "server.properties"))
}

// answerTimeout bounds one attempt to reach a broker that is starting.
const answerTimeout = time.Second

func (b installedBroker) start(ctx context.Context) error {
	if _, err := b.run(ctx, "start", b.node); err != nil {
		return err
	}
	port, err := b.read("kafka", b.node, "broker")
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers("127.0.0.1:"+port), kgo.DialTimeout(answerTimeout), kgo.RequestRetries(0))
	if err != nil {
		return err
	}
	defer client.Close()
	return await(ctx, func() error {
		p, err := b.process()
		if err != nil {
			return backoff.Permanent(err)
		}
		if p == nil {
			return backoff.Permanent(errors.New("it ended; its log is in " + filepath.Join(b.state, "kafka", b.node, "log")))
		}
		return b.takesPart(ctx, client)
	})
}

// takesPart returns nil if the broker answers requests itself and the controller
// has let it take part: then it lists itself. A listening port alone means neither.
func (b installedBroker) takesPart(ctx context.Context, client *kgo.Client) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	request := kmsg.NewPtrMetadataRequest()
	request.Topics = []kmsg.MetadataRequestTopic{}
	answer, err := client.SeedBrokers()[0].Request(ctx, request)
	if err != nil {
		return err
	}
	for _, listed := range answer.(*kmsg.MetadataResponse).Brokers {
		if strconv.Itoa(int(listed.NodeID)) == b.node {
			return nil
		}
	}
	return errors.New("the controller has not let it take part yet")
}

func (b installedBroker) stop(ctx context.Context) error { return b.finish(ctx, syscall.SIGTERM) }
func (b installedBroker) kill(ctx context.Context) error { return b.finish(ctx, syscall.SIGKILL) }

func (b installedBroker) finish(ctx context.Context, s syscall.Signal) error {
	p, err := b.process()
	if err != nil || p == nil {
		return err
	}
	if err := p.SendSignal(s); err != nil && !gone(p) {
		return err
	}
	return awaitEnd(ctx, p)
}

func (b installedBroker) freeze() error {
	p, err := b.process()
	if err != nil {
		return err
	}
	if p == nil {
		return errors.New("it is not running")
	}
	return p.Suspend()
}

func (b installedBroker) thaw() error {
	p, err := b.process()
	if err != nil || p == nil {
		return err
	}
	return p.Resume()
}

// installedPostgres is the PostgreSQL of an installation.
type installedPostgres struct {
	installation
	url string
}

// lockFile holds the postmaster's process id.
func (s installedPostgres) lockFile() (string, error) {
	cluster, err := s.read("postgres", "cluster")
	return filepath.Join(cluster, "data", "postmaster.pid"), err
}

func (s installedPostgres) process() (*process.Process, error) {
	lock, err := s.lockFile()
	if err != nil {
		return nil, err
	}
	return s.installation.process(lock, filepath.Dir(lock))
}

func (s installedPostgres) start(ctx context.Context) error {
	if _, err := s.run(ctx, "up", "postgres"); err != nil {
		return err
	}
	return await(ctx, func() error { return accepts(ctx, s.url) })
}

// stop is the fast shutdown (PostgreSQL manual, section 19.5).
func (s installedPostgres) stop(ctx context.Context) error {
	p, err := s.process()
	if err != nil || p == nil {
		return err
	}
	if err := p.SendSignal(syscall.SIGINT); err != nil && !gone(p) {
		return err
	}
	return awaitEnd(ctx, p)
}

func (s installedPostgres) kill(ctx context.Context) error {
	p, err := s.process()
	if err != nil || p == nil {
		return err
	}
	if err := killFamily(ctx, p); err != nil {
		return err
	}
	// As long as nobody has collected the dead postmaster, the next one would take
	// it for a running one.
	lock, err := s.lockFile()
	if err != nil {
		return err
	}
	return os.Remove(lock)
}
