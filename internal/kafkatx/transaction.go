package kafkatx

import (
	"context"
	"errors"
	"fmt"
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
type transaction struct {
	session *session
	begun   time.Time
	ends    time.Time     // when the commit interval is over
	input   []*kgo.Record // in the order polled
	worked  []*kgo.Record // of the input: what the handler was given, and not a dead letter
	starts  offsets       // of the first input record: where an abort rewinds to
	next    offsets       // behind the last input record handled: what a commit commits
	sent    int           // records given to the producer
	decided bool          // by the participant, for certain or perhaps: never to be aborted
	bare    bool          // it has offsets and no records, so that the client takes it for empty

	mu     sync.Mutex  // guards the rest: promises run on the producer's goroutines
	failed []failure   // of records that the producer could not deliver
	output *kgo.Record // one that it has delivered
}

func (s *session) begin(ctx context.Context) (*transaction, error) {
	if s.transactional() {
		if err := s.producer.BeginTransaction(); err != nil {
			return nil, fmt.Errorf("begin transaction: %w", err)
		}
	}
	now := time.Now()
	tx := &transaction{
		session: s,
		begun:   now,
		ends:    now.Add(s.config.CommitInterval),
		starts:  make(offsets),
		next:    make(offsets),
	}
	if s.transactional() {
		if err := s.pass(ctx, Begun, nil); err != nil {
			return tx, err
		}
	}
	return tx, nil
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
	tx.input = append(tx.input, records...)
}

// handled says that records are done once the transaction is.
func (tx *transaction) handled(records []*kgo.Record) {
	for i, r := range records {
		if i+1 < len(records) && samePartition(r, records[i+1]) {
			continue // only the last of a run can be the last of its partition
		}
		tx.next[partition{r.Topic, r.Partition}] = kgo.EpochOffset{Epoch: r.LeaderEpoch, Offset: r.Offset + 1}
	}
}

// produce sends what came of a batch. Whether it arrived is known at flush.
func (tx *transaction) produce(ctx context.Context, out *kgo.Record, batch []*kgo.Record, isDeadLetter bool) {
	tx.sent++
	tx.session.producer.Produce(ctx, out, func(delivered *kgo.Record, err error) {
		tx.mu.Lock()
		defer tx.mu.Unlock()
		if err == nil {
			tx.output = delivered
			return
		}
		tx.failed = append(tx.failed, failure{
			batch:      batch,
			deadLetter: isDeadLetter,
			err:        fmt.Errorf("produce to topic %s: %w", out.Topic, err),
		})
	})
}

// flush waits until every record sent was acknowledged. If the broker refused one
// for what it is, the error is a [failure].
func (tx *transaction) flush(ctx context.Context) error {
	if err := tx.session.producer.Flush(ctx); err != nil {
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
	if err := s.pass(ctx, Produced, tx.input); err != nil {
		return err
	}
	if s.config.Participant != nil {
		return tx.commitTogether(ctx)
	}
	if !s.transactional() || tx.sent == 0 {
		// Nothing was produced that the offsets would have to be atomic with. The
		// plain commit is fenced by the group's generation all the same.
		if err := s.commitOffsets(ctx, tx.next); err != nil {
			return err
		}
	} else {
		if _, _, err := s.sendOffsets(ctx, tx.next); err != nil {
			return err
		}
		if err := s.pass(ctx, OffsetsSent, tx.input); err != nil {
			return err
		}
	}
	if s.transactional() {
		// Without a record sent this only tells the client that it is over.
		if err := s.producer.EndTransaction(ctx, kgo.TryCommit); err != nil {
			return fmt.Errorf("commit transaction: %w", err)
		}
	}
	return s.pass(ctx, Committed, tx.input)
}

// commitTogether makes the transaction visible if the participant says so. Its offsets
// are in it even where nothing was produced: they must be atomic with what the
// participant does.
func (tx *transaction) commitTogether(ctx context.Context) error {
	s := tx.session
	tx.bare = tx.sent == 0
	id, epoch, err := s.sendOffsets(ctx, tx.next)
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
		if err := s.end(ctx, id, epoch); err != nil {
			return fmt.Errorf("commit transaction: %w", err)
		}
	}
	if err := s.producer.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return fmt.Errorf("commit transaction: %w", err)
	}
	if err := s.pass(ctx, Committed, tx.input); err != nil {
		return err
	}
	s.config.Participant.Ended(ctx, prepared)
	if tx.bare {
		return s.renewProducer(ctx)
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
	if err := tx.session.producer.AbortBufferedRecords(ctx); err != nil {
		return fmt.Errorf("abort transaction: drop unsent records: %w", err)
	}
	if err := tx.session.producer.EndTransaction(ctx, kgo.TryAbort); err != nil {
		return fmt.Errorf("abort transaction: %w", err)
	}
	return nil
}

// sendOffsets sends input offsets into the producer's open transaction, in the
// name of the member and generation that the group knows (KIP-447). It is sent by
// hand, and not by the consumer, because the producer is a client of its own.
//
// It returns the producer id and epoch that the transaction has.
func (s *session) sendOffsets(ctx context.Context, o offsets) (id int64, epoch int16, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.config.TransactionTimeout)
	defer cancel()
	id, epoch, err = s.producer.ProducerID(ctx)
	if err != nil {
		return id, epoch, fmt.Errorf("send offsets: %w", err)
	}
	transactionalID := TransactionalID(s.config.Group, s.config.Instance)
	if !s.implicitOffsets {
		if err := s.addOffsets(ctx, transactionalID, id, epoch); err != nil {
			return id, epoch, fmt.Errorf("add group %s to the transaction: %w", s.config.Group, err)
		}
	}

	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.TransactionalID = transactionalID
	req.ProducerID, req.ProducerEpoch = id, epoch
	req.Group = s.config.Group
	req.MemberID, req.Generation = s.consumer.GroupMetadata()
	req.InstanceID = &s.config.Instance
	for topic, partitions := range o.byTopic() {
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
		resp, err := req.RequestWith(ctx, s.producer)
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
	return id, epoch, nil
}

func (s *session) addOffsets(ctx context.Context, transactionalID string, id int64, epoch int16) error {
	req := kmsg.NewPtrAddOffsetsToTxnRequest()
	req.TransactionalID = transactionalID
	req.ProducerID, req.ProducerEpoch = id, epoch
	req.Group = s.config.Group
	return retriable(ctx, func() error {
		resp, err := req.RequestWith(ctx, s.producer)
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
