package pginbox

import (
	"context"
	"fmt"
	"time"
)

// PurgePolicy says which inbox rows are no longer needed.
type PurgePolicy struct {
	// Window is the age from which on rows are removed. An event that is delivered
	// again after its row was removed is done again.
	Window time.Duration
	// RedeliveryHorizon is how long after its first delivery an event may still come
	// again, at the latest: as long as the source retries, as long as the topic's
	// retention if consumers may be rewound, and the longest outage on top. Window
	// must not be shorter.
	RedeliveryHorizon time.Duration
	// BatchRows is how many rows are removed in one transaction, at most; the
	// default is 10,000.
	BatchRows int
}

// Validate says what is wrong with the policy, if anything.
func (p PurgePolicy) Validate() error {
	switch {
	case p.RedeliveryHorizon <= 0:
		return fmt.Errorf("redelivery horizon is %v, must be positive: how long after its first delivery may an event still come again?", p.RedeliveryHorizon)
	case p.Window < p.RedeliveryHorizon:
		return fmt.Errorf("purge window of %v is shorter than the redelivery horizon of %v: events that come again in between would be done again; lengthen the window", p.Window, p.RedeliveryHorizon)
	case p.BatchRows < 0:
		return fmt.Errorf("purge batch of %d rows, must not be negative", p.BatchRows)
	}
	return nil
}

// Purge removes the inbox rows of this inbox's handlers that are older than the
// policy's window, by the server's clock, the oldest first, in transactions of
// bounded size. It returns how many it removed, also together with an error. Dead
// letters stay.
//
// Several processes may purge at once; they pass over each other's rows.
func (in *Inbox) Purge(ctx context.Context, p PurgePolicy) (removed int64, err error) {
	if err := p.Validate(); err != nil {
		return 0, fmt.Errorf("pginbox: purge: %w", err)
	}
	batch := int64(p.BatchRows)
	if batch == 0 {
		batch = 10_000
	}
	var before time.Time
	if err := in.pool.QueryRow(ctx, `SELECT now() - $1::interval`, p.Window).Scan(&before); err != nil {
		return 0, fmt.Errorf("pginbox: purge: %w", err)
	}
	// Each batch goes on where the one before ended, and does not walk again over the
	// index entries that it left behind.
	var from time.Time
	for {
		var (
			rows int64
			last *time.Time
		)
		err := in.pool.QueryRow(ctx, in.ledger.purge(), from, before, in.names(), batch).Scan(&rows, &last)
		if err != nil {
			return removed, fmt.Errorf("pginbox: purge, %d rows removed before: %w", removed, err)
		}
		removed += rows
		if rows < batch {
			return removed, nil
		}
		from = *last
	}
}
