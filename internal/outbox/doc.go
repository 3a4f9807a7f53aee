// Package outbox publishes to Kafka what a transaction in PostgreSQL has decided: the
// records are written into a table, in that transaction, and a relay publishes them
// from there.
//
// # The problem
//
// A handler that writes rows and produces records writes to two places, and no order
// of the two is right. Produced first, the records are there although the transaction
// may be rolled back; produced after the commit, they are lost if the process dies in
// between.
//
// # How
//
//	BEGIN;
//	INSERT INTO pick_tasks …;
//	COPY outbox (event_id, topic, record_key, …);  -- Enqueue
//	COMMIT;                                        -- and relays are told (NOTIFY)
//
// And a relay, for some shards at a time:
//
//		BEGIN;
//		SELECT shard FROM outbox_shards … FOR UPDATE SKIP LOCKED;
//		SELECT … FROM outbox WHERE shard = … AND published_at IS NULL … ORDER BY id;
//		-- produce, and wait until all in-sync replicas have it
//		UPDATE outbox SET published_at = …;
//		COMMIT;
//
//	  - A relay, or its connection, dies before it has stamped: the locks are gone, and
//	    whoever comes next publishes the rows again.
//	  - A lower id is committed after a higher one was published: it is pending like any
//	    other row. Pending is what has no stamp; there is no cursor that could be past it.
//	  - Several relays: each locks shards, and the rows of a key are in one shard. Locking
//	    rows alone would let one relay publish a later row of a key while another still
//	    has an earlier one in hand.
//	  - Relays are told of new rows by LISTEN, and look for them now and then as well,
//	    because a notification is lost while nobody listens.
//	  - A relay that stands still with rows in hand loses them when the server ends its
//	    transaction ([Options].PublishTimeout).
//	  - Kafka refuses a record for what it is (it is too large, it lacks the key that a
//	    compacted topic wants): the row is stamped as refused, with the cause, and logged.
//	    Whoever has mended it sets refused_at to NULL again, and it is published.
//	  - Kafka takes nothing for a topic (it is missing, forbidden, without a leader): its
//	    rows stay pending, the log says so at every attempt, and other topics go on.
//
// # What is promised
//
// What is committed is published, at least once, or is refused by Kafka and kept with
// the cause. What is not committed never is.
//
// Each copy of a record comes after a copy of every record of its key and topic whose
// row has a lower id and was committed when the relay took the shard, and that Kafka
// has not refused. So whoever drops copies of what he has seen (an inbox) sees the
// records of a key in the order of their rows, whatever dies and however many relays
// there are. The reason: a relay takes a key's rows from the first that is not stamped
// on, and what is stamped is in Kafka.
//
// The order of the rows is that of the commits where transactions that write for one
// key exclude each other: because they first lock or change a row that stands for the
// key, or because one consumer at a time has the key's partition. Otherwise a lower id
// may be committed, and published, after a higher one.
//
// # Where it stops
//
//   - Duplicates are its nature. They carry the record as it was, event id included: the
//     next consumer must know the id, by an inbox for example.
//   - A record that was refused is missing in the order of its key, and comes late if it
//     comes at all.
//   - A commit that the server forgets (synchronous_commit off and a crash, a failover
//     to a replica that lagged) may have been published.
//   - Order is Kafka's: it ends where a topic gets more partitions, and there is none
//     between topics.
//
// # What it costs
//
// A row with up to three index entries an event, rewritten by the stamp and removed by
// [Purge]: a table with such a turnover lives by its vacuum, and a transaction that is
// open for hours elsewhere slows every relay down.
//
// NOTIFY serializes commits: a transaction that has notified holds a lock on the whole
// cluster of databases from before its commit until it is done, so that notifications
// come in the order of the commits (PreCommit_Notify in src/backend/commands/async.c).
// Where many transactions a second write rows, disable the trigger (ALTER TABLE outbox
// DISABLE TRIGGER outbox_wake) and let [Options].PollInterval find them.
package outbox
