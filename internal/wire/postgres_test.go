package wire_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
	"github.com/delivered-twice/delivered-twice/internal/wire"
)

// database is a PostgreSQL with a table of things, and a proxy in front of it.
type database struct {
	t       *testing.T
	address string // past the proxy
	proxy   *wire.Proxy
}

func newDatabase(t *testing.T) *database {
	d := &database{t: t, address: sandboxtest.Database(t)}
	config, err := pgx.ParseConfig(d.address)
	require.NoError(t, err)
	d.proxy, err = wire.Postgres(net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port))))
	closing(t, d.proxy, err)
	d.exec(d.direct(), "CREATE TABLE things (id int PRIMARY KEY)", "CREATE TABLE parts (of int REFERENCES things DEFERRABLE INITIALLY DEFERRED)")
	return d
}

func (d *database) connect(change func(*pgx.ConnConfig)) *pgx.Conn {
	d.t.Helper()
	config, err := pgx.ParseConfig(d.address)
	require.NoError(d.t, err)
	change(config)
	conn, err := pgx.ConnectConfig(within(d.t), config)
	require.NoError(d.t, err)
	d.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func (d *database) direct() *pgx.Conn { return d.connect(func(*pgx.ConnConfig) {}) }

func (d *database) through(change ...func(*pgx.ConnConfig)) *pgx.Conn {
	d.t.Helper()
	return d.connect(func(config *pgx.ConnConfig) {
		host, port, err := net.SplitHostPort(d.proxy.Addrs()[0])
		require.NoError(d.t, err)
		number, err := strconv.ParseUint(port, 10, 16)
		require.NoError(d.t, err)
		config.Host, config.Port, config.Fallbacks = host, uint16(number), nil
		for _, c := range change {
			c(config)
		}
	})
}

func (d *database) exec(conn *pgx.Conn, statements ...string) {
	d.t.Helper()
	for _, statement := range statements {
		_, err := conn.Exec(within(d.t), statement)
		require.NoError(d.t, err, statement)
	}
}

// things counts them, past the proxy. It is also called by triggers, so it does not
// end the test.
func things(conn *pgx.Conn) int {
	n := -1
	_ = conn.QueryRow(context.Background(), "SELECT count(*) FROM things").Scan(&n)
	return n
}

func TestCommitCut(t *testing.T) {
	for name, commit := range map[string]func(context.Context, *pgx.Conn) error{
		"transaction of pgx": func(ctx context.Context, conn *pgx.Conn) error {
			tx, err := conn.Begin(ctx)
			if err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "INSERT INTO things VALUES ($1)", 1); err != nil {
				return err
			}
			return tx.Commit(ctx)
		},
		"many statements in one": func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "BEGIN; INSERT INTO things VALUES (1); /* ; */ END; SELECT ';'")
			return err
		},
		"extended protocol": func(ctx context.Context, conn *pgx.Conn) error {
			if _, err := conn.Exec(ctx, "BEGIN; INSERT INTO things VALUES (1)"); err != nil {
				return err
			}
			return conn.PgConn().ExecParams(ctx, "commit work", nil, nil, nil, nil).Read().Err
		},
		"prepared": func(ctx context.Context, conn *pgx.Conn) error {
			if _, err := conn.PgConn().Prepare(ctx, "it", "COMMIT", nil); err != nil {
				return err
			}
			if _, err := conn.Exec(ctx, "BEGIN; INSERT INTO things VALUES (1)"); err != nil {
				return err
			}
			return conn.PgConn().ExecPrepared(ctx, "it", nil, nil, nil).Read().Err
		},
		"batch": func(ctx context.Context, conn *pgx.Conn) error {
			batch := new(pgx.Batch)
			batch.Queue("BEGIN")
			batch.Queue("INSERT INTO things VALUES ($1)", 1)
			batch.Queue("COMMIT")
			return conn.SendBatch(ctx, batch).Close()
		},
	} {
		for _, test := range []struct {
			when  wire.When
			want  int
			fails bool
		}{
			{wire.BeforeForward, 0, true},
			{wire.BeforeAnswer, 1, true},
			{wire.AfterAnswer, 1, false},
		} {
			t.Run(name+" "+string(test.when), func(t *testing.T) {
				d := newDatabase(t)
				direct, conn := d.direct(), d.through()
				at := -1
				struck := d.proxy.At(wire.Trigger{On: wire.Commit, When: test.when, Do: func(s *wire.Strike) {
					at = things(direct)
					s.Cut()
				}})
				err := commit(within(t), conn)
				wait(t, "the commit", struck)
				require.Equal(t, test.fails, err != nil, err)
				require.Equal(t, test.want, at)
				require.Error(t, conn.Ping(within(t)), "it was not cut")
				require.NoError(t, d.proxy.Close())
				requireNoGoroutines(t)
				// The server rolls back as soon as it finds the connection gone.
				d.exec(direct, "BEGIN; LOCK TABLE things; COMMIT")
				require.Equal(t, test.want, things(direct))
			})
		}
	}
}

