package shortcut

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/delivered-twice/delivered-twice/internal/pginbox"
)

// failure is an error that is the fault of the events.
type failure struct{ err error }

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// outage is an error that is not, and may pass.
type outage struct{ err error }

func (o *outage) Error() string { return o.err.Error() }
func (o *outage) Unwrap() error { return o.err }

// refused says that Postgres answered, and that it will not answer otherwise when
// asked again.
func refused(err error) bool {
	var answer *pgconn.PgError
	return errors.As(err, &answer) && !pginbox.Transient(err)
}

// statementError is for errors of the guards' own statements: whatever Postgres
// itself does not call wrong is an outage.
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

// handlerError is for errors of a handler that worked on conn.
func handlerError(ctx context.Context, conn *pgx.Conn, err error) error {
	var (
		answer  *pgconn.PgError
		network *net.OpError // of a connection of the handler's own
	)
	switch {
	case err == nil:
		return nil
	case pginbox.IsUnavailable(err), ctx.Err() != nil, conn.IsClosed(), errors.As(err, &network),
		errors.As(err, &answer) && pginbox.Transient(err):
		return &outage{err}
	}
	return &failure{err}
}
