package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

func startEmbeddedKafka(ctx context.Context, o Options) (*Services, error) {
	configs, err := json.Marshal(o.BrokerConfigs)
	if err != nil {
		return nil, fmt.Errorf("embedded Kafka: broker configs: %w", err)
	}
	c, said, err := launch(ctx, kfakeRole, o.Dir, []string{string(configs)})
	if err != nil {
		return nil, err
	}
	return &Services{Brokers: []string{said.Address}, KafkaVersion: said.Version, started: []*child{c}}, nil
}

// kfakeMain is the role of the embedded Kafka; its argument is the broker
// configs as JSON.
func kfakeMain(ctx context.Context, args []string) int {
	return host(ctx, "kafka", func(_ context.Context, dir string) (announcement, stop, error) {
		var configs map[string]string
		if err := json.Unmarshal([]byte(args[0]), &configs); err != nil {
			return announcement{}, nil, fmt.Errorf("broker configs: %w", err)
		}
		cluster, err := kfake.NewCluster(
			kfake.Ports(0), // one broker, on a port that the kernel chooses
			kfake.DataDir(filepath.Join(dir, "data")),
			kfake.BrokerConfigs(configs),
			kfake.GroupMinSessionTimeout(time.Second), // so that tests notice a dead member soon
			kfake.WithLogger(kfake.BasicLogger(os.Stderr, kfake.LogLevelWarn)),
		)
		if err != nil {
			return announcement{}, nil, err
		}
		return announcement{Address: cluster.ListenAddrs()[0], Version: kfakeVersion()},
			func() error { cluster.Close(); return nil }, nil
	})
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
