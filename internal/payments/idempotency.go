package payments

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// maxKey is how many characters a key may have, as with Stripe.
const maxKey = 255

// keyOf returns the request's Idempotency-Key; "" where none was sent. It is taken as
// it stands: the quotes that a client puts around it by the IETF draft (an Item of
// type String, RFC 9651, section 3.3.3) are part of it.
func keyOf(header http.Header) (string, error) {
	keys := header.Values("Idempotency-Key")
	if len(keys) == 0 {
		return "", nil
	}
	key := strings.TrimSpace(keys[0])
	switch {
	case len(keys) > 1:
		return "", malformed(http.StatusBadRequest, "There is more than one Idempotency-Key.")
	case key == "":
		return "", malformed(http.StatusBadRequest, "The Idempotency-Key is empty. Send one, or leave the header out.")
	case !utf8.ValidString(key) || strings.ContainsFunc(key, unicode.IsControl):
		return "", malformed(http.StatusBadRequest, "The Idempotency-Key must be UTF-8 without control characters.")
	case utf8.RuneCountInString(key) > maxKey:
		return "", malformed(http.StatusBadRequest, "The Idempotency-Key has more than %d characters.", maxKey)
	}
	return key, nil
}

// claim takes the key of a request for this transaction, or returns what there is to
// answer: the stored answer, or that the key is in flight, or that it was another
// request's. It never waits for another request. Without a key there is nothing to
// take.
//
// The lock is asked for in a statement before the one that looks: in READ COMMITTED
// each has a snapshot of its own, and who gets the lock sees all that its last holder
// committed. Who does not get it looks all the same: the holder may be a retry, too,
// of a request that was answered long ago.
//
// The schema is in the lock's name because locks are the whole database's and keys
// are not; the array, so that no two names run together. Two keys with the same
// 64-bit hash cost one of them a 409 if they come at the same moment, and no more.
func (s *Server) claim(ctx context.Context, tx pgx.Tx, c call) (*answer, error) {
	var (
		locked bool
		hash   []byte
		stored answer
	)
	batch := &pgx.Batch{}
	s.guard(batch)
	if c.key == "" {
		return nil, tx.SendBatch(ctx, batch).Close()
	}
	batch.Queue(`SELECT pg_try_advisory_xact_lock(hashtextextended(jsonb_build_array(current_schema(), $1::text, $2::text)::text, 0))`,
		c.client, c.key).QueryRow(func(row pgx.Row) error { return row.Scan(&locked) })
	batch.Queue(`
SELECT request_hash, status, headers, body FROM idempotency_keys
WHERE client_id = $1 AND idem_key = $2 AND status IS NOT NULL AND created_at > now() - $3::interval`,
		c.client, c.key, s.retention).QueryRow(func(row pgx.Row) error {
		err := row.Scan(&hash, &stored.status, &stored.header, &stored.body)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return nil, fmt.Errorf("look up a key: %w", err)
	}
	switch {
	case len(hash) == sha256.Size && subtle.ConstantTimeCompare(hash, c.hash) == 1:
		stored.replayed = true
		return &stored, nil
	case hash != nil:
		return nil, otherRequest()
	case !locked:
		return nil, inFlight()
	default:
		return nil, nil
	}
}

// guard bounds how long the transaction can hold its locks when this process stands
// still or its host is gone, and makes its commit durable whatever the database's
// default is.
func (s *Server) guard(batch *pgx.Batch) {
	idle, statement := s.stall+s.network.Latency, s.stall
	batch.Queue(`
SELECT set_config('idle_in_transaction_session_timeout', $1, true),
       set_config('statement_timeout', $2, true),
       set_config('synchronous_commit', 'on', true)`, milliseconds(idle), milliseconds(statement))
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%dms", max(1, d.Milliseconds())) }

// hold inserts the row of a key that was claimed. It replaces one that has expired and
// was not purged yet.
func (s *Server) hold(ctx context.Context, tx pgx.Tx, c call) error {
	if c.key == "" {
		return nil
	}
	held, err := tx.Exec(ctx, `
INSERT INTO idempotency_keys AS k (client_id, idem_key, request_hash) VALUES ($1, $2, $3)
ON CONFLICT (client_id, idem_key) DO UPDATE
SET request_hash = excluded.request_hash, status = NULL, headers = NULL, body = NULL, created_at = excluded.created_at
WHERE k.status IS NULL OR k.created_at <= now() - $4::interval`, c.client, c.key, c.hash, s.retention)
	if err != nil {
		return fmt.Errorf("hold a key: %w", err)
	}
	if held.RowsAffected() == 0 { // somebody inserted it without the lock
		return inFlight()
	}
	return nil
}

// keep stores the answer of a key that is held.
func (s *Server) keep(ctx context.Context, tx pgx.Tx, c call, a answer) error {
	if c.key == "" {
		return nil
	}
	_, err := tx.Exec(ctx, `UPDATE idempotency_keys SET status = $3, headers = $4, body = $5 WHERE client_id = $1 AND idem_key = $2`,
		c.client, c.key, a.status, a.header, a.body)
	if err != nil {
		return fmt.Errorf("keep an answer: %w", err)
	}
	return nil
}
