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
	"strings"
	"syscall"

	"github.com/delivered-twice/delivered-twice/compose"
)

func startApacheKafka(ctx context.Context, o Options) (*Services, error) {
	c, said, err := launch(ctx, apacheRole, o.Dir, nil)
	if err != nil {
		return nil, err
	}
	return &Services{
		Brokers:      strings.Split(said.Address, ","),
		KafkaVersion: said.Version,
		started:      []*child{c},
	}, nil
}

// apacheMain is the role that runs compose/local, with a state folder of its own,
// and takes it down again.
func apacheMain(ctx context.Context, _ []string) int {
	return host(ctx, "apache-kafka", func(ctx context.Context, dir string) (announcement, stop, error) {
		if err := os.CopyFS(filepath.Join(dir, "compose"), compose.Files); err != nil {
			return announcement{}, nil, err
		}
		down := func() error {
			copyBrokerLogs(dir)
			_, err := local(context.Background(), dir, "down")
			return err
		}
		env, err := local(ctx, dir, "up", "--brokers", "1", "kafka")
		if err != nil {
			return announcement{}, nil, errors.Join(err, down())
		}
		for line := range strings.Lines(env) {
			if brokers, ok := strings.CutPrefix(line, "export KAFKA_BROKERS="); ok {
				return announcement{
					Address: strings.TrimSpace(brokers),
					Version: "Apache Kafka " + compose.KafkaVersion(),
				}, down, nil
			}
		}
		return announcement{}, nil, errors.Join(fmt.Errorf("compose/local up printed no address: %q", env), down())
	})
}

// local runs the script compose/local and returns what it printed. Its messages
// go to standard error, and the last of them is the error if it fails.
func local(ctx context.Context, dir string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "bash", append([]string{filepath.Join(dir, "compose", "local")}, args...)...)
	cmd.Env = append(os.Environ(), "DELIVERED_TWICE_STATE="+filepath.Join(dir, "state"))
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

// copyBrokerLogs saves the brokers' logs, which end with their state folder. A log
// that is missing or unreadable is no reason not to stop its broker.
func copyBrokerLogs(dir string) {
	logs, _ := filepath.Glob(filepath.Join(dir, "state", "kafka", "*", "log"))
	for _, name := range logs {
		if log, err := os.Open(name); err == nil {
			_, _ = io.Copy(os.Stderr, log)
			_ = log.Close()
		}
	}
}
