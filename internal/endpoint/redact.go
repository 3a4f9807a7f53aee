package endpoint

import (
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// ErrUnreadable says nothing about the address it was given: a part that is in the
// wrong place may be part of the password.
var ErrUnreadable = errors.New("the database address is not readable; write postgres://user:password@host:5432/database, " +
	"with the special characters of the password percent-encoded (@ as %40, / as %2F), or host=… user=… password=… dbname=…")

// unreadable is what Redact shows of such an address.
const unreadable = "(unreadable database address)"

// Redact returns the database address without its password and other settings, for
// messages, logs and reports: postgres://user@host:port/database. It accepts every
// form that PostgreSQL's own programs do. Of an address that it cannot take apart
// with certainty it shows nothing.
func Redact(databaseURL string) string {
	config, err := parse(databaseURL)
	if err != nil {
		return unreadable
	}
	u := url.URL{Scheme: "postgres", Host: hosts(config), Path: "/" + config.Database}
	if config.User != "" {
		u.User = url.User(config.User)
	}
	return u.String()
}

// parse never returns pgx's own errors, which quote what they could not parse.
func parse(databaseURL string) (*pgx.ConnConfig, error) {
	if ambiguous(databaseURL) {
		return nil, ErrUnreadable
	}
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return nil, ErrUnreadable
	}
	return config, nil
}

// ambiguous reports whether the address is a URL with an @ that does not end its
// user part. In postgres://u:1/2@h/db, the password 1/2 should have been written
// 1%2F2; as it stands, 2@h/db is the database's name, and would be shown.
func ambiguous(databaseURL string) bool {
	_, rest, isURL := strings.Cut(databaseURL, "://")
	if !isURL {
		return false
	}
	authority := rest
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		authority = rest[:end]
	}
	return strings.Count(rest, "@") > min(1, strings.Count(authority, "@"))
}

// hosts are the addresses that a connection would try, each once.
func hosts(config *pgx.ConnConfig) string {
	var all []string
	add := func(host string, port uint16) {
		at := net.JoinHostPort(host, strconv.Itoa(int(port)))
		if len(all) == 0 || all[len(all)-1] != at { // with and without TLS are two attempts
			all = append(all, at)
		}
	}
	add(config.Host, config.Port)
	for _, fallback := range config.Fallbacks {
		add(fallback.Host, fallback.Port)
	}
	return strings.Join(all, ",")
}