func TestEachCommitIsCountedOnce(t *testing.T) {
	d := newDatabase(t)
	conn := d.through()
	_, err := conn.PgConn().Prepare(within(t), "it", "COMMIT", nil)
	require.NoError(t, err)
	struck := d.proxy.At(wire.Trigger{On: wire.Commit, Nth: 3, When: wire.AfterAnswer, Do: func(*wire.Strike) {}})
	d.exec(conn,
		"BEGIN; COMMIT; BEGIN; COMMIT", // one message
		"BEGIN", "ROLLBACK", "SELECT 'commit'", "-- commit", "INSERT INTO things VALUES (1)",
		"CREATE FUNCTION one() RETURNS int BEGIN ATOMIC SELECT CASE 1 WHEN 1 THEN 1 END; SELECT 1; END",
		"BEGIN", "COMMIT")
	requireOpen(t, struck, "something else was counted")
	require.NoError(t, conn.PgConn().ExecPrepared(within(t), "it", nil, nil, nil).Read().Err)
	wait(t, "the third", struck)
}

func TestConnectionsThatMatch(t *testing.T) {
	d := newDatabase(t)
	named := d.through(func(config *pgx.ConnConfig) { config.RuntimeParams["application_name"] = "the one" })
	var by wire.Conn
	struck := d.proxy.At(wire.Trigger{
		On: wire.Commit, When: wire.BeforeForward,
		Match: func(c wire.Conn) bool { return c.ApplicationName == "the one" },
		Do:    func(s *wire.Strike) { by = s.Conn },
	})
	d.exec(d.through(), "BEGIN", "COMMIT")
	requireOpen(t, struck, "it is another connection")
	d.exec(named, "BEGIN", "COMMIT")
	wait(t, "the commit", struck)
	require.Equal(t, named.Config().User, by.User)
	require.Equal(t, net.JoinHostPort(d.direct().Config().Host, strconv.Itoa(int(d.direct().Config().Port))), by.Server)
}

// Answers are matched to what was sent ahead of them, past errors.
func TestPipelinedTransactions(t *testing.T) {
	d := newDatabase(t)
	direct, gate, conn := d.direct(), d.direct(), d.through()
	d.exec(gate, "INSERT INTO things VALUES (1)", "BEGIN", "LOCK TABLE parts")
	at := make([]int, 3)
	struck := make([]<-chan struct{}, 3)
	for i := range at {
		struck[i] = d.proxy.At(wire.Trigger{On: wire.Commit, Nth: i + 1, When: wire.BeforeAnswer, Do: func(*wire.Strike) { at[i] = things(direct) }})
	}
	pipeline := conn.PgConn().StartPipeline(within(t))
	send := func(statements ...string) {
		for _, statement := range statements {
			pipeline.SendQueryParams(statement, nil, nil, nil, nil)
		}
		require.NoError(t, pipeline.Sync())
	}
	passes := func() { // a Sync was answered
		for {
			results, err := pipeline.GetResults()
			if _, ok := results.(*pgconn.PipelineSync); ok {
				return
			}
			if reader, ok := results.(*pgconn.ResultReader); ok {
				_, err = reader.Close()
			}
			var refused *pgconn.PgError
			require.True(t, err == nil || errors.As(err, &refused), err)
		}
	}
	send("BEGIN", "INSERT INTO things VALUES (1)", "COMMIT") // fails before the commit
	send("ROLLBACK")
	send("BEGIN", "LOCK TABLE parts", "INSERT INTO things VALUES (2)", "COMMIT")
	send("BEGIN", "INSERT INTO parts VALUES (99)", "COMMIT") // the commit itself fails

	passes()
	wait(t, "the commit that was skipped", struck[0])
	require.Equal(t, 1, at[0])
	passes()
	requireOpen(t, struck[1], "the second transaction has not got its lock yet")
	d.exec(gate, "COMMIT")
	passes()
	wait(t, "the second commit", struck[1])
	require.Equal(t, 2, at[1])
	passes()
	wait(t, "the third commit", struck[2])
	require.Equal(t, 2, at[2])
	require.NoError(t, pipeline.Close())
}

