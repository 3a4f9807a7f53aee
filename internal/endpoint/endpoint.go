// Package endpoint checks that Kafka and PostgreSQL are where an address says, and
// says in one line what is wrong if they are not. An address may hold a password;
// what this package says never does.
package endpoint

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// patience bounds the check of a given service.
	patience = 10 * time.Second
	// dialPatience bounds one connection attempt, so that an address that swallows
	// packets does not keep us from trying the next one.
	dialPatience = 3 * time.Second
)

// Kafka returns what the brokers' API versions tell of their version, such as
// "Kafka v4.4 (guessed from its API versions)". Each broker of the cluster must
// answer under the address that it advertises, within 10 seconds for all of them.
func Kafka(ctx context.Context, seeds []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	at := strings.Join(seeds, ",")

	client, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.DialTimeout(dialPatience))
	if err != nil {
		return "", fmt.Errorf("no client for Kafka at %s: %w", at, err)
	}
	defer client.Close()
	if err := client.Ping(ctx); err != nil {
		return "", fmt.Errorf("no answer from Kafka at %s: %w; check the address, and that the broker is up", at, flat{err})
	}
	admin := kadm.NewClient(client)
	metadata, err := admin.BrokerMetadata(ctx)
	if err != nil {
		return "", fmt.Errorf("no cluster metadata from Kafka at %s: %w", at, flat{err})
	}
	versions, err := admin.ApiVersions(ctx)
	if err != nil {
		return "", fmt.Errorf("no API versions from Kafka at %s: %w", at, flat{err})
	}
	guess := ""
	for _, broker := range metadata.Brokers {
		version := versions[broker.NodeID]
		if version.Err != nil {
			advertised := net.JoinHostPort(broker.Host, strconv.Itoa(int(broker.Port)))
			return "", fmt.Errorf("no answer from broker %d of Kafka at %s at the address it advertises, %s: %w; check its advertised.listeners",
				broker.NodeID, at, advertised, flat{version.Err})
		}
		if guess == "" {
			guess = version.VersionGuess()
		}
	}
	if metadata.Cluster == "kfake" { // its default cluster id; its API versions resemble no Kafka's
		return "kfake (by its cluster id)", nil
	}
	return fmt.Sprintf("Kafka %s (guessed from its API versions)", guess), nil
}

// Postgres returns the server's version. It must answer, and let the address in,
// within 10 seconds.
func Postgres(ctx context.Context, databaseURL string) (string, error) {
	config, err := parse(databaseURL)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	at := hosts(config)
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		var refused *pgconn.PgError
		if errors.As(err, &refused) {
			return "", fmt.Errorf("no connection to PostgreSQL at %s: %w; check the user, the password and the database", at, refused)
		}
		return "", fmt.Errorf("no answer from PostgreSQL at %s: %w; check the address, and that the server is up", at, flat{err})
	}
	defer func() { _ = conn.Close(ctx) }()
	var version string
	if err := conn.QueryRow(ctx, "SHOW server_version").Scan(&version); err != nil {
		return "", fmt.Errorf("no version from PostgreSQL at %s: %w", at, flat{err})
	}
	return version, nil
}

// flat is an error with its message on one line. pgx writes a line for every
// address that it tried.
type flat struct{ error }

func (f flat) Error() string { return strings.Join(strings.Fields(f.error.Error()), " ") }
func (f flat) Unwrap() error { return f.error }
