package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"

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
	f.StringSliceVar(&s.brokers, "brokers", split(os.Getenv("KAFKA_BROKERS")), "your Kafka, host:port with commas between (default $KAFKA_BROKERS; none: start one)")
	f.StringVar(&s.databaseURL, "database-url", "", "your Postgres (default $DATABASE_URL; none: start one)")
}

func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
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
