package stage

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/delivered-twice/delivered-twice/internal/wire"
)

// ProxyKafka puts a proxy between Kafka and the members that enter from now on. It is
// closed with the stage.
func (s *Stage) ProxyKafka() (*wire.Proxy, error) {
	proxy, err := wire.Kafka(s.Services.Brokers)
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, proxy.Close)
	s.brokers = proxy.Addrs()
	return proxy, nil
}

// ProxyPostgres puts a proxy between PostgreSQL and the members that enter from now
// on. It is closed with the stage.
func (s *Stage) ProxyPostgres() (*wire.Proxy, error) {
	config, err := pgx.ParseConfig(s.DatabaseURL)
	if err != nil {
		return nil, errors.New("the database address cannot be read") // the error would quote it, password included
	}
	if strings.HasPrefix(config.Host, "/") {
		return nil, fmt.Errorf("PostgreSQL is at the socket %s, where no proxy can stand: give its address on the network", config.Host)
	}
	proxy, err := wire.Postgres(net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port))))
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, proxy.Close)
	s.database, err = at(s.DatabaseURL, proxy.Addrs()[0])
	return proxy, err
}

// at returns a database's address with other host and port.
func at(databaseURL, address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", err
	}
	if !isURL(databaseURL) {
		return fmt.Sprintf("%s host=%s port=%s", databaseURL, host, port), nil // the last one counts
	}
	u, err := url.Parse(databaseURL)
	if err != nil {
		return "", errors.New("the database address cannot be read")
	}
	u.Host = address
	return u.String(), nil
}

// isURL says whether a database's address is an URL, and not a list of key=value.
func isURL(databaseURL string) bool {
	return strings.HasPrefix(databaseURL, "postgres://") || strings.HasPrefix(databaseURL, "postgresql://")
}
