package pginbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Permanent marks an error that another attempt cannot mend: the event becomes a
// dead letter at once.
func Permanent(err error) error { return &marked{err, errPermanent} }

// Unavailable marks an error that is not the events' fault, such as a service that
// is down. It never counts as an attempt.
func Unavailable(err error) error { return &marked{err, errUnavailable} }

// IsPermanent says whether an error is marked by [Permanent].
func IsPermanent(err error) bool { return errors.Is(err, errPermanent) }

// IsUnavailable says whether an error is marked by [Unavailable].
func IsUnavailable(err error) bool { return errors.Is(err, errUnavailable) }

var (
	errPermanent   = errors.New("permanent")
	errUnavailable = errors.New("unavailable")
)

// marked is an error that matches a mark with errors.Is and reads as it did.
type marked struct{ err, mark error }

func (m *marked) Error() string   { return m.err.Error() }
func (m *marked) Unwrap() []error { return []error{m.err, m.mark} }

// Transient says that an error of a conversation with Postgres is nobody's fault and
// may pass: a serialization failure, a deadlock, a lock that was not to be had, a
// lost connection, a timeout of the network, a server that stops, starts, has become
// read-only or has run out of something. It says false for a statement that was
// canceled (57014, statement_timeout), because a statement can be too slow for ever.
func Transient(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return transientState(pg.Code)
	}
	var (
		connect *pgconn.ConnectError
		network net.Error
	)
	return errors.As(err, &connect) || errors.As(err, &network) || pgconn.Timeout(err) ||
		errors.Is(err, pgconn.ErrConnClosed) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// transientState says so of an SQLSTATE (PostgreSQL manual, appendix A).
func transientState(code string) bool {
	if len(code) != 5 {
		return false
	}
	return slices.Contains([]string{
		"08", // connection exceptions
		"53", // out of disk, memory, connections
		"58", // I/O errors, a missing file of the server
	}, code[:2]) || slices.Contains([]string{
		"25006", // read only: the connection has stayed with a former primary
		"25P03", // idle in transaction for too long: this process stood still
		"25P04", // in a transaction for too long
		"40001", // serialization failure
		"40P01", // deadlock
		"55P03", // lock_timeout, NOWAIT
		"57P01", // the server shuts down, or an administrator ended the connection
		"57P02", // another server process crashed
		"57P03", // the server is starting up
		"57P05", // idle for too long
	}, code)
}

// failure is an error that is the fault of the events.
type failure struct {
	err   error
	again bool // the one event it was is to be tried again, after a pause
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// outage is an error that is not.
type outage struct{ err error }

func (o *outage) Error() string { return o.err.Error() }
func (o *outage) Unwrap() error { return o.err }

// stepError is an error of a hook.
type stepError struct {
	step Step
	err  error
}

func (s stepError) Error() string { return fmt.Sprintf("step %s: %v", s.step, s.err) }
func (s stepError) Unwrap() error { return s.err }

// statementError is for errors of the inbox's own statements. Whatever Postgres
// itself does not call wrong (a missing table, a missing permission) is an outage.
func statementError(doing string, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%s: %w", doing, err)
	if refused(err) {
		return err
	}
	return &outage{err}
}

// refused says that Postgres answered, and that it will not answer otherwise when
// asked again.
func refused(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && !transientState(pg.Code)
}

// handlerError is for errors of a handler that was called with a transaction on conn.
func handlerError(ctx context.Context, conn *pgx.Conn, err error) error {
	var (
		pg      *pgconn.PgError
		network *net.OpError
	)
	switch {
	case errors.Is(err, errPermanent):
		return &failure{err: err}
	case errors.Is(err, errUnavailable), ctx.Err() != nil:
		return &outage{err}
	case conn.IsClosed():
		// Asked of the connection, because a handler may have made the error
		// unrecognizable.
		return &outage{err}
	case errors.As(err, &pg):
		if transientState(pg.Code) {
			return &outage{err}
		}
	case errors.As(err, &network): // of a connection of its own
		return &outage{err}
	}
	// Transient would go too far: io.EOF is also what decoding an empty value gives.
	return &failure{err: err}
}
