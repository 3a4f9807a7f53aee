package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/delivered-twice/delivered-twice/compose"
)

func startApacheKafka(ctx context.Context, o Options) (*Services, error) {
	configs, err := json.Marshal(o.BrokerConfigs)
	if err != nil {
		return nil, fmt.Errorf("broker configs for Apache Kafka: %w", err)
	}
	c, said, err := launchService(ctx, apacheRole, o.Dir, strconv.Itoa(max(1, o.Nodes)), string(configs))
	if err != nil {
		return nil, err
	}
	return startedKafka(c, said), nil
}

// apacheMain is the role that runs compose/local, with a state folder of its own,
// and takes it down again. Its arguments are the number of brokers and their
// configs as JSON.
func apacheMain(ctx context.Context, args []string) int {
	return host(ctx, "apache-kafka", func(ctx context.Context, dir string) (service, error) {
		var configs map[string]string
		if err := json.Unmarshal([]byte(args[1]), &configs); err != nil {
			return service{}, fmt.Errorf("broker configs: %w", err)
		}
		i := installation{filepath.Join(dir, "state")}
		down := func() error {
			copyBrokerLogs(i)
			_, err := i.run(context.Background(), "down")
			return err
		}
		up := []string{"up", "--brokers", args[0]}
		for name, value := range configs {
			up = append(up, "--config", name+"="+value)
		}
		if _, err := i.run(ctx, append(up, "kafka")...); err != nil {
			return service{}, errors.Join(err, down())
		}
		bootstrap, err := i.bootstrap()
		if err != nil {
			return service{}, errors.Join(err, down())
		}
		s := service{
			announcement: announcement{
				Address: strings.Join(bootstrap, ","),
				Version: "Apache Kafka " + compose.KafkaVersion(),
			},
			servers: make(map[int]server),
			end:     down,
		}
		for node, b := range i.brokers() {
			s.Nodes = append(s.Nodes, node)
			s.servers[node] = b
		}
		return s, nil
	})
}

// copyBrokerLogs saves the brokers' logs, which end with their state folder. A log
// that is missing or unreadable is no reason not to stop its broker.
func copyBrokerLogs(i installation) {
	logs, _ := filepath.Glob(filepath.Join(i.state, "kafka", "*", "log"))
	for _, name := range logs {
		if log, err := os.Open(name); err == nil {
			_, _ = io.Copy(os.Stderr, log)
			_ = log.Close()
		}
	}
}
