package sandbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/delivered-twice/delivered-twice/compose"
	"github.com/delivered-twice/delivered-twice/internal/endpoint"
)

// stateVariable names the state folder of compose/local, as `compose/local env`
// prints it. The services that run there are ours to stop.
const stateVariable = "DELIVERED_TWICE_STATE"

// ours is the installation that the environment names, if any.
func ours() (installation, bool) {
	state := os.Getenv(stateVariable)
	if state == "" {
		return installation{}, false
	}
	if physical, err := filepath.EvalSymlinks(state); err == nil {
		state = physical // command lines name files by this path
	}
	return installation{state}, true
}

// controlGivenKafka fills in how to control the brokers at given addresses, if
// they are ours.
func (s *Services) controlGivenKafka() {
	i, ok := ours()
	if ok {
		bootstrap, err := i.bootstrap()
		ok = err == nil && !slices.ContainsFunc(s.Brokers, func(address string) bool { return !slices.Contains(bootstrap, address) })
	}
	if !ok {
		s.kafkaRefusal = fmt.Errorf("the Kafka at %s was given by address and is none that compose/local runs: it is not ours to stop; "+
			`give none, or start one with compose/local up and run eval "$(compose/local env)"`, strings.Join(s.Brokers, ","))
		return
	}
	s.brokers = i.brokers()
	s.KafkaVersion = "Apache Kafka " + compose.KafkaVersion() // no need to guess
}

// controlGivenPostgres is controlGivenKafka for PostgreSQL.
func (s *Services) controlGivenPostgres() {
	i, ok := ours()
	if ok {
		config, err := pgx.ParseConfig(s.DatabaseURL)
		port, portErr := i.read("postgres", "port")
		ok = err == nil && portErr == nil && config.Host == "127.0.0.1" && strconv.Itoa(int(config.Port)) == port
	}
	if !ok {
		s.postgresRefusal = fmt.Errorf("the PostgreSQL at %s was given by address and is none that compose/local runs: it is not ours to stop; "+
			`give none, or start one with compose/local up and run eval "$(compose/local env)"`, endpoint.Redact(s.DatabaseURL))
		return
	}
	s.database = installedPostgres{i, s.DatabaseURL}
}

// KafkaControl returns nil if the brokers are ours to stop, kill and freeze:
// those that were started here, and those of compose/local whose state folder
// DELIVERED_TWICE_STATE names. Else its error says why they are not.
func (s *Services) KafkaControl() error {
	if len(s.brokers) == 0 && s.kafkaRefusal == nil {
		return errors.New("there is no Kafka here")
	}
	return s.kafkaRefusal
}

// PostgresControl is [Services.KafkaControl] for PostgreSQL.
func (s *Services) PostgresControl() error {
	if s.database == nil && s.postgresRefusal == nil {
		return errors.New("there is no PostgreSQL here")
	}
	return s.postgresRefusal
}

// Nodes are the ids of the brokers that can be controlled, in order: one for the
// embedded Kafka, one or three for Apache Kafka, none for a Kafka that is not ours.
func (s *Services) Nodes() []int { return slices.Sorted(maps.Keys(s.brokers)) }

// StopBroker stops a broker in order, as SIGTERM does, and returns when its process
// has ended. A broker that is down stays so. A frozen one does not stop until it is
// thawed. When ctx ends first, StopBroker returns an error and the broker may still
// be stopping: a cluster that has lost its quorum lets none of the rest go.
func (s *Services) StopBroker(ctx context.Context, node int) error {
	return s.withBroker("stop", node, func(b broker) error { return b.stop(ctx) })
}

// KillBroker sends a broker SIGKILL, frozen or not, and returns when it is gone.
// On the embedded Kafka it is an error: that one loses what it has acknowledged,
// so its sudden death would prove nothing about Kafka.
func (s *Services) KillBroker(ctx context.Context, node int) error {
	return s.withBroker("kill", node, func(b broker) error { return b.kill(ctx) })
}

