package sandbox

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/compose"
)

// needApache skips a test where Apache Kafka cannot be run.
func needApache(t *testing.T) {
	if testing.Short() {
		t.Skip("Apache Kafka takes its time")
	}
	java := "java"
	if home := os.Getenv("JAVA_HOME"); home != "" {
		java = filepath.Join(home, "bin", "java")
	}
	if _, err := exec.LookPath(java); err != nil {
		t.Skip("Apache Kafka needs Java")
	}
	caches := os.Getenv("XDG_CACHE_HOME")
	if caches == "" {
		home, err := os.UserHomeDir()
		require.NoError(t, err)
		caches = filepath.Join(home, ".cache")
	}
	if _, err := os.Stat(filepath.Join(caches, "delivered-twice", "kafka-"+compose.KafkaVersion())); err == nil {
		return
	}
	if _, err := exec.LookPath("mvn"); err != nil {
		t.Skip("Apache Kafka is not downloaded yet, and Maven is not here")
	}
}

func startApache(t *testing.T, o Options) *Services {
	needApache(t)
	o.Kafka = Apache
	began := time.Now()
	s, err := StartKafka(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	t.Logf("started in %v", time.Since(began).Round(time.Millisecond))
	require.NoError(t, s.KafkaControl())
	return s
}

func TestApacheKafka(t *testing.T) {
	s := startApache(t, Options{BrokerConfigs: map[string]string{
		"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1234",
		"group.min.session.timeout.ms":                                "2000", // overrides ours
	}})
	require.Equal(t, []int{1}, s.Nodes())
	require.Len(t, s.Brokers, 1)

	configs, err := kadm.NewClient(newClient(t, s)).DescribeBrokerConfigs(t.Context(), 1)
	require.NoError(t, err)
	found := make(map[string]string)
	for _, config := range configs[0].Configs {
		found[config.Key] = config.MaybeValue()
	}
	require.Equal(t, "1234", found["transaction.abort.timed.out.transaction.cleanup.interval.ms"])
	require.Equal(t, "2000", found["group.min.session.timeout.ms"])

	testFrozenBroker(t, s)
	for name, takeDown := range map[string]func(context.Context, int) error{"stopped": s.StopBroker, "killed": s.KillBroker} {
		t.Run(name, func(t *testing.T) {
			testRestartedBroker(t, s, name, func() error { return takeDown(withPatience(t), 1) })
		})
	}
}

func TestApacheKafkaLosesOneOfThreeBrokers(t *testing.T) {
	s := startApache(t, Options{Nodes: 3})
	require.Equal(t, []int{1, 2, 3}, s.Nodes())
	require.Len(t, s.Brokers, 3)
	client := newClient(t, s, kgo.DefaultProduceTopic("replicated"), kgo.TransactionalID("replicated"))
	createTopic(t, client, "replicated", 3)
	produceTransaction(t, client, "before")

	require.NoError(t, s.KillBroker(withPatience(t), 2))
	require.False(t, listens(s.Brokers[1]))
	began := time.Now()
	produceTransaction(t, client, "without one")
	t.Logf("a transaction took %v", time.Since(began).Round(time.Millisecond))
	began = time.Now()
	require.NoError(t, s.StartBroker(withPatience(t), 2))
	t.Logf("started again in %v", time.Since(began).Round(time.Millisecond))
	require.True(t, listens(s.Brokers[1]))
	require.Eventually(t, func() bool { return inSync(t, client, "replicated", 3) }, patience, 100*time.Millisecond)
	require.ElementsMatch(t, []string{"before", "without one"}, committed(t, s, "replicated", 2))
}

// inSync reports whether all replicas of all partitions are in sync.
func inSync(t *testing.T, client *kgo.Client, topic string, replicas int) bool {
	topics, err := kadm.NewClient(client).ListTopics(withPatience(t), topic)
	if err != nil {
		return false
	}
	for _, partition := range topics[topic].Partitions {
		if len(partition.ISR) != replicas {
			return false
		}
	}
	return true
}

func TestNumberOfBrokers(t *testing.T) {
	_, err := StartKafka(t.Context(), Options{Kafka: Apache, Nodes: 2})
	require.ErrorContains(t, err, "only with 1 or 3")
}

func TestNothingOutlivesAKilledProgramWhoseApacheKafkaIs(t *testing.T) {
	needApache(t)
	for _, state := range []string{"frozen", "starting"} {
		t.Run(state, func(t *testing.T) { testNothingOutlives(t, state, Apache) })
	}
}

// Services that compose/local runs are ours to stop where the environment names
// their state folder, and go on when we end.
func TestServicesOfComposeLocal(t *testing.T) {
	needApache(t)
	dir := tempFolder(t)
	i := installation{filepath.Join(dir, "it's a state")}
	_, err := i.run(t.Context(), "up")
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := i.run(context.Background(), "down")
		require.NoError(t, err)
		require.True(t, isEmpty(dir))
	})
	// What env prints is read by a shell, as its users do.
	for _, variable := range []string{"KAFKA_BROKERS", "DATABASE_URL", stateVariable} {
		env, err := i.run(t.Context(), "env")
		require.NoError(t, err)
		value, err := exec.Command("bash", "-c", env+"\nprintf %s \"$"+variable+"\"").Output()
		require.NoError(t, err)
		t.Setenv(variable, string(value))
	}
	require.Equal(t, i.state, os.Getenv(stateVariable))

	s := startAll(t, Options{Brokers: []string{os.Getenv("KAFKA_BROKERS")}, DatabaseURL: os.Getenv("DATABASE_URL")})
	require.Equal(t, []int{1}, s.Nodes())
	testFrozenBroker(t, s)
	testRestartedBroker(t, s, "given", func() error { return s.KillBroker(withPatience(t), 1) })
	testRestartedPostgres(t, s)

	_, err = i.run(t.Context(), "up", "--config", "num.io.threads=3")
	require.ErrorContains(t, err, "brokers with other settings are up already")
	_, err = i.run(t.Context(), "start", "4")
	require.ErrorContains(t, err, "there is no Kafka broker 4")
}
