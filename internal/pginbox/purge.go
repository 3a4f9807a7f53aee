package pginbox

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
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

// purgePages is how many pages of the table are searched by one statement.
const purgePages = 256

// Purge removes the inbox rows of this inbox's handlers that are older than the
// policy's window, by the server's clock, in transactions of bounded size. It returns
// how many it removed, also together with an error. Dead letters stay.
//
// It reads the whole table, from its first page to its last, because every row would
// otherwise have to go into an index that nothing but the purge looks at, and that was a
// quarter of what an insert cost. So it is to be called now and then, such as every hour,
// and not all the time.
//
// Several processes may purge at once; they pass over each other's rows. Those that a
// VACUUM FULL or CLUSTER moves meanwhile may be left for the next time.
func (in *Inbox) Purge(ctx context.Context, p PurgePolicy) (removed int64, err error) {
	if err := p.Validate(); err != nil {
		return 0, fmt.Errorf("pginbox: purge: %w", err)
	}
	batch := int64(p.BatchRows)
	if batch == 0 {
		batch = 10_000
	}
	var (
		before time.Time
		pages  int64
	)
	err = in.pool.QueryRow(ctx, `SELECT now() - $1::interval, pg_relation_size($2::text::regclass) / current_setting('block_size')::int`,
		p.Window, in.ledger.table()).Scan(&before, &pages)
	if err != nil {
		return 0, fmt.Errorf("pginbox: purge: %w", err)
	}
	for page := int64(0); page < pages; {
		tag, err := in.pool.Exec(ctx, in.ledger.purge(), tid(page), tid(page+purgePages), before, in.names(), batch)
		if err != nil {
			return removed, fmt.Errorf("pginbox: purge, %d rows removed before: %w", removed, err)
		}
		removed += tag.RowsAffected()
		if tag.RowsAffected() < batch { // else there may be more in these pages
			page += purgePages
		}
	}
	return removed, nil
}

// tid is where a page begins. Pages are numbered with 32 bits, and the last number is that
// of none.
func tid(page int64) pgtype.TID {
	return pgtype.TID{BlockNumber: uint32(min(page, math.MaxUint32)), Valid: true}
}
