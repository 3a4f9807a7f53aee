package contest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sort"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/delivered-twice/delivered-twice/internal/warehouse"
)

// table is one of the warehouse's tables, in a schema of its own.
type table struct {
	conn      *pgx.Conn
	url       string
	schema    string
	name      string
	committed []time.Time // of all rows, in order, after the audit
	first     []time.Time // by event, after the audit
}

// openTable creates the schema with the warehouse's tables.
func openTable(ctx context.Context, databaseURL, schema, name string) (_ *table, err error) {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return nil, err
	}
	t := &table{conn: conn, url: withSearchPath(databaseURL, schema), schema: pgx.Identifier{schema}.Sanitize(), name: pgx.Identifier{name}.Sanitize()}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close(ctx))
		}
	}()
	var tracked string
	if err := conn.QueryRow(ctx, `SHOW track_commit_timestamp`).Scan(&tracked); err != nil {
		return nil, err
	}
	if tracked != "on" {
		return nil, errors.New("nobody can tell when rows were committed: set track_commit_timestamp = on in postgresql.conf, and restart PostgreSQL")
	}
	if _, err := conn.Exec(ctx, `CREATE SCHEMA `+t.schema); err != nil {
		return nil, err
	}
	if err := warehouse.Migrate(ctx, t.url); err != nil {
		return nil, err
	}
	_, err = conn.Exec(ctx, `SET search_path = `+t.schema)
	return t, err
}

// withSearchPath adds the schema to an address in either form, URL or key=value.
func withSearchPath(databaseURL, schema string) string {
	u, err := url.Parse(databaseURL)
	if err != nil || !strings.Contains(databaseURL, "://") {
		return databaseURL + " search_path=" + schema
	}
	query := u.Query()
	query.Set("search_path", schema)
	u.RawQuery = query.Encode()
	return u.String()
}

// follow does nothing: the server keeps the time of every commit.
func (t *table) follow(context.Context, *ledger) error { return nil }

// look asks for the last id that was given out, because counting rows would take longer
// and longer. A transaction that was rolled back has taken ids, too.
func (t *table) look(ctx context.Context) (m mark, err error) {
	err = t.conn.QueryRow(ctx, `SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence($1, 'id')::regclass), 0),
		(pg_current_wal_lsn() - '0/0')::bigint`, t.name).Scan(&m.effects, &m.wal)
	m.at = time.Now()
	if err != nil {
		return m, fmt.Errorf("look at table %s: %w", t.name, err)
	}
	return m, nil
}

func (t *table) settled(ctx context.Context, m mark, acknowledged bool, events int) (bool, error) {
	if acknowledged || m.effects < int64(events) {
		return acknowledged, nil
	}
	var rows int
	if err := t.conn.QueryRow(ctx, `SELECT count(*) FROM `+t.name).Scan(&rows); err != nil {
		return false, fmt.Errorf("count the rows of %s: %w", t.name, err)
	}
	return rows >= events, nil
}

func (t *table) audit(ctx context.Context, l *ledger) error {
	t.first = make([]time.Time, len(l.found))
	rows, err := t.conn.Query(ctx, `SELECT event_id, pg_xact_commit_timestamp(xmin) AS at FROM `+t.name+` ORDER BY at, id`)
	var id string
	var at time.Time
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&id, &at}, func() error {
			t.committed = append(t.committed, at)
			if n, first := l.add(id); first {
				t.first[n] = at
			}
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("audit table %s: %w", t.name, err)
	}
	return nil
}

func (t *table) visible(m mark) int {
	return sort.Search(len(t.committed), func(i int) bool { return t.committed[i].After(m.at) })
}

func (t *table) seen() []time.Time { return t.first }

func (t *table) close(ctx context.Context) error {
	_, err := t.conn.Exec(ctx, `DROP SCHEMA IF EXISTS `+t.schema+` CASCADE`)
	if err != nil {
		err = fmt.Errorf("remove schema %s: %w", t.schema, err)
	}
	return errors.Join(err, t.conn.Close(ctx))
}