// StartBroker starts a broker that is down, on the same address and with its data,
// and returns when it answers requests and takes part in its cluster. Its
// partitions may have their leaders elected a moment later. One that runs is left
// alone, and waited for.
func (s *Services) StartBroker(ctx context.Context, node int) error {
	return s.withBroker("start", node, func(b broker) error { return b.start(ctx) })
}

// FreezeBroker holds a broker still (SIGSTOP): connections to it stay open, and
// nothing is answered. It is an error if the broker is down.
func (s *Services) FreezeBroker(node int) error {
	return s.withBroker("freeze", node, broker.freeze)
}

// ThawBroker lets a frozen broker go on (SIGCONT), and does nothing to any other.
func (s *Services) ThawBroker(node int) error {
	return s.withBroker("thaw", node, broker.thaw)
}

func (s *Services) withBroker(verb string, node int, do func(broker) error) error {
	err := s.KafkaControl()
	if err == nil {
		if b, ok := s.brokers[node]; ok {
			err = do(b)
		} else {
			err = fmt.Errorf("there is no such broker; there are %v", s.Nodes())
		}
	}
	if err != nil {
		return fmt.Errorf("%s Kafka broker %d: %w", verb, node, err)
	}
	return nil
}

// StopPostgres shuts PostgreSQL down fast (PostgreSQL manual, section 19.5):
// sessions are ended, their transactions rolled back, and all that was committed is
// on disk, whatever synchronous_commit was. It returns when the server has ended.
// One that is down stays so.
func (s *Services) StopPostgres(ctx context.Context) error {
	return s.withDatabase("stop", func(d server) error { return d.stop(ctx) })
}

// FreezeWALWriter holds still (SIGSTOP) the process that puts the WAL of asynchronous
// commits on disk, within three times wal_writer_delay (PostgreSQL manual, "Asynchronous
// Commit"): commits that follow are lost for certain when [Services.KillPostgres] does,
// unless something else puts them there. It stands still until then.
func (s *Services) FreezeWALWriter(ctx context.Context) error {
	if err := s.PostgresControl(); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, s.DatabaseURL)
	if err != nil {
		return fmt.Errorf("look for the WAL writer: %w", err)
	}
	defer conn.Close(ctx)
	var pid int
	if err := conn.QueryRow(ctx, `SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'`).Scan(&pid); err != nil {
		return fmt.Errorf("look for the WAL writer: %w", err)
	}
	// It may be caught in the middle of a write, with a lock that everybody needs who
	// wants WAL on disk. Then it is let go and caught again.
	for {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			return fmt.Errorf("hold the WAL writer still, process %d: %w", pid, err)
		}
		flushed := make(chan error, 1)
		go func() {
			// Its transaction has an id, so its commit waits for the flush.
			_, err := conn.Exec(ctx, `SET synchronous_commit = on; SELECT pg_current_xact_id()`)
			flushed <- err
		}()
		select {
		case err := <-flushed:
			return err
		case <-time.After(flushPatience):
		}
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			return fmt.Errorf("let the WAL writer go on, process %d: %w", pid, err)
		}
		if err := <-flushed; err != nil {
			return err
		}
	}
}

// flushPatience is how long a flush of WAL takes at most that nobody holds up.
const flushPatience = time.Second

// KillPostgres sends SIGKILL to all processes of the server, so that none writes
// anything on account of another's death, and returns when all are gone. Commits
// that were acknowledged before their WAL was flushed (synchronous_commit = off)
// are lost, as in a crash of the server.
func (s *Services) KillPostgres(ctx context.Context) error {
	return s.withDatabase("kill", func(d server) error { return d.kill(ctx) })
}

// StartPostgres starts a PostgreSQL that is down, on the same address and with its
// data and password, and returns when it accepts connections: after a kill, when it
// has recovered. One that runs is left alone, and waited for.
func (s *Services) StartPostgres(ctx context.Context) error {
	return s.withDatabase("start", func(d server) error { return d.start(ctx) })
}

func (s *Services) withDatabase(verb string, do func(server) error) error {
	err := s.PostgresControl()
	if err == nil {
		err = do(s.database)
	}
	if err != nil {
		return fmt.Errorf("%s PostgreSQL: %w", verb, err)
	}
	return nil
}
