package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/process"
)

// patience bounds a step that has to wait for a service.
const patience = time.Minute

func withPatience(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func startAll(t *testing.T, o Options) *Services {
	s, err := Start(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func newClient(t *testing.T, s *Services, opts ...kgo.Opt) *kgo.Client {
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(s.Brokers...)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

func createTopic(t *testing.T, client *kgo.Client, topic string, partitions int32) {
	_, err := kadm.NewClient(client).CreateTopic(withPatience(t), partitions, -1, nil, topic)
	require.NoError(t, err)
}

// produceTransaction produces one record in a transaction.
func produceTransaction(t *testing.T, client *kgo.Client, value string) {
	require.NoError(t, client.BeginTransaction())
	require.NoError(t, client.ProduceSync(withPatience(t), kgo.StringRecord(value)).FirstErr())
	require.NoError(t, client.EndTransaction(withPatience(t), kgo.TryCommit))
}

// committed are the values of the records that a read_committed reader gets.
func committed(t *testing.T, s *Services, topic string, n int) (values []string) {
	client := newClient(t, s, kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	ctx := withPatience(t)
	for len(values) < n {
		fetches := client.PollFetches(ctx)
		require.NoError(t, ctx.Err(), "got %q", values)
		fetches.EachRecord(func(r *kgo.Record) { values = append(values, string(r.Value)) })
	}
	return values
}

// testRestartedBroker checks that what a broker knew before it was taken down and
// started again is still known, under the same address, to the same clients.
func testRestartedBroker(t *testing.T, s *Services, topic string, takeDown func() error) {
	require.NoError(t, s.KafkaControl())
	node := s.Nodes()[0]
	client := newClient(t, s, kgo.DefaultProduceTopic(topic), kgo.TransactionalID(topic))
	admin := kadm.NewClient(client)
	createTopic(t, client, topic, 2)
	produceTransaction(t, client, "before")
	offsets := kadm.Offsets{}
	offsets.AddOffset(topic, 1, 42, -1)
	_, err := admin.CommitOffsets(withPatience(t), "group", offsets)
	require.NoError(t, err)

	require.NoError(t, takeDown())
	require.False(t, listens(s.Brokers[0]))
	began := time.Now()
	require.NoError(t, s.StartBroker(withPatience(t), node))
	t.Logf("started again in %v", time.Since(began).Round(time.Millisecond))
	require.NoError(t, s.StartBroker(withPatience(t), node), "starting what runs")

	topics, err := admin.ListTopics(withPatience(t), topic)
	require.NoError(t, err)
	require.Len(t, topics[topic].Partitions, 2)
	fetched, err := admin.FetchOffsets(withPatience(t), "group")
	require.NoError(t, err)
	offset, ok := fetched.Lookup(topic, 1)
	require.True(t, ok)
	require.Equal(t, int64(42), offset.At)
	produceTransaction(t, client, "after")
	require.ElementsMatch(t, []string{"before", "after"}, committed(t, s, topic, 2))
}

func TestEmbeddedKafkaIsStoppedAndStarted(t *testing.T) {
	s, err := StartKafka(t.Context(), Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.Len(t, s.Nodes(), 1)
	testRestartedBroker(t, s, "restarted", func() error {
		if err := s.StopBroker(withPatience(t), s.Nodes()[0]); err != nil {
			return err
		}
		return s.StopBroker(withPatience(t), s.Nodes()[0]) // what is down already
	})
	require.ErrorContains(t, s.KillBroker(t.Context(), s.Nodes()[0]), "proves nothing about Kafka")
	require.ErrorContains(t, s.StopBroker(t.Context(), 7), "there is no such broker")
	require.ErrorContains(t, s.PostgresControl(), "no PostgreSQL")
}

// testFrozenBroker checks that a frozen broker does not answer, and does once it is
// thawed.
func testFrozenBroker(t *testing.T, s *Services) {
	node := s.Nodes()[0]
	client := newClient(t, s)
	require.NoError(t, client.Ping(withPatience(t)))
	require.NoError(t, s.FreezeBroker(node))
	answered := make(chan error, 1)
	go func() { answered <- client.Ping(withPatience(t)) }()
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	require.ErrorIs(t, client.Ping(short), context.DeadlineExceeded)
	require.Empty(t, answered)
	require.NoError(t, s.ThawBroker(node))
	require.NoError(t, <-answered)
	require.NoError(t, s.ThawBroker(node), "thawing what is not frozen")
}

func TestEmbeddedKafkaIsFrozen(t *testing.T) {
	s, err := StartKafka(t.Context(), Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	testFrozenBroker(t, s)
	require.NoError(t, s.StopBroker(withPatience(t), s.Nodes()[0]))
	require.ErrorContains(t, s.FreezeBroker(s.Nodes()[0]), "not running")
	require.NoError(t, s.ThawBroker(s.Nodes()[0]))
}

func connect(t *testing.T, s *Services) *pgx.Conn {
	conn, err := pgx.Connect(withPatience(t), s.DatabaseURL)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func execute(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	_, err := conn.Exec(withPatience(t), sql, args...)
	require.NoError(t, err)
}

func count(t *testing.T, s *Services, query string) (n int) {
	require.NoError(t, connect(t, s).QueryRow(withPatience(t), query).Scan(&n))
	return n
}

// testRestartedPostgres checks what is left of a PostgreSQL that was shut down, and
// of one that was killed.
func testRestartedPostgres(t *testing.T, s *Services) {
	require.NoError(t, s.PostgresControl())
	u, err := url.Parse(s.DatabaseURL)
	require.NoError(t, err)
	for name, test := range map[string]struct {
		takeDown func(context.Context) error
		kept     int
	}{
		"stopped": {s.StopPostgres, 2},
		"killed":  {s.KillPostgres, 1},
	} {
		t.Run(name, func(t *testing.T) {
			conn := connect(t, s)
			execute(t, conn, "DROP TABLE IF EXISTS acknowledged; CREATE TABLE acknowledged (how text)")
			open := connect(t, s)
			execute(t, open, "BEGIN; INSERT INTO acknowledged VALUES ('never')")
			execute(t, conn, "INSERT INTO acknowledged VALUES ('synchronously')")
			if name == "killed" { // and nothing has flushed the last commit before that
				var walWriter int
				require.NoError(t, conn.QueryRow(t.Context(), "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'").Scan(&walWriter))
				require.NoError(t, syscall.Kill(walWriter, syscall.SIGSTOP))
			}
			execute(t, conn, "SET synchronous_commit = off")
			execute(t, conn, "INSERT INTO acknowledged VALUES ('asynchronously')")

			require.NoError(t, test.takeDown(withPatience(t)))
			require.False(t, listens(u.Host))
			require.NoError(t, test.takeDown(withPatience(t)), "taking down what is down")
			require.Error(t, conn.Ping(withPatience(t)))
			began := time.Now()
			require.NoError(t, s.StartPostgres(withPatience(t)))
			t.Logf("started again in %v", time.Since(began).Round(time.Millisecond))
			require.NoError(t, s.StartPostgres(withPatience(t)), "starting what runs")
			require.Equal(t, test.kept, count(t, s, "SELECT count(*) FROM acknowledged"))
			require.Equal(t, 1, count(t, s, "SELECT count(*) FROM acknowledged WHERE how = 'synchronously'"))
		})
	}
}

func TestThrowawayPostgresIsRestarted(t *testing.T) {
	s, err := StartPostgres(t.Context(), Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.ErrorContains(t, s.KafkaControl(), "no Kafka")
	require.Empty(t, s.Nodes())
	testRestartedPostgres(t, s)
}

func TestKillSparesNoProcessOfTheServer(t *testing.T) {
	s, err := StartPostgres(t.Context(), Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	conn := connect(t, s)
	rows, err := conn.Query(t.Context(), "SELECT pid FROM pg_stat_activity")
	require.NoError(t, err)
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	require.NoError(t, err)
	require.Greater(t, len(pids), 4)
	require.NoError(t, s.KillPostgres(withPatience(t)))
	for _, pid := range pids {
		require.True(t, processGone(pid), "process %d is left", pid)
	}
}

// processGone reports whether a process has ended, even if nobody collected it yet.
func processGone(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return true
	}
	state, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return err != nil || strings.HasPrefix(string(state), "Z")
}

func TestGivenServicesAreNotControlled(t *testing.T) {
	theirs, err := shared()
	require.NoError(t, err)
	s := startAll(t, Options{Brokers: theirs.Brokers, DatabaseURL: theirs.DatabaseURL})
	require.Empty(t, s.Nodes())
	for name, err := range map[string]error{
		"KafkaControl":    s.KafkaControl(),
		"StopBroker":      s.StopBroker(t.Context(), 0),
		"KillBroker":      s.KillBroker(t.Context(), 0),
		"StartBroker":     s.StartBroker(t.Context(), 0),
		"FreezeBroker":    s.FreezeBroker(0),
		"ThawBroker":      s.ThawBroker(0),
		"PostgresControl": s.PostgresControl(),
		"StopPostgres":    s.StopPostgres(t.Context()),
		"KillPostgres":    s.KillPostgres(t.Context()),
		"StartPostgres":   s.StartPostgres(t.Context()),
	} {
		require.ErrorContains(t, err, "was given by address", name)
		require.NotContains(t, err.Error(), passwordOf(t, theirs.DatabaseURL))
	}
	require.ErrorContains(t, s.KafkaControl(), theirs.Brokers[0])
	require.Equal(t, 1, count(t, theirs, "SELECT 1"))
}

// A state folder of compose/local makes only those services ours that run there.
func TestGivenServicesOfAnotherInstallationAreNotControlled(t *testing.T) {
	theirs, err := shared()
	require.NoError(t, err)
	state := t.TempDir()
	for file, content := range map[string]string{"kafka/bootstrap": "127.0.0.1:1\n", "postgres/port": "1\n"} {
		require.NoError(t, os.MkdirAll(filepath.Join(state, filepath.Dir(file)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(state, file), []byte(content), 0o600))
	}
	t.Setenv(stateVariable, state)
	s := startAll(t, Options{Brokers: theirs.Brokers, DatabaseURL: theirs.DatabaseURL})
	require.ErrorContains(t, s.KafkaControl(), "was given by address")
	require.ErrorContains(t, s.PostgresControl(), "was given by address")
}

// sandboxBreaker starts a sandbox, does to it what its argument says, tells what
// it occupies, and waits to be killed.
func sandboxBreaker(args []string) int {
	s, err := Start(context.Background(), Options{Kafka: args[1]})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	f, err := occupied(s)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx, node := context.Background(), s.Nodes()[0]
	switch args[0] {
	case "frozen":
		err = s.FreezeBroker(node)
	case "stopped":
		err = s.StopBroker(ctx, node)
		if err == nil {
			err = s.StopPostgres(ctx)
		}
	case "killed":
		err = s.KillPostgres(ctx)
	case "starting":
		if err = s.StopBroker(ctx, node); err != nil {
			break
		}
		if err = s.KillPostgres(ctx); err != nil {
			break
		}
		go func() { _ = s.StartBroker(ctx, node) }()
		go func() { _ = s.StartPostgres(ctx) }()
		time.Sleep(50 * time.Millisecond) // to be killed somewhere in the middle of it
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := json.NewEncoder(os.Stdout).Encode(f); err != nil {
		return 1
	}
	select {}
}

// testNothingOutlives kills a program whose services are in the given state.
func testNothingOutlives(t *testing.T, state, kafka string) {
	dir := tempFolder(t)
	cmd := process.Command("sandbox-breaker", state, kafka)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var f footprint
	require.NoError(t, json.NewDecoder(stdout).Decode(&f))
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	require.Eventually(t, func() bool {
		for _, pid := range f.Pids {
			if !processGone(pid) {
				return false
			}
		}
		return isEmpty(dir)
	}, 30*time.Second, interval)
	for _, port := range f.Ports {
		require.False(t, listens(port))
	}
	out, err := exec.Command("ps", "-A", "-ww", "-o", "args=").Output()
	require.NoError(t, err)
	require.NotContains(t, string(out), dir, "a process that works there is left")
}

func TestNothingOutlivesAKilledProgramWhoseServicesAre(t *testing.T) {
	for _, state := range []string{"frozen", "stopped", "killed", "starting"} {
		t.Run(state, func(t *testing.T) { testNothingOutlives(t, state, Embedded) })
	}
}

// The process that runs a service is killed, and not the program: the service goes
// with it, and the program is told.
func TestNoServiceOutlivesItsKeeper(t *testing.T) {
	tempFolder(t)
	s, err := Start(t.Context(), Options{})
	require.NoError(t, err)
	f, err := occupied(s)
	require.NoError(t, err)
	for _, c := range s.started {
		require.NoError(t, c.cmd.Process.Kill())
	}
	require.Eventually(t, func() bool {
		for _, port := range f.Ports {
			if listens(port) {
				return false
			}
		}
		return true
	}, 20*time.Second, interval)
	require.ErrorContains(t, s.StopPostgres(t.Context()), "has ended")
	require.ErrorContains(t, s.StopBroker(t.Context(), s.Nodes()[0]), "has ended")
	require.Error(t, s.Close())
}