// A Sync that was sent ahead of the data of a COPY is ignored by the server.
func TestCommitAfterCopyInTheExtendedProtocol(t *testing.T) {
	d := newDatabase(t)
	direct := d.direct()
	hijacked, err := d.through().PgConn().Hijack()
	require.NoError(t, err)
	f := hijacked.Frontend
	until := func(want pgproto3.BackendMessage) {
		t.Helper()
		for {
			message, err := f.Receive()
			require.NoError(t, err)
			if failed, ok := message.(*pgproto3.ErrorResponse); ok {
				require.FailNow(t, failed.Message)
			}
			if reflect.TypeOf(message) == reflect.TypeOf(want) {
				return
			}
		}
	}
	execute := func(statement string) {
		f.SendParse(&pgproto3.Parse{Query: statement})
		f.SendBind(&pgproto3.Bind{})
		f.SendExecute(&pgproto3.Execute{})
		f.SendSync(&pgproto3.Sync{})
	}
	execute("COPY things FROM STDIN")
	require.NoError(t, f.Flush())
	until(&pgproto3.CopyInResponse{})
	f.Send(&pgproto3.CopyData{Data: []byte("1\n2\n")})
	f.Send(&pgproto3.CopyDone{})
	f.SendSync(&pgproto3.Sync{})
	require.NoError(t, f.Flush())
	until(&pgproto3.ReadyForQuery{})

	at := -1
	struck := d.proxy.At(wire.Trigger{On: wire.Commit, When: wire.BeforeAnswer, Do: func(*wire.Strike) { at = things(direct) }})
	for _, statement := range []string{"BEGIN", "INSERT INTO things VALUES (3)", "COMMIT"} {
		execute(statement)
		require.NoError(t, f.Flush())
		until(&pgproto3.ReadyForQuery{})
	}
	wait(t, "the commit", struck)
	require.Equal(t, 3, at)
	require.NoError(t, hijacked.Conn.Close())
}

func TestBulkDataPasses(t *testing.T) {
	d := newDatabase(t)
	conn := d.through()
	const n = 200_000
	copied, err := conn.CopyFrom(within(t), pgx.Identifier{"things"}, []string{"id"}, pgx.CopyFromSlice(n, func(i int) ([]any, error) { return []any{i}, nil }))
	require.NoError(t, err)
	require.EqualValues(t, n, copied)
	rows, err := conn.Query(within(t), "SELECT id FROM things ORDER BY id")
	require.NoError(t, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	require.NoError(t, err)
	require.Len(t, ids, n)
	for i, id := range ids {
		require.Equal(t, i, id)
	}
}

func TestCancelRequestPasses(t *testing.T) {
	d := newDatabase(t)
	direct := d.direct()
	d.exec(direct, "BEGIN", "LOCK TABLE things")
	conn := d.through()
	failed := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "INSERT INTO things VALUES (1)")
		failed <- err
	}()
	require.Eventually(t, func() bool {
		var waiting bool
		err := direct.QueryRow(within(t), "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $1", conn.PgConn().PID()).Scan(&waiting)
		return err == nil && waiting
	}, patience, time.Millisecond)
	require.NoError(t, conn.PgConn().CancelRequest(within(t)))
	var cancelled *pgconn.PgError
	require.ErrorAs(t, <-failed, &cancelled)
	require.Equal(t, "57014", cancelled.Code) // query_canceled
}

