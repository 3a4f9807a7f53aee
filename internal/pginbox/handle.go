package pginbox

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/jackc/pgx/v5"
)

// call gives events to the handler. Its error is a [failure] or an [outage].
func (d *delivery) call(ctx context.Context, tx pgx.Tx, items []item) error {
	err := d.handle(ctx, handlerTx{tx}, eventsOf(items))
	conn := tx.Conn()
	if err == nil && !conn.IsClosed() {
		switch {
		case conn.PgConn().IsBusy():
			err = errors.New("the handler returned before its query was over: close its rows")
		case conn.PgConn().TxStatus() == 'E':
			err = errors.New("the handler returned no error, but a statement of its had failed, and the transaction can only be rolled back")
		case conn.PgConn().TxStatus() != 'T':
			err = errors.New("the handler ended the transaction by itself: it must not execute COMMIT or ROLLBACK")
		}
	}
	if err != nil {
		return handlerError(ctx, conn, err)
	}
	return nil
}

func (d *delivery) handle(ctx context.Context, tx pgx.Tx, events []Event) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
		}
	}()
	return d.handler.Handle(ctx, tx, events)
}

// handlerTx is the transaction as a handler sees it: it can't be ended.
type handlerTx struct{ pgx.Tx }

var errNotYours = errors.New("the inbox ends the transaction: return nil to commit it, an error to roll it back")

func (handlerTx) Commit(context.Context) error   { return errNotYours }
func (handlerTx) Rollback(context.Context) error { return errNotYours }
