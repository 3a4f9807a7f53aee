package kafkatx

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// abortTimeout bounds an abort. Where it isn't enough, the next session's
// InitProducerID aborts, or at last the transaction timeout.
const abortTimeout = 5 * time.Second

// transaction is what becomes visible together: some input and its output. Without
// [ExactlyOnce] it is only the unit in which offsets are committed.
//
// The session's goroutine fills it and closes it; a goroutine of its own produces what it
// is given and then ends it, while the session fills the next one.
type transaction struct {
	session *session
	slot    int // of the ring
	begun   time.Time
	ends    time.Time // when the commit interval is over

	before gates // of the transaction before
	gates  gates
	done   chan struct{} // closed when nothing more happens in it

	// Until feed is closed these are the session's, and afterwards the transaction's.
	feed   chan outgoing
	polled int           // input records taken in
	input  []*kgo.Record // of them those that are done once the transaction is, in the order polled
	worked []*kgo.Record // of those: what the handler was given, and not a dead letter
	starts offsets       // of the first input record: where an abort rewinds to
	next   offsets       // behind the last input record handled: what a commit commits
	cause  error         // why it was given up; nil if it is to be committed

	// The transaction's own, and the session's when it is done.
	sent       int   // records given to the producer
	decided    bool  // by the participant, for certain or perhaps: never to be aborted
	bare       bool  // it has offsets and no records, so that the client takes it for empty
	err        error // why it is not committed; nil if it is
	abortError error // why it could not even be aborted

	mu     sync.Mutex  // guards the rest: promises run on the producer's goroutines
	failed []failure   // of records that the producer could not deliver
	output *kgo.Record // one that it has delivered
}

// outgoing is what came of a batch of input records.
type outgoing struct {
	records      []*kgo.Record
	batch        []*kgo.Record
	isDeadLetter bool
}

// feedDepth is how many batches wait for the records of the transaction before to be
// acknowledged, until the handler does.
const feedDepth = 64

// begin begins a transaction with the next producer of the ring, which must be free.
func (s *session) begin(ctx context.Context) error {
	slot := s.begun % len(s.ring)
	if s.transactional() {
		if err := s.ring[slot].BeginTransaction(); err != nil {
			return fmt.Errorf("begin transaction: %w", err)
		}
	}
	s.begun++
	now := time.Now()
	tx := &transaction{
		session: s,
		slot:    slot,
		begun:   now,
		ends:    now.Add(s.config.CommitInterval),
		before:  s.last,
		gates:   newGates(),
		done:    make(chan struct{}),
		feed:    make(chan outgoing, feedDepth),
		starts:  make(offsets),
		next:    make(offsets),
	}
	s.open, s.last = tx, tx.gates
	go tx.run(s.flow)
	if s.transactional() {
		return s.pass(ctx, Begun, nil)
	}
	return nil
}

// add takes polled records into the transaction.
func (tx *transaction) add(records []*kgo.Record) {
	for i, r := range records {
		if i > 0 && samePartition(r, records[i-1]) {
			continue // only the first of a run can be the first of its partition
		}
		p := partition{r.Topic, r.Partition}
		if _, ok := tx.starts[p]; !ok {
			tx.starts[p] = kgo.EpochOffset{Epoch: r.LeaderEpoch, Offset: r.Offset}
		}
	}
	tx.polled += len(records)
}

// handled says what came of a batch, which is done once the transaction is. Whether the
// records arrive is known when it ends.
func (tx *transaction) handled(out outgoing) {
	for i, r := range out.batch {
		if i+1 < len(out.batch) && samePartition(r, out.batch[i+1]) {
			continue // only the last of a run can be the last of its partition
		}
		tx.next[partition{r.Topic, r.Partition}] = kgo.EpochOffset{Epoch: r.LeaderEpoch, Offset: r.Offset + 1}
	}
	tx.input = append(tx.input, out.batch...)
	if !out.isDeadLetter {
		tx.worked = append(tx.worked, out.batch...)
	}
	select {
	case tx.feed <- out:
	case <-tx.done: // it has failed already
	}
}

// run produces what it is given, and when the feed is closed it commits, or aborts.
func (tx *transaction) run(ctx context.Context) {
	defer close(tx.done)
	tx.err = tx.live(ctx)
	tx.gates.settle(tx.err == nil)
	if tx.err == nil {
		return
	}
	tx.session.alarm.ring()
	if tx.session.transactional() && !tx.decided {
		tx.abortError = tx.abort()
	}
}

