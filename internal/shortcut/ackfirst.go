package shortcut

// AckFirst acknowledges the events, and works then: at most once.
//
// It does what [None] does; that the acknowledgement comes first is the consumer's
// doing ([github.com/delivered-twice/delivered-twice/internal/pginbox.ConsumerOptions],
// AcknowledgeFirst).
//
// It holds as long as nothing stops between the two. A death after acknowledged,
// begun or worked loses the batch: nobody will deliver it again, and nothing tells
// that it is missing. So does a process that is told to stop while it waits for
// Postgres. A COMMIT whose answer is lost is done again, and the events are
// duplicated; so is an event that its publisher sent twice.
const AckFirst Guard = "ack-first"
