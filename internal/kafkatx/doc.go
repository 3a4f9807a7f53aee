// Package kafkatx consumes from Kafka, transforms, and produces to Kafka so that
// the input offsets and the output records of a batch become visible in one
// atomic step: Kafka's "exactly-once semantics".
//
// # What is promised
//
// With [ExactlyOnce], a reader on the read_committed isolation level sees the
// output of every input record exactly once, and the outputs of one input
// partition in the order of its records, whatever dies and whenever: this
// process, another member of the group, the connection, the broker.
//
// # How
//
// Each instance has transactional producers and, apart from them, a consumer. A
// transaction is: poll, call the handler, produce, wait until every record is
// acknowledged, send the input offsets into the same transaction
// (TxnOffsetCommit), end the transaction (EndTxn).
//
//   - A new incarnation first initialises its TransactionalIDs, which are always the
//     same ones for the same group and instance, and those that an earlier incarnation
//     with more of them may have used. The broker then aborts whatever the earlier
//     incarnation left open and fences it off by a higher ProducerEpoch (KIP-98). Only
//     then are offsets fetched.
//   - Offsets are fetched "stable": the broker withholds them while a transaction
//     that would move them is still open (KIP-447).
//   - Offsets are sent with the group's generation and member id, so a member that
//     lost its partitions and doesn't know yet is refused and aborts (KIP-447).
//   - Partitions never leave in the middle of a transaction: a rebalance waits until
//     all have ended, and none begins meanwhile.
//
// # Transactions in flight
//
// After EndTxn was answered the broker still writes the transaction's markers, and lets
// the next one of the same TransactionalID wait for them, 20 ms at a time
// (add.partitions.to.txn.retry.backoff.ms). So transactions take turns on several ids
// ([Config.TransactionsInFlight]), each with a producer of its own, and the next one polls,
// handles and produces while the one before ends. What has to come in order waits:
//
//   - its records, until those of the one before are acknowledged, for requests of two
//     producers may overtake each other;
//   - its offsets, until those of the one before are accepted: so committed offsets never
//     go back, in whatever order markers arrive;
//   - its EndTxn, until the one before was answered with success: from then on nothing can
//     abort that one any more.
//
// When a transaction fails, so do all after it, and none before it; the input goes back to
// where the first of them began. Readers see no difference: of each partition they see
// transactions in the order of their records, since the last stable offset stays below the
// first one that is open.
//
// # Where it stops
//
//   - Only Kafka is covered. What a handler does elsewhere (a database, an HTTP
//     API) is done again when its transaction is aborted.
//   - A reader on read_uncommitted, the default level of most clients, sees aborted
//     attempts too.
//   - An event that its publisher sent twice is two records, and both are
//     processed.
//   - A transaction that outlives the transaction timeout is aborted by the broker;
//     the records come again.
//   - While a transaction is open, read_committed readers of the partitions it
//     wrote wait behind it: the last stable offset stays below the high watermark.
//     If an instance dies and is not started again, they wait until the
//     transaction timeout.
//
// # Less than that
//
// With [IdempotentProducer] and [AtLeastOnce] the output is flushed and then the
// offsets are committed: a crash in between does the work again, and every reader
// sees both, for each batch in flight. The two differ in what a retry inside the
// producer does, after a connection was lost between the broker's taking a batch and
// its answer: nothing with the first, a duplicate with the second.
package kafkatx
