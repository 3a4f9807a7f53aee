package contest

import (
	"context"
	"time"
)

// scope is where effects land.
type scope interface {
	// follow notes from now on when effects can first be seen, where only somebody who
	// is there can tell.
	follow(context.Context, *ledger) error
	// look tells what can be seen now.
	look(context.Context) (mark, error)
	// settled reports whether the effects of so many events are there, as a mark has
	// shown and a closer look confirms. acknowledged says that the contender thinks so.
	settled(ctx context.Context, m mark, acknowledged bool, events int) (bool, error)
	// audit adds every effect to the ledger. It is called when the contender has ended.
	audit(context.Context, *ledger) error
	// visible is how many of the effects that the audit found could be seen at a mark.
	visible(mark) int
	// seen is when the first effect of each event could be seen, after the audit; zero
	// for those without any.
	seen() []time.Time
	close(context.Context) error
}

// mark is what one look has shown.
type mark struct {
	at time.Time
	// effects changes when there are more, and is never less than how many there are.
	effects int64
	stable  []int64 // in Kafka, last stable offsets by partition
	wal     int64   // in Postgres, the position in the write-ahead log in bytes
}
