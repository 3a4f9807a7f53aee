package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/sandbox"
)

// serviceFlags say which services to use: started ones or given ones.
type serviceFlags struct {
	kafka       string
	brokers     []string
	databaseURL string
}

func (s *serviceFlags) flags(f *pflag.FlagSet) {
	f.StringVar(&s.kafka, "kafka", sandbox.Embedded, "which Kafka to start: embedded, or apache (needs Java 17 and Maven)")
	cli.BrokersFlag(f, &s.brokers, "your Kafka, host:port with commas between (default $KAFKA_BROKERS; none: start one)")
	f.StringVar(&s.databaseURL, "database-url", "", "your Postgres (default $DATABASE_URL; none: start one)")
}

func (s *serviceFlags) validate() error {
	if s.kafka != sandbox.Embedded && s.kafka != sandbox.Apache {
		return fmt.Errorf("--kafka is %q, must be %s or %s", s.kafka, sandbox.Embedded, sandbox.Apache)
	}
	return nil
}

// start starts what is not given. The options say the rest.
func (s *serviceFlags) start(ctx context.Context, o sandbox.Options) (*sandbox.Services, error) {
	o.Kafka, o.Brokers, o.DatabaseURL = s.kafka, s.brokers, s.databaseURL
	if o.DatabaseURL == "" {
		o.DatabaseURL = os.Getenv("DATABASE_URL")
	}
	return sandbox.Start(ctx, o)
}

// keepIn makes the folder in which results are kept, runs/<time> where none is named, and
// makes sure that something can be written there: not at the end of a long run.
func keepIn(out string, started time.Time) (string, error) {
	if out == "" {
		out = filepath.Join("runs", started.Format("2006-01-02T15-04-05"))
	}
	err := os.MkdirAll(out, 0o755)
	if err == nil {
		var probe *os.File
		if probe, err = os.CreateTemp(out, "writable-"); err == nil {
			_ = probe.Close()
			err = os.Remove(probe.Name())
		}
	}
	if err != nil {
		return "", cli.Usage(fmt.Errorf("--out: %w; name a folder that can be written", err))
	}
	return out, nil
}
