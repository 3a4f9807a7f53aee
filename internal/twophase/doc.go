// Package twophase commits work in Postgres together with a Kafka transaction: both, or
// neither.
//
// # What is promised
//
// The work of an event is done in Postgres exactly once, and its output is seen exactly
// once by a read_committed reader, whatever dies and whenever, as long as a transaction
// that is decided is ended before its transaction timeout is over.
//
// # How
//
// Kafka's transaction is the one that can be prepared: with all records acknowledged and
// the offsets sent into it, it can still be committed by anybody who knows its
// transactional id, producer id and epoch, and the broker forgets none of it when a
// process dies. So Postgres decides:
//
//  1. Produce, wait for the acknowledgements, send the offsets.
//  2. In one Postgres transaction do the work and store the Kafka transaction's id and
//     epoch. Its COMMIT is the decision.
//  3. EndTxn(commit). Then the row is removed.
//
// Before an incarnation initialises its transactional id, which aborts what is open under
// it, it commits what a stored row says. Where there is no row, nothing was decided, and
// the abort is right. And since a row is a decision whoever reads it, every member of the
// group also ends the transactions of members that are gone: until then, the offsets of
// their partitions could not be read.
//
//   - Nobody decides behind an incarnation's back: it first draws a fence, which waits for
//     a COMMIT in flight and refuses every later one of its predecessors.
//   - A COMMIT whose answer is lost is looked up in the same way, not guessed at.
//   - EndTxn is sent in version 5, where every transaction has an epoch of its own
//     (KIP-890): repeated, or sent by somebody else, it answers success again and tells
//     the next epoch, so that the owner's client goes on; sent late, it is refused with
//     PRODUCER_FENCED instead of ending a later transaction.
//   - A refused EndTxn does not say whether its transaction was committed before or was
//     aborted. The log does: the next control record of the same producer id, behind a
//     record of the transaction.
//
// # Where it stops
//
// The broker aborts a transaction that is open for longer than its timeout, decided or
// not: Kafka cannot be told that it is (KIP-939 would change that). When every member of
// the group is down for so long, or none can reach Kafka, the work is in Postgres and the
// events come again: it is done twice. That is a loss of the promise, and is kept in the
// table lost_transactions with the ids of the events. So is the transaction of an id that
// another process has initialised between decision and end.
//
// A decision is refused when half of the timeout is over, and Postgres ends a session
// that stands idle in the middle of one for a quarter: at least a quarter is always left
// for EndTxn.
package twophase
