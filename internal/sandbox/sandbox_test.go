package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/process"
)

func TestMain(m *testing.M) {
	process.Register("sandbox-user", sandboxUser)
	process.Register("sandbox-breaker", sandboxBreaker)
	process.Init()
	code := m.Run()
	if err := sharedServices.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// shared are services for the tests that only need some.
var (
	sharedServices *Services
	shared         = sync.OnceValues(func() (_ *Services, err error) {
		sharedServices, err = Start(context.Background(), Options{})
		return sharedServices, err
	})
)

// footprint is what a sandbox occupies while it runs.
type footprint struct {
	Pids  []int
	Ports []string
}

// sandboxUser starts a sandbox, tells what it occupies, and waits to be killed.
func sandboxUser([]string) int {
	s, err := Start(context.Background(), Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	f, err := occupied(s)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := json.NewEncoder(os.Stdout).Encode(f); err != nil {
		return 1
	}
	select {}
}

// occupied is the footprint of s, which must be the only one in the folder for
// temporary files.
func occupied(s *Services) (f footprint, err error) {
	u, err := url.Parse(s.DatabaseURL)
	if err != nil {
		return f, err
	}
	f.Ports = append([]string{u.Host}, s.Brokers...)
	for _, c := range s.started {
		f.Pids = append(f.Pids, c.cmd.Process.Pid)
	}
	servers, err := filepath.Glob(filepath.Join(os.TempDir(), "*", "data", "postmaster.pid"))
	if err != nil || len(servers) != 1 {
		return f, fmt.Errorf("PostgreSQL servers: %v %w", servers, err)
	}
	content, err := os.ReadFile(servers[0])
	if err != nil {
		return f, err
	}
	first, _, _ := strings.Cut(string(content), "\n")
	server, err := strconv.Atoi(first)
	f.Pids = append(f.Pids, server)
	return f, err
}

// tempFolder makes an empty folder the one for temporary files, for this process
// and its children, whoever they run as.
func tempFolder(t *testing.T) string {
	dir, err := os.MkdirTemp("", "sandbox-test-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o777|os.ModeSticky))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	t.Setenv("TMPDIR", dir)
	return dir
}

func isEmpty(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && len(entries) == 0
}

func listens(address string) bool {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

func TestStartAndClose(t *testing.T) {
	logs := filepath.Join(t.TempDir(), "logs")
	dir := tempFolder(t)
	began := time.Now()
	s, err := Start(t.Context(), Options{Dir: logs, BrokerConfigs: map[string]string{"message.max.bytes": "65536"}})
	require.NoError(t, err)
	t.Logf("started in %v", time.Since(began).Round(time.Millisecond))
	defer func() { require.NoError(t, s.Close()) }()
	require.False(t, isEmpty(dir))
	require.Contains(t, s.KafkaVersion, "kfake")

	t.Run("PostgreSQL", func(t *testing.T) {
		conn, err := pgx.Connect(t.Context(), s.DatabaseURL)
		require.NoError(t, err)
		defer func() { require.NoError(t, conn.Close(context.Background())) }()
		for setting, want := range map[string]string{
			"fsync":                   "on",
			"synchronous_commit":      "on",
			"track_commit_timestamp":  "on",
			"max_connections":         "500",
			"listen_addresses":        "127.0.0.1",
			"unix_socket_directories": "",
			"server_encoding":         "UTF8",
			"lc_messages":             "C",
			"server_version":          s.PostgresVersion,
		} {
			var got string
			require.NoError(t, conn.QueryRow(t.Context(), "SELECT current_setting($1)", setting).Scan(&got))
			require.Equal(t, want, got, setting)
		}
		var collation string
		require.NoError(t, conn.QueryRow(t.Context(), "SELECT datcollate FROM pg_database WHERE datname = current_database()").Scan(&collation))
		require.Equal(t, "C", collation)
	})

	t.Run("Kafka", func(t *testing.T) {
		client, err := kgo.NewClient(kgo.SeedBrokers(s.Brokers...), kgo.UnknownTopicRetries(0), kgo.AllowAutoTopicCreation())
		require.NoError(t, err)
		defer client.Close()
		err = client.ProduceSync(t.Context(), &kgo.Record{Topic: "never-created", Value: []byte("x")}).FirstErr()
		require.ErrorIs(t, err, kerr.UnknownTopicOrPartition, "topics must not create themselves")

		configs, err := kadm.NewClient(client).DescribeBrokerConfigs(t.Context(), 0)
		require.NoError(t, err)
		require.NotEmpty(t, configs)
		found := false
		for _, config := range configs[0].Configs {
			if config.Key == "message.max.bytes" {
				found = config.MaybeValue() == "65536"
			}
		}
		require.True(t, found, "message.max.bytes is not as given")
	})

	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	require.True(t, isEmpty(dir), "Close leaves something in the folder for temporary files")
	require.False(t, listens(s.Brokers[0]))
	require.FileExists(t, filepath.Join(logs, "kfake.log"))
	log, err := os.ReadFile(filepath.Join(logs, "postgres-cluster.log"))
	require.NoError(t, err)
	require.Contains(t, string(log), "ready to accept connections")
	password := passwordOf(t, s.DatabaseURL)
	require.NotContains(t, string(log), password)
}

func passwordOf(t *testing.T, databaseURL string) string {
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	password, ok := u.User.Password()
	require.True(t, ok)
	return password
}

// The program that started a sandbox is killed with SIGKILL: no process, no
// folder and no listening port is left.
func TestNothingOutlivesAKilledProgram(t *testing.T) {
	dir := tempFolder(t)
	cmd := process.Command("sandbox-user")
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var f footprint
	require.NoError(t, json.NewDecoder(stdout).Decode(&f))
	require.Len(t, f.Pids, 3)
	for _, pid := range f.Pids {
		require.NoError(t, syscall.Kill(pid, 0))
	}
	for _, port := range f.Ports {
		require.True(t, listens(port))
	}

	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	require.Eventually(t, func() bool {
		for _, pid := range f.Pids {
			if syscall.Kill(pid, 0) == nil {
				return false
			}
		}
		return isEmpty(dir)
	}, 20*time.Second, 50*time.Millisecond)
	for _, port := range f.Ports {
		require.False(t, listens(port))
	}
}

// The program is killed while the services are still starting.
func TestNothingOutlivesAProgramKilledEarly(t *testing.T) {
	dir := tempFolder(t)
	cmd := process.Command("sandbox-user")
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool { return !isEmpty(dir) }, 20*time.Second, time.Millisecond)
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	require.Eventually(t, func() bool { return isEmpty(dir) }, 20*time.Second, 50*time.Millisecond)
}

func TestStartCanBeInterrupted(t *testing.T) {
	dir := tempFolder(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		_, err := Start(ctx, Options{})
		failed <- err
	}()
	require.Eventually(t, func() bool { return !isEmpty(dir) }, 20*time.Second, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-failed, context.Canceled)
	require.True(t, isEmpty(dir), "an interrupted Start leaves something behind")
}

func TestOneFailingServiceStopsTheOther(t *testing.T) {
	for _, test := range []struct {
		name    string
		options Options
		want    string
	}{
		{"Kafka is unreachable", Options{Brokers: []string{closedPort(t)}}, "no answer from Kafka"},
		{"PostgreSQL is unreachable", Options{DatabaseURL: "postgres://u:hidden@" + closedPort(t) + "/d"}, "no answer from PostgreSQL"},
		{"there is no such Kafka", Options{Kafka: "franz"}, `there is no Kafka "franz"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := tempFolder(t)
			_, err := Start(t.Context(), test.options)
			require.ErrorContains(t, err, test.want)
			require.NotContains(t, err.Error(), "\n")
			require.True(t, isEmpty(dir), "the other service leaves something behind")
		})
	}
}

func TestApacheKafkaNeedsJava(t *testing.T) {
	dir := tempFolder(t)
	t.Setenv("JAVA_HOME", filepath.Join(dir, "nowhere"))
	_, err := StartKafka(t.Context(), Options{Kafka: Apache})
	require.ErrorContains(t, err, "needs Java 17 or newer")
	require.NotContains(t, err.Error(), "\n")
	require.True(t, isEmpty(dir))
}

// closedPort is an address that refuses connections.
func closedPort(t *testing.T) string {
	port, err := freePort()
	require.NoError(t, err)
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}
