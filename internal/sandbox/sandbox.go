// Package sandbox starts the services that a run needs, an Apache Kafka or a
// stand-in for it, a PostgreSQL and a Redis, or checks the ones it is given.
//
// What it starts lives in child processes and in folders for temporary files,
// listens on 127.0.0.1 only, and is gone when the program ends, even by kill -9
// (see package process). A program that starts a sandbox must call process.Init
// first thing in main.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/delivered-twice/delivered-twice/internal/endpoint"
)

// The values of [Options].Kafka.
const (
	// Embedded is kfake, the broker that franz-go tests itself with, in a process
	// of its own and over real TCP. It needs nothing installed. Its own sudden
	// death proves nothing about Kafka: it may forget what it acknowledged.
	Embedded = "embedded"
	// Apache is a real Apache Kafka of one or three brokers, run by compose/local.
	// It needs Java 17 and, the first time, Maven and the network.
	Apache = "apache"
)

// Options says what to start and what is given. The zero value starts the
// embedded Kafka and a throwaway PostgreSQL.
type Options struct {
	// Kafka is what to start, [Embedded] or [Apache]; empty means Embedded. It is
	// ignored when Brokers is set.
	Kafka string
	// Brokers are the seed addresses (host:port) of a Kafka of yours.
	Brokers []string
	// DatabaseURL is the address of a PostgreSQL of yours, in any form that
	// libpq understands (PostgreSQL manual, section 34.1.1).
	DatabaseURL string
	// RedisURL is the address of a Redis of yours: redis://user:password@host:port/0,
	// or rediss:// with TLS.
	RedisURL string
	// Nodes is how many Apache Kafka brokers to start, 1 or 3; 0 means 1. The
	// embedded Kafka is always one.
	Nodes int
	// Dir is the folder for the services' logs, made if missing. Empty discards them.
	Dir string
	// BrokerConfigs are settings for the brokers that are started, by Kafka's names.
	BrokerConfigs map[string]string
}

// Services are the addresses to use, and whatever was started to serve them.
type Services struct {
	// Brokers are Kafka's seed addresses, host:port.
	Brokers []string
	// DatabaseURL contains the password. Show [endpoint.Redact] of it instead.
	DatabaseURL string
	// KafkaVersion names the broker and its version: "kfake v0.0.0-…",
	// "Apache Kafka 4.4.0", or, for a given address, what its API versions suggest:
	// "Kafka v4.4 (guessed from its API versions)".
	KafkaVersion string
	// PostgresVersion is the server_version that PostgreSQL reports: "15.18 (…)".
	PostgresVersion string
	// RedisURL may contain a password.
	RedisURL string

	started  []*child
	endRedis func()

	// How the services are controlled, or why they are not.
	brokers         map[int]broker
	kafkaRefusal    error
	database        server
	postgresRefusal error
}

// Start starts the services that are not given, all at the same time, and checks that given ones answer. When it returns without an error, all
// of them answer; with one, or when ctx ends before that, it has stopped what it
// started. ctx has no meaning after Start returned.
//
// Errors are one line that names the service, its address if it was given, and
// what to do, and never a password. A given service that cannot be reached is an
// error within 15 seconds.
func Start(ctx context.Context, o Options) (*Services, error) {
	var kafka, postgres, redis *Services
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		kafka, err = StartKafka(ctx, o)
		return err
	})
	group.Go(func() (err error) {
		postgres, err = StartPostgres(ctx, o)
		return err
	})
	group.Go(func() (err error) {
		redis, err = StartRedis(ctx, o)
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, errors.Join(err, kafka.Close(), postgres.Close(), redis.Close())
	}
	return &Services{
		Brokers:         kafka.Brokers,
		KafkaVersion:    kafka.KafkaVersion,
		DatabaseURL:     postgres.DatabaseURL,
		PostgresVersion: postgres.PostgresVersion,
		RedisURL:        redis.RedisURL,
		started:         append(kafka.started, postgres.started...),
		endRedis:        redis.endRedis,
		brokers:         kafka.brokers,
		kafkaRefusal:    kafka.kafkaRefusal,
		database:        postgres.database,
		postgresRefusal: postgres.postgresRefusal,
	}, nil
}

// StartKafka is [Start] for Kafka alone.
func StartKafka(ctx context.Context, o Options) (*Services, error) {
	if len(o.Brokers) > 0 {
		version, err := endpoint.Kafka(ctx, o.Brokers)
		if err != nil {
			return nil, err
		}
		s := &Services{Brokers: o.Brokers, KafkaVersion: version}
		s.controlGivenKafka()
		return s, nil
	}
	switch o.Kafka {
	case "", Embedded:
		return startEmbeddedKafka(ctx, o)
	case Apache:
		if o.Nodes != 0 && o.Nodes != 1 && o.Nodes != 3 {
			return nil, fmt.Errorf("no Apache Kafka can be started with %d brokers, only with 1 or 3", o.Nodes)
		}
		return startApacheKafka(ctx, o)
	default:
		return nil, fmt.Errorf("there is no Kafka %q: choose %s or %s, or give the addresses of your brokers", o.Kafka, Embedded, Apache)
	}
}

// startedKafka are the services of a child that runs Kafka.
func startedKafka(c *child, said announcement) *Services {
	s := &Services{
		Brokers:      strings.Split(said.Address, ","),
		KafkaVersion: said.Version,
		started:      []*child{c},
		brokers:      make(map[int]broker),
	}
	for _, node := range said.Nodes {
		s.brokers[node] = remoteServer{c.control, node}
	}
	return s
}

// StartPostgres is [Start] for PostgreSQL alone.
func StartPostgres(ctx context.Context, o Options) (*Services, error) {
	s := &Services{DatabaseURL: o.DatabaseURL}
	if o.DatabaseURL == "" {
		c, said, err := launchService(ctx, postgresRole, o.Dir)
		if err != nil {
			return nil, err
		}
		s.DatabaseURL, s.started = said.Address, []*child{c}
		s.database = remoteServer{c.control, postgresNode}
	}
	var err error
	if s.PostgresVersion, err = endpoint.Postgres(ctx, s.DatabaseURL); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if o.DatabaseURL != "" {
		s.controlGivenPostgres()
	}
	return s, nil
}

// Close stops what was started, waits until it is gone, and removes its data. It
// leaves given services alone. Calling it again, or on nil, does nothing.
func (s *Services) Close() error {
	if s == nil {
		return nil
	}
	errs := make([]error, len(s.started))
	var ended sync.WaitGroup
	for i, c := range s.started {
		ended.Go(func() { errs[i] = c.stop() })
	}
	ended.Wait()
	s.started = nil
	if s.endRedis != nil {
		s.endRedis()
		s.endRedis = nil
	}
	return errors.Join(errs...)
}
