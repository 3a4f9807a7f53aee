package pginbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// errInDoubt says that the database may have lost commits.
var errInDoubt = errors.New("the database may have lost commits that were not on disk")

// witness is a session that sees that the database has not crashed.
//
// A position in the write-ahead log (WAL) proves nothing by itself: what a crash
// loses, it loses from the end of the log, and other WAL comes to stand at the same
// positions. But no session survives a crash. As long as one and the same session
// answers, nothing that was written since it began has been lost.
type witness struct{ conn *pgx.Conn }

// openWitness begins a session that the pool would have given, and keeps it.
func openWitness(ctx context.Context, pool *pgxpool.Pool) (*witness, error) {
	acquired, err := pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("open a session to follow the write-ahead log: %w", err)
	}
	w := &witness{acquired.Hijack()}
	// For what force does; and it shows that the session is alive.
	if _, err := w.conn.Exec(ctx, `SET synchronous_commit = local`); err != nil {
		w.close()
		return nil, fmt.Errorf("open a session to follow the write-ahead log: %w", err)
	}
	return w, nil
}

func (w *witness) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = w.conn.Close(ctx)
}

const (
	// flushPoll is how often the flushed position is asked for; the server's WAL
	// writer moves it every wal_writer_delay, by default 200 ms.
	flushPoll = 5 * time.Millisecond
	// flushPatience is how long the WAL writer is waited for. The insert position can
	// stand behind the header of a page that is still empty: then the log is flushed
	// to its end and yet short of it, until somebody writes more.
	flushPatience = time.Second
)

// awaitFlush returns nil once all that was committed before it was called is on disk.
// When hurry is closed, it does not wait for the WAL writer.
func (w *witness) awaitFlush(ctx context.Context, hurry <-chan struct{}) error {
	var position string
	if err := w.conn.QueryRow(ctx, `SELECT pg_current_wal_insert_lsn()::text`).Scan(&position); err != nil {
		return err
	}
	patience := time.NewTimer(flushPatience)
	defer patience.Stop()
	for {
		var flushed bool
		if err := w.conn.QueryRow(ctx, `SELECT pg_current_wal_flush_lsn() >= $1::pg_lsn`, position).Scan(&flushed); err != nil {
			return err
		}
		if flushed {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(flushPoll):
			continue
		case <-hurry:
		case <-patience.C:
			patience.Reset(flushPatience)
		}
		// A synchronous commit of its own takes all WAL before it to the disk.
		if _, err := w.conn.Exec(ctx, `SELECT pg_logical_emit_message(true, 'pginbox', '')`); err != nil {
			return err
		}
	}
}
