// Package sandboxtest gives tests real services: those that KAFKA_BROKERS and
// DATABASE_URL name, else an embedded Kafka and a throwaway PostgreSQL, started
// when the first test asks for them and shared by all tests of the test binary.
// Tests keep apart by names: a topic, a group, a schema of their own.
//
// A test binary that uses it needs
//
//	func TestMain(m *testing.M) { sandboxtest.Main(m) }
package sandboxtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/process"
	"github.com/delivered-twice/delivered-twice/internal/sandbox"
)

const (
	startTimeout = 2 * time.Minute // a first start may download PostgreSQL
	stepTimeout  = 30 * time.Second
)

// Main is the body of TestMain. It becomes the role that the process was started
// as, if any (roles of the test's own must be registered before), else runs the
// tests, stops what they started, and exits.
func Main(m *testing.M) {
	process.Init()
	code := m.Run()
	if err := stopAll(); err != nil {
		fmt.Fprintln(os.Stderr, "sandboxtest:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

var (
	started struct {
		sync.Mutex
		services []*sandbox.Services
	}
	kafka = sync.OnceValues(func() (*sandbox.Services, error) {
		var brokers []string
		if given := os.Getenv("KAFKA_BROKERS"); given != "" {
			brokers = strings.Split(given, ",")
		}
		return start(sandbox.StartKafka, sandbox.Options{Brokers: brokers})
	})
	postgres = sync.OnceValues(func() (*sandbox.Services, error) {
		return start(sandbox.StartPostgres, sandbox.Options{DatabaseURL: os.Getenv("DATABASE_URL")})
	})
)

func start(startServices func(context.Context, sandbox.Options) (*sandbox.Services, error), o sandbox.Options) (*sandbox.Services, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	services, err := startServices(ctx, o)
	if err != nil {
		return nil, err
	}
	started.Lock()
	defer started.Unlock()
	started.services = append(started.services, services)
	return services, nil
}

func stopAll() error {
	started.Lock()
	defer started.Unlock()
	var errs []error
	for _, services := range started.services {
		errs = append(errs, services.Close())
	}
	return errors.Join(errs...)
}

// Brokers returns the seed addresses of the tests' Kafka.
func Brokers(t testing.TB) []string {
	t.Helper()
	services, err := kafka()
	require.NoError(t, err)
	return services.Brokers
}

// Versions returns what the tests' Kafka and PostgreSQL say they are, as
// [sandbox.Services] tells it.
func Versions(t testing.TB) (kafkaVersion, postgresVersion string) {
	t.Helper()
	k, err := kafka()
	require.NoError(t, err)
	p, err := postgres()
	require.NoError(t, err)
	return k.KafkaVersion, p.PostgresVersion
}

// Client returns a client of the tests' Kafka with the given options, which is
// closed when the test ends.
func Client(t testing.TB, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(Brokers(t)...)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

// Topic creates a topic with the broker's default replication factor, waits until
// all its partitions have leaders, and deletes it when the test ends. The configs
// are topic settings by Kafka's names; a later map overrides an earlier one.
func Topic(t testing.TB, partitions int32, configs ...map[string]string) string {
	t.Helper()
	settings := make(map[string]*string)
	for _, config := range configs {
		for name, value := range config {
			settings[name] = &value
		}
	}
	admin := kadm.NewClient(Client(t))
	ctx, cancel := context.WithTimeout(t.Context(), stepTimeout)
	defer cancel()

	topic := Name(t)
	_, err := admin.CreateTopic(ctx, partitions, -1, settings, topic)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
		defer cancel()
		_, err := admin.DeleteTopic(ctx, topic)
		if !errors.Is(err, kerr.UnknownTopicOrPartition) { // a test may delete it itself
			require.NoError(t, err)
		}
	})
	require.Eventually(t, func() bool {
		topics, err := admin.ListTopics(ctx, topic)
		return err == nil && led(topics[topic], partitions)
	}, stepTimeout, 20*time.Millisecond, "topic %s has no leader for some partition", topic)
	return topic
}

func led(topic kadm.TopicDetail, partitions int32) bool {
	if topic.Err != nil || len(topic.Partitions) != int(partitions) {
		return false
	}
	for _, partition := range topic.Partitions {
		if partition.Err != nil || partition.Leader < 0 {
			return false
		}
	}
	return true
}

// Database returns the address of a schema of the test's own in the tests'
// PostgreSQL: a connection to it finds and creates its tables there, as search_path
// is set to nothing else. The schema is dropped with all it contains when the test
// ends, so close connections that hold locks on it before (a Cleanup that is
// registered after the call of Database runs earlier).
func Database(t testing.TB) string {
	t.Helper()
	services, err := postgres()
	require.NoError(t, err)
	schema := Name(t)
	execute(t, services.DatabaseURL, "CREATE SCHEMA "+pgx.Identifier{schema}.Sanitize())
	t.Cleanup(func() {
		execute(t, services.DatabaseURL, "DROP SCHEMA "+pgx.Identifier{schema}.Sanitize()+" CASCADE")
	})
	return withSearchPath(t, services.DatabaseURL, schema)
}

func execute(t testing.TB, databaseURL, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, databaseURL)
	require.NoError(t, err)
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, sql)
	require.NoError(t, err)
}

// withSearchPath adds a run-time parameter to an address in either form, URL or
// key=value.
func withSearchPath(t testing.TB, databaseURL, schema string) string {
	t.Helper()
	if !strings.Contains(databaseURL, "://") {
		return databaseURL + " search_path=" + schema
	}
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	query := u.Query()
	query.Set("search_path", schema)
	u.RawQuery = query.Encode()
	return u.String()
}

// maxName leaves room for what tests append to names; PostgreSQL cuts identifiers
// at 63 bytes (PostgreSQL manual, section 4.1.1).
const maxName = 40

// Name returns a name that no other call returns, recognizable by the test's: for
// topics, groups, transactional ids, schemas. It matches [a-z0-9_]+ and has at most
// 40 characters.
func Name(t testing.TB) string {
	plain := strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || '0' <= r && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToLower(t.Name()))
	unique := "_" + strings.ToLower(rand.Text()[:12]) // 60 random bits
	return plain[:min(len(plain), maxName-len(unique))] + unique
}