func (tx *transaction) live(ctx context.Context) error {
	if err := tx.before.produced.wait(ctx); err != nil {
		return err
	}
	for out := range tx.feed {
		tx.produce(ctx, out)
	}
	if tx.cause == nil {
		return tx.commit(ctx)
	}
	if !tx.session.transactional() && len(tx.next) > 0 {
		// What was handled before the failure can't be taken back. It is committed, and
		// only the rest comes again.
		if err := tx.commit(ctx); err != nil {
			return err
		}
		maps.Copy(tx.starts, tx.next)
	}
	return tx.cause
}

func (tx *transaction) producer() *kgo.Client { return tx.session.ring[tx.slot] }

// produce sends what came of a batch. Whether it arrived is known at flush.
func (tx *transaction) produce(ctx context.Context, out outgoing) {
	tx.sent += len(out.records)
	promise := func(r *kgo.Record, err error) {
		tx.mu.Lock()
		defer tx.mu.Unlock()
		if err == nil {
			tx.output = r
			return
		}
		tx.failed = append(tx.failed, failure{
			batch:      out.batch,
			deadLetter: out.isDeadLetter,
			err:        fmt.Errorf("produce to topic %s: %w", r.Topic, err),
		})
	}
	producer := tx.producer()
	for _, r := range out.records {
		producer.Produce(ctx, r, promise)
	}
}

// flush waits until every record sent was acknowledged. If the broker refused one
// for what it is, the error is a [failure].
func (tx *transaction) flush(ctx context.Context) error {
	if err := tx.producer().Flush(ctx); err != nil {
		return fmt.Errorf("flush %d records: %w", tx.sent, err)
	}
	tx.mu.Lock()
	defer tx.mu.Unlock()
	for _, f := range tx.failed {
		if refused(f.err) {
			f.err = Permanent(f.err)
			return &f
		}
	}
	if len(tx.failed) > 0 {
		return tx.failed[0].err
	}
	return nil
}

// commit makes the transaction visible.
func (tx *transaction) commit(ctx context.Context) error {
	s := tx.session
	if err := tx.flush(ctx); err != nil {
		return err
	}
	tx.gates.produced.settle(true)
	if err := s.pass(ctx, Produced, tx.input); err != nil {
		return err
	}
	if s.config.Participant != nil {
		return tx.commitTogether(ctx)
	}
	if !s.transactional() || tx.sent == 0 {
		// Nothing was produced that the offsets would have to be atomic with. The
		// plain commit is fenced by the group's generation all the same. It counts at
		// once, so that everything before must.
		if err := tx.before.committed.wait(ctx); err != nil {
			return err
		}
		if err := s.commitOffsets(ctx, tx.next); err != nil {
			return err
		}
		tx.gates.offsets.settle(true)
	} else {
		if _, _, err := tx.sendOffsets(ctx); err != nil {
			return err
		}
		if err := s.pass(ctx, OffsetsSent, tx.input); err != nil {
			return err
		}
	}
	if err := tx.end(ctx); err != nil {
		return err
	}
	return s.pass(ctx, Committed, tx.input)
}

// end commits on the broker, unless a transaction before may still be aborted.
func (tx *transaction) end(ctx context.Context) error {
	if err := tx.before.committed.wait(ctx); err != nil {
		return err
	}
	if tx.session.transactional() {
		// Without a record sent this only tells the client that it is over.
		if err := tx.producer().EndTransaction(ctx, kgo.TryCommit); err != nil {
			return fmt.Errorf("commit transaction: %w", err)
		}
	}
	tx.gates.committed.settle(true)
	return nil
}

// commitTogether makes the transaction visible if the participant says so. Its offsets
// are in it even where nothing was produced: they must be atomic with what the
// participant does.
func (tx *transaction) commitTogether(ctx context.Context) error {
	s := tx.session
	tx.bare = tx.sent == 0
	id, epoch, err := tx.sendOffsets(ctx)
	if err != nil {
		return err
	}
	if err := s.pass(ctx, OffsetsSent, tx.input); err != nil {
		return err
	}
	prepared, err := tx.decide(ctx, id, epoch)
	if err != nil {
		return err
	}
	if tx.bare {
		if err := tx.endBare(ctx, id, epoch); err != nil {
			return fmt.Errorf("commit transaction: %w", err)
		}
	}
	if err := tx.end(ctx); err != nil {
		return err
	}
	if err := s.pass(ctx, Committed, tx.input); err != nil {
		return err
	}
	s.config.Participant.Ended(ctx, prepared)
	if tx.bare {
		return s.renewProducer(ctx, tx.slot)
	}
	return nil
}

