// Package pginbox is the inbox, also known as the idempotent consumer: it does the
// work of an event in PostgreSQL once, although the event is delivered at least once.
//
// # The problem
//
// Kafka, a queue, a webhook: whatever redelivers until it is acknowledged delivers
// some events twice. A process that dies between doing the work and acknowledging it
// has done the work, and gets the event again. Acknowledging first only turns the
// duplicate into a loss.
//
// # How
//
// The event's id and the work go into one transaction, the id first:
//
//	BEGIN;
//	INSERT INTO processed_messages (handler, event_id)
//	SELECT 'warehouse', unnest(ARRAY['evt_9f3k', 'evt_9f3l'])
//	ON CONFLICT (event_id, handler) DO NOTHING
//	RETURNING event_id;  -- the fresh ones: only these are worked on
//	INSERT INTO pick_tasks …
//	COMMIT;
//	-- and only now the acknowledgement
//
// (Without ON CONFLICT at first, which is cheaper, and by COPY where they are many: where
// an id is there, that fails, and the batch is tried again like this.) A redelivered id
// finds its row, and there is nothing to do but to acknowledge it. The rest is a matter of
// what happens at the same time, and of what goes wrong:
//
//   - Two deliveries of one event at the same moment: the INSERT of the second waits
//     for the transaction of the first. If that one commits, the event is done; if it
//     rolls back, the second does the work. A SELECT before the INSERT would see
//     nothing in both, and both would do the work.
//   - Two workers that share some ids: all insert in the same order, so one waits for
//     the other, and none deadlocks.
//   - The process dies, or the connection: the server rolls both back, or has
//     committed both.
//   - COMMIT was sent and no answer came: nobody knows what became of it, and nobody
//     needs to. The next attempt inserts first and finds out.
//   - An event that cannot be handled (poison): the batch is tried again in ever
//     smaller parts under savepoints; the others are done, and after
//     [Options].MaxAttempts failures alone it is stored as a dead letter, in the same
//     transaction as its inbox row. It holds nobody up, and comes back to nobody.
//   - An id that a text column can't hold: a dead letter too, at once. With
//     [HashKeys] any id will do.
//   - Several handlers of one event: each has rows and transactions of its own.
//
// # Offsets instead of ids
//
// A consumer of Kafka can instead keep, in the transaction of the work, how far it has
// got ([RememberOffsets]), and start from there:
//
//	BEGIN;
//	UPDATE stored_offsets SET next_offset = 1042
//	WHERE handler = 'warehouse' AND topic = 'orders.paid' AND partition = 3
//	  AND next_offset = 1000 AND fence = 77;  -- one row, or somebody else has it
//	INSERT INTO pick_tasks …
//	COMMIT;
//
// A record that comes again is below the stored offset. Whoever takes a partition over
// ([Inbox.Resume]) draws a new fence, and from then on the former owner, which may be a
// process that stood still and does not know yet, changes no row and rolls back. An
// event that failed alone holds back those that come later until it is done or a dead
// letter. So the work of a partition is done in the order of its records.
//
// The group's offsets are then only for show. A publisher that sends an event twice
// sends two records, and both are done, unless ids are kept too ([RememberBoth]).
//
// # Commits that do not wait for the disk
//
// With [Options].AsynchronousCommit a crash of the database takes back the last
// commits. Stored offsets are taken back with the work, so the events come again.
// Offsets that were acknowledged to Kafka are not: there
// [ConsumerOptions].AcknowledgeAfterFlush acknowledges only what the write-ahead log
// has on disk. A position in that log is not proof enough, because after a crash other
// WAL takes the positions of what was lost; the consumer asks a session that was there
// before the batch, and a session does not survive a crash.
//
// # What is promised
//
// Once [Inbox.Process] has returned nil, each event has been worked on by each handler
// in exactly one committed transaction since its inbox row was last purged, or is a
// dead letter. That holds whatever dies and whenever, and however many processes
// deliver the same events at the same time. Where only offsets are remembered, read
// record for event, and there is nothing to purge; where they are remembered at all,
// the transactions of a partition are committed in the order of its records.
//
// Acknowledging is the caller's part, and must come after. [Consumer] does it for a
// Kafka consumer group; Process knows nothing of groups and serves any source.
// [ConsumerOptions].AcknowledgeFirst turns it round, for comparison: at most once.
//
// # Where it stops
//
//   - Only the database that holds the inbox is covered. An HTTP call or a record
//     that a handler produces to Kafka happens again with every attempt, also when the
//     transaction is rolled back: give the other side an idempotency key, or write
//     what is to be sent into an outbox table, in the transaction.
//   - What comes again after its row was purged is done again. [PurgePolicy] refuses a
//     window that is shorter than redelivery can last; how long that is, only the
//     source can tell. A consumer group whose offsets are lost starts over at the
//     beginning of the topic, so the topic's retention counts.
//   - Ids alone keep no order: an event that failed is done after those that came later
//     in its batch, and a former owner of a partition may be the one that does it.
//   - Ids are believed. Two events under one id are one, and one event under two ids
//     is two. Offsets are believed, too: a topic that is deleted and created anew under
//     its name begins again at 0, and its rows in stored_offsets must be deleted.
//   - A commit that the server forgets (synchronous_commit off and a crash, a failover
//     to a replica that lagged) takes what is remembered and the work with it. The event
//     is lost if only ids are remembered and it was acknowledged by then. A failover
//     can take back a fence as well, and let a former owner in again.
//   - Attempts are counted in memory: a process that dies gives an event fresh ones.
//
// # What it costs
//
// One round trip more than the work alone, for a whole batch (from 500 events on four),
// and with ids a row and an index entry an event. The purge reads the whole table of ids,
// every hour or so. A batch that has an id that is there is tried twice, which
// leaves dead rows and an error in the server's log; the 16 batches after it are not.
//
// One Consumer works on one batch at a time. More of them in one process, as members of
// one group, share the partitions and keep more connections busy. The client fetches
// what comes next while a batch is being processed.
//
// The table of ids cannot be partitioned by seen_at, because a
// unique index of a partitioned table must contain the partition key (PostgreSQL
// manual, "Table Partitioning"), and the same id would fit in again under another
// seen_at.
package pginbox
