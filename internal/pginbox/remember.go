package pginbox

// Remember is what is kept of an event that is done, so that it isn't done again.
// Whatever it is, it is kept in the transaction of the work.
type Remember string

const (
	// RememberIDs keeps the event's id in the inbox. It absorbs whatever comes again,
	// from any source and in any order, and a row for each event has to be purged one
	// day. It claims no order: an event that failed alone is tried again after those
	// that came later in its batch.
	RememberIDs Remember = "ids"

	// RememberOffsets keeps, for each handler and partition, the offset of the first
	// record that is not done: one row in all, and nothing to purge. An event is then
	// known by the position of its record, and what a publisher sends twice is done
	// twice. The effects of a partition come in the order of its records, and a former
	// owner of a partition can't write any more. Only for records of Kafka, whose
	// partitions must be claimed with [Inbox.Resume].
	//
	// A handler without stored offsets begins at the start of the topic, whatever its
	// inbox has: to change an inbox in use from ids to offsets, let it catch up with
	// RememberBoth first.
	RememberOffsets Remember = "offsets"

	// RememberBoth keeps both: the order and the fence of RememberOffsets, and an
	// inbox that absorbs what a publisher sends twice.
	RememberBoth Remember = "both"
)

func (r Remember) ids() bool     { return r == RememberIDs || r == RememberBoth }
func (r Remember) offsets() bool { return r == RememberOffsets || r == RememberBoth }
