// Package sandbox starts the services that a run needs, an Apache Kafka or a
// stand-in for it and a PostgreSQL, or checks the ones it is given.
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
	// Apache is one real Apache Kafka broker, run by compose/local. It needs
	// Java 17 and, the first time, Maven and the network.
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
	// Dir is the folder for the services' logs, made if missing. Empty discards them.
	Dir string
	// BrokerConfigs are broker settings for the embedded Kafka, by Kafka's names.
	BrokerConfigs map[string]string
}

// Services are the addresses to use, and whatever was started to serve them.
type Services struct {
	// Brokers are Kafka's seed addresses, host:port.
	Brokers []string
	// DatabaseURL contains the password. Show [endpoint.Redact] of it instead.
	DatabaseURL string
	// RedisURL is the address of a Redis.
	RedisURL string
	// KafkaVersion names the broker and its version: "kfake v0.0.0-…",
	// "Apache Kafka 4.4.0", or, for a given address, what its API versions suggest:
	// "Kafka v4.4 (guessed from its API versions)".
	KafkaVersion string
	// PostgresVersion is the server_version that PostgreSQL reports: "15.18 (…)".
	PostgresVersion string

	started []*child
}

// Start starts the services that are not given, Kafka and PostgreSQL at the same
// time, and checks that given ones answer. When it returns without an error, all
// of them answer; with one, or when ctx ends before that, it has stopped what it
// started. ctx has no meaning after Start returned.
//
// Errors are one line that names the service, its address if it was given, and
// what to do, and never a password. A given service that cannot be reached is an
// error within 15 seconds.
func Start(ctx context.Context, o Options) (*Services, error) {
	var kafka, postgres *Services
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		kafka, err = StartKafka(ctx, o)
		return err
	})
	group.Go(func() (err error) {
		postgres, err = StartPostgres(ctx, o)
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, errors.Join(err, kafka.Close(), postgres.Close())
	}
	return &Services{
		Brokers:         kafka.Brokers,
		KafkaVersion:    kafka.KafkaVersion,
		DatabaseURL:     postgres.DatabaseURL,
		PostgresVersion: postgres.PostgresVersion,
		started:         append(kafka.started, postgres.started...),
	}, nil
}

// StartKafka is [Start] for Kafka alone.
func StartKafka(ctx context.Context, o Options) (*Services, error) {
	if len(o.Brokers) > 0 {
		version, err := endpoint.Kafka(ctx, o.Brokers)
		if err != nil {
			return nil, err
		}
		return &Services{Brokers: o.Brokers, KafkaVersion: version}, nil
	}
	switch o.Kafka {
	case "", Embedded:
		return startEmbeddedKafka(ctx, o)
	case Apache:
		return startApacheKafka(ctx, o)
	default:
		return nil, fmt.Errorf("there is no Kafka %q: choose %s or %s, or give the addresses of your brokers", o.Kafka, Embedded, Apache)
	}
}

// StartPostgres is [Start] for PostgreSQL alone.
func StartPostgres(ctx context.Context, o Options) (*Services, error) {
	s := &Services{DatabaseURL: o.DatabaseURL}
	if o.DatabaseURL == "" {
		c, said, err := launch(ctx, postgresRole, o.Dir, nil)
		if err != nil {
			return nil, err
		}
		s.DatabaseURL, s.started = said.Address, []*child{c}
	}
	var err error
	if s.PostgresVersion, err = endpoint.Postgres(ctx, s.DatabaseURL); err != nil {
		return nil, errors.Join(err, s.Close())
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
	return errors.Join(errs...)
}