// A client that asks for TLS and is refused goes on in plain text, on the same
// connection.
func TestTLSRefused(t *testing.T) {
	d := newDatabase(t)
	answer := ""
	conn := d.through(func(config *pgx.ConnConfig) {
		dial := config.DialFunc
		config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			if err == nil {
				write(t, conn, asks(sslRequest))
				answer = string(read(t, conn, 1))
			}
			return conn, err
		}
	})
	require.Equal(t, "N", answer, "the tests' PostgreSQL must have no certificates")
	struck := d.proxy.At(wire.Trigger{On: wire.Commit, When: wire.AfterAnswer, Do: func(*wire.Strike) {}})
	d.exec(conn, "BEGIN", "COMMIT")
	wait(t, "the commit", struck)
}

func TestGSSAPIEncryption(t *testing.T) {
	for _, answer := range []string{"G", "N"} {
		t.Run(answer, func(t *testing.T) {
			proxy, err := wire.Postgres(serve(t, func(conn net.Conn) {
				require.Equal(t, asks(gssEncRequest), read(t, conn, 8))
				write(t, conn, []byte(answer))
				_, _ = io.Copy(conn, conn)
			}))
			closing(t, proxy, err)
			conn := dial(t, proxy.Addrs()[0])
			write(t, conn, asks(gssEncRequest))
			require.Equal(t, answer, string(read(t, conn, 1)))
			next := []byte("whatever GSSAPI says")
			if answer == "N" {
				next, err = (&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "u"}}).Encode(nil)
				require.NoError(t, err)
			}
			write(t, conn, next)
			require.NoError(t, conn.CloseWrite())
			got, err := io.ReadAll(conn)
			require.NoError(t, err)
			require.Equal(t, next, got)
		})
	}
}

// asks is a packet that asks for encryption.
func asks(code uint32) []byte { return binary.BigEndian.AppendUint32([]byte{0, 0, 0, 8}, code) }

const (
	sslRequest    = 80877103
	gssEncRequest = 80877104
)

func TestTLSPassesUntouched(t *testing.T) {
	web := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }))
	defer web.Close()
	certified := web.Client().Transport.(*http.Transport).TLSClientConfig
	asking := serve(t, func(conn net.Conn) { // as PostgreSQL with certificates
		read(t, conn, 8)
		write(t, conn, []byte("S"))
		secure := tls.Server(conn, web.TLS)
		_, _ = io.Copy(secure, secure)
	})

	kafka, err := wire.Kafka([]string{web.Listener.Addr().String()})
	closing(t, kafka, err)
	direct, err := wire.Postgres(web.Listener.Addr().String())
	closing(t, direct, err)
	postgres, err := wire.Postgres(asking)
	closing(t, postgres, err)

	for name, proxy := range map[string]*wire.Proxy{"Kafka": kafka, "PostgreSQL without asking": direct} {
		t.Run(name, func(t *testing.T) {
			client := &http.Client{Transport: &http.Transport{TLSClientConfig: certified}}
			defer client.CloseIdleConnections()
			response, err := client.Post("https://"+proxy.Addrs()[0], "text/plain", strings.NewReader("hello"))
			require.NoError(t, err)
			body, err := io.ReadAll(response.Body)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			require.Equal(t, "hello", string(body))
		})
	}
	t.Run("PostgreSQL", func(t *testing.T) {
		conn := dial(t, postgres.Addrs()[0])
		write(t, conn, asks(sslRequest))
		require.Equal(t, "S", string(read(t, conn, 1)))
		config := certified.Clone()
		config.ServerName = "example.com"
		secure := tls.Client(conn, config)
		write(t, secure, []byte("hello"))
		require.Equal(t, "hello", string(read(t, secure, 5)))
	})
}

func TestPostgresAwayAndBack(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	proxy, err := wire.Postgres(address)
	closing(t, proxy, err)
	requireClosed(t, dial(t, proxy.Addrs()[0]))
	listener, err = net.Listen("tcp", address)
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }()
	conn := dial(t, proxy.Addrs()[0])
	upstream, err := listener.Accept()
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	requireClosed(t, upstream)
}