// abort takes back what was produced. After an error the session must end: the
// InitProducerID of the next one aborts what is left.
func (tx *transaction) abort() error {
	if tx.bare {
		return errors.New("abort transaction: it has nothing but offsets, which the client knows nothing of")
	}
	ctx, cancel := context.WithTimeout(context.Background(), abortTimeout)
	defer cancel()
	if err := tx.producer().AbortBufferedRecords(ctx); err != nil {
		return fmt.Errorf("abort transaction: drop unsent records: %w", err)
	}
	if err := tx.producer().EndTransaction(ctx, kgo.TryAbort); err != nil {
		return fmt.Errorf("abort transaction: %w", err)
	}
	return nil
}

// sendOffsets sends input offsets into the producer's open transaction, in the
// name of the member and generation that the group knows (KIP-447). It is sent by
// hand, and not by the consumer, because the producer is a client of its own.
//
// It waits for the offsets of the transaction before. The order in which the group's
// coordinator takes the offsets in is the one that counts: markers of two transactions
// are written at the same time, by two coordinators perhaps, and arrive in any order. Of
// the offsets that a marker commits, the coordinator keeps those that stand behind the
// present ones in __consumer_offsets, and drops the others (Apache Kafka,
// OffsetMetadataManager.replayEndTransactionMarker: "We always keep the most recent
// committed offset"). So committed offsets never go back.
//
// It returns the producer id and epoch that the transaction has.
func (tx *transaction) sendOffsets(ctx context.Context) (id int64, epoch int16, err error) {
	if err := tx.before.offsets.wait(ctx); err != nil {
		return 0, 0, err
	}
	s := tx.session
	ctx, cancel := context.WithTimeout(ctx, s.config.TransactionTimeout)
	defer cancel()
	id, epoch, err = tx.producer().ProducerID(ctx)
	if err != nil {
		return id, epoch, fmt.Errorf("send offsets: %w", err)
	}
	if !s.implicitOffsets {
		if err := tx.addOffsets(ctx, id, epoch); err != nil {
			return id, epoch, fmt.Errorf("add group %s to the transaction: %w", s.config.Group, err)
		}
	}

	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.TransactionalID = tx.transactionalID()
	req.ProducerID, req.ProducerEpoch = id, epoch
	req.Group = s.config.Group
	req.MemberID, req.Generation = s.consumer.GroupMetadata()
	req.InstanceID = &s.config.Instance
	for topic, partitions := range tx.next.byTopic() {
		t := kmsg.NewTxnOffsetCommitRequestTopic()
		t.Topic, t.TopicID = topic, s.topicIDs[topic] // by name up to version 5, by id after it
		for number, at := range partitions {
			p := kmsg.NewTxnOffsetCommitRequestTopicPartition()
			p.Partition, p.Offset, p.LeaderEpoch = number, at.Offset, at.Epoch
			t.Partitions = append(t.Partitions, p)
		}
		req.Topics = append(req.Topics, t)
	}
	err = retriable(ctx, func() error {
		resp, err := req.RequestWith(ctx, tx.producer())
		if err != nil {
			return err
		}
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return fmt.Errorf("partition %d of topic %s: %w", p.Partition, s.config.Input, err)
				}
			}
		}
		return nil
	})
	if err != nil {
		return id, epoch, fmt.Errorf("send offsets of group %s, member %s, generation %d: %w", req.Group, req.MemberID, req.Generation, err)
	}
	tx.gates.offsets.settle(true)
	return id, epoch, nil
}

func (tx *transaction) transactionalID() string { return tx.session.transactionalID(tx.slot) }

func (tx *transaction) addOffsets(ctx context.Context, id int64, epoch int16) error {
	req := kmsg.NewPtrAddOffsetsToTxnRequest()
	req.TransactionalID = tx.transactionalID()
	req.ProducerID, req.ProducerEpoch = id, epoch
	req.Group = tx.session.config.Group
	return retriable(ctx, func() error {
		resp, err := req.RequestWith(ctx, tx.producer())
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(resp.ErrorCode)
	})
}

// commitOffsets commits input offsets outside any transaction.
func (s *session) commitOffsets(ctx context.Context, o offsets) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.TransactionTimeout)
	defer cancel()
	var failed error
	s.consumer.CommitOffsetsSync(ctx, o.byTopic(), func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		failed = err
		if err != nil {
			return
		}
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil && failed == nil {
					failed = fmt.Errorf("partition %d of topic %s: %w", p.Partition, s.config.Input, err)
				}
			}
		}
	})
	if failed != nil {
		return fmt.Errorf("commit offsets of group %s: %w", s.config.Group, failed)
	}
	return nil
}
