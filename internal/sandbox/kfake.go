package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/delivered-twice/delivered-twice/internal/process"
)

func startEmbeddedKafka(ctx context.Context, o Options) (*Services, error) {
	configs, err := json.Marshal(o.BrokerConfigs)
	if err != nil {
		return nil, fmt.Errorf("embedded Kafka: broker configs: %w", err)
	}
	c, said, err := launchService(ctx, kfakeRole, o.Dir, string(configs))
	if err != nil {
		return nil, err
	}
	return startedKafka(c, said), nil
}

// kfakeNode is the id of kfake's only broker.
const kfakeNode = 0

// kfakeMain is the role of the embedded Kafka's keeper, which owns the data and
// runs the broker in a process of its own: that one can be stopped and frozen, and
// this one still cleans up. Its argument is the broker configs as JSON.
func kfakeMain(ctx context.Context, args []string) int {
	return host(ctx, "kafka", func(ctx context.Context, dir string) (service, error) {
		b := &kfakeBroker{data: filepath.Join(dir, "data"), configs: args[0]}
		err := OnFreePort(ctx, func(port int) error {
			b.port = port
			return b.start(ctx)
		})
		if err != nil {
			return service{}, err
		}
		return service{
			announcement: announcement{
				Address: loopback(b.port),
				Version: kfakeVersion(),
				Nodes:   []int{kfakeNode},
			},
			servers: map[int]server{kfakeNode: b},
			end:     b.end,
		}, nil
	})
}

// kfakeBroker is the process of kfake's broker.
type kfakeBroker struct {
	data, configs string
	port          int

	mu     sync.Mutex
	worker *child // the latest one
}

func (b *kfakeBroker) start(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.worker.runs() {
		return nil
	}
	cmd := process.Command(kfakeBrokerRole.name, b.data, strconv.Itoa(b.port), b.configs)
	cmd.Stderr = os.Stderr
	worker, _, err := launch(ctx, kfakeBrokerRole, cmd)
	if err != nil {
		return err
	}
	b.worker = worker
	return nil
}

func (b *kfakeBroker) stop(ctx context.Context) error {
	worker := b.latest()
	if err := worker.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return ignoreEnded(err)
	}
	select {
	case <-worker.ended:
		return worker.exit
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (b *kfakeBroker) kill(context.Context) error {
	return fmt.Errorf("the sudden death of the embedded Kafka proves nothing about Kafka, because it forgets what it acknowledged; choose Kafka %q", Apache)
}

func (b *kfakeBroker) freeze() error {
	if err := b.latest().cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return errors.New("it is not running")
	}
	return nil
}

func (b *kfakeBroker) thaw() error {
	return ignoreEnded(b.latest().cmd.Process.Signal(syscall.SIGCONT))
}

func (b *kfakeBroker) latest() *child {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.worker
}

// end needs no orderly stop: the data goes, too.
func (b *kfakeBroker) end() error {
	worker := b.latest()
	if err := ignoreEnded(worker.cmd.Process.Kill()); err != nil {
		return err
	}
	<-worker.ended
	return nil
}

// ignoreEnded is err, unless it says that the process has ended already.
func ignoreEnded(err error) error {
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// kfakeBrokerMain is the role of the broker. Its arguments are the folder for its
// data, the port, and the broker configs as JSON. SIGTERM stops it in order.
func kfakeBrokerMain(args []string) int {
	if err := runKfake(args[0], args[1], args[2]); err != nil {
		announce(announcement{Error: oneLine(err)})
		return 1
	}
	return 0
}

func runKfake(data, port, configs string) error {
	terminated, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	var settings map[string]string
	if err := json.Unmarshal([]byte(configs), &settings); err != nil {
		return fmt.Errorf("broker configs: %w", err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	cluster, err := kfake.NewCluster(
		kfake.Ports(number), // one broker
		kfake.DataDir(data),
		kfake.BrokerConfigs(settings),
		kfake.GroupMinSessionTimeout(time.Second), // so that tests notice a dead member soon
		kfake.WithLogger(kfake.BasicLogger(os.Stderr, kfake.LogLevelWarn)),
	)
	if err != nil {
		return err
	}
	announce(announcement{Address: cluster.ListenAddrs()[0]})
	<-terminated.Done()
	cluster.Close()
	return nil
}

// kfakeVersion is the version of the kfake module that this binary is built with.
func kfakeVersion() string {
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, module := range build.Deps {
			if module.Path == "github.com/twmb/franz-go/pkg/kfake" {
				return "kfake " + module.Version
			}
		}
	}
	return "kfake"
}
