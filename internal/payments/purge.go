package payments

import (
	"context"
	"fmt"
)

// purgeBatch is how many keys are removed in one transaction, at most.
const purgeBatch = 1_000

// Purge removes the keys that have expired, by the database's clock, the oldest
// first, in transactions of at most 1,000 rows. It returns how many it removed, also
// together with an error. Charges, emails and the ledger stay.
//
// It need not run for keys to expire, only for the table not to grow. Several
// processes may purge at once; they pass over each other's rows, and over one that is
// being claimed anew.
func (s *Server) Purge(ctx context.Context) (removed int64, err error) {
	for {
		done, err := s.pool.Exec(ctx, `
DELETE FROM idempotency_keys WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM idempotency_keys WHERE created_at <= now() - $1::interval
    ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED))`, s.retention, purgeBatch)
		if err != nil {
			return removed, fmt.Errorf("purge idempotency keys, %d removed before: %w", removed, err)
		}
		removed += done.RowsAffected()
		if done.RowsAffected() < purgeBatch {
			return removed, nil
		}
	}
}
