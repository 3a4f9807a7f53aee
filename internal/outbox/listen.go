package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// listen wakes the relay whenever a transaction has put rows into the outbox, until
// ctx ends, on a connection of its own. A notification that comes while nobody listens
// is lost, so it wakes the relay too when it has begun to listen, as often as it has to
// begin anew.
func (r *Relay) listen(ctx context.Context, wake chan<- struct{}) {
	pauses := newBackoff(r.options.RetryBackoff)
	for {
		err := r.hear(ctx, func() {
			pauses.Reset()
			select {
			case wake <- struct{}{}:
			default: // it is awake
			}
		})
		if ctx.Err() != nil {
			return
		}
		pause := pauses.NextBackOff()
		r.options.Logger.Warn("listening for new rows failed; until it is taken up again they are found by looking", "every", r.options.PollInterval, "after", pause, "cause", err)
		sleep(ctx, pause)
	}
}

// hear listens until the connection is lost, or ctx ends.
func (r *Relay) hear(ctx context.Context, heard func()) error {
	conn, err := pgx.ConnectConfig(ctx, r.pool.Config().ConnConfig)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	var channel string
	if err := conn.QueryRow(ctx, `SELECT 'outbox_' || md5(current_schema())`).Scan(&channel); err != nil {
		return fmt.Errorf("look up the channel: %w", err)
	}
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	for {
		heard()
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return fmt.Errorf("wait for a notification: %w", err)
		}
	}
}
