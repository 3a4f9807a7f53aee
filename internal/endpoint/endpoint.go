// Package endpoint checks that Kafka and Postgres are where an address says, and
// says in one line what is wrong if they aren't. An address may hold a password;
// no error of this package does.
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
	"github.com/twmb/franz-go/pkg/kgo"
)

// Patience is how long a check waits for an answer.
const Patience = 10 * time.Second

// CheckKafka returns an error that names the brokers if none of them answers
// within [Patience].
func CheckKafka(ctx context.Context, brokers []string) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RequestRetries(2), kgo.DialTimeout(Patience/2))
	if err != nil {
		return fmt.Errorf("kafka at %s: %w", strings.Join(brokers, ","), err)
	}
	defer client.Close()
	if err := client.Ping(ctx); err != nil {
		return fmt.Errorf("kafka at %s does not answer: check the address, or start it: %w", strings.Join(brokers, ","), err)
	}
	return nil
}

// CheckPostgres returns an error that names host and port if Postgres does not let
// that address in within [Patience].
func CheckPostgres(ctx context.Context, databaseURL string) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		// The parser's own error quotes the address, with the password blanked out
		// only where it could tell which part that is.
		return errors.New("the database address cannot be read: it must be postgres://user:password@host:port/database or a list of key=value")
	}
	connection, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("postgres at %s: %s", address(config), reason(err))
	}
	defer connection.Close(ctx)
	if err := connection.Ping(ctx); err != nil {
		return fmt.Errorf("postgres at %s: %s", address(config), reason(err))
	}
	return nil
}

// Redacted names a database without its password: what may be shown or logged.
func Redacted(databaseURL string) string {
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return "(unreadable database address)"
	}
	return fmt.Sprintf("postgres://%s@%s/%s", config.User, address(config), config.Database)
}

func address(config *pgx.ConnConfig) string {
	return net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
}

// reason is one line: the driver tells its story once for every address that a
// name resolves to, on a line each.
func reason(err error) string {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return fmt.Sprintf("%s (SQLSTATE %s): check user, password and database", server.Message, server.Code)
	}
	var network *net.OpError
	if errors.As(err, &network) {
		return network.Error() + ": check the address, or start it"
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("no answer within %v: check the address, or start it", Patience)
	}
	return strings.Join(strings.Fields(err.Error()), " ")
}
