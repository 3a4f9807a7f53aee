// Command sarama consumes, transforms and produces exactly once through IBM/sarama: a
// consumer group, and for each partition a transactional producer, as in sarama's own
// example (examples/exactly_once). Offsets are sent with the group's generation
// (KIP-447), which that example does not do yet.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/IBM/sarama"

	"github.com/delivered-twice/delivered-twice/benchmarks/peers/internal/peer"
)

var linger time.Duration

func main() {
	peer.Main(1, func(f *flag.FlagSet) {
		f.DurationVar(&linger, "linger", 5*time.Millisecond, "Producer.Flush.Frequency")
	}, func(peer.Flags) {
		c := config()
		peer.Setting("Version", c.Version)
		peer.Setting("Consumer.Fetch.Default", c.Consumer.Fetch.Default)
		peer.Setting("Consumer.MaxWaitTime", c.Consumer.MaxWaitTime)
		peer.Setting("Producer.Flush.Frequency", c.Producer.Flush.Frequency)
		peer.Setting("Producer.Flush.Bytes", c.Producer.Flush.Bytes)
		peer.Setting("Producer.Compression", c.Producer.Compression)
		peer.Setting("Net.MaxOpenRequests", c.Net.MaxOpenRequests)
		peer.Setting("ChannelBufferSize", c.ChannelBufferSize)
		peer.Setting("producers", "one for each partition")
	}, run)
}

func config() *sarama.Config {
	c := sarama.NewConfig()
	c.Version = sarama.MaxVersion
	c.ClientID = "sarama"
	c.ChannelBufferSize = 10_000
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Offsets.AutoCommit.Enable = false // they go into the transaction
	c.Consumer.IsolationLevel = sarama.ReadCommitted
	c.Consumer.Fetch.Default = 4 << 20
	c.Consumer.MaxWaitTime = 10 * time.Millisecond
	c.Consumer.MaxProcessingTime = time.Second
	c.Producer.Idempotent = true
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Producer.Partitioner = sarama.NewHashPartitioner
	c.Producer.Return.Successes = false
	c.Producer.Return.Errors = true
	c.Producer.Flush.Frequency = linger
	if linger > 0 {
		c.Producer.Flush.Bytes = 512 << 10 // without a frequency, what is less would wait for more
	}
	c.Producer.Transaction.Timeout = 10 * time.Second
	c.Net.MaxOpenRequests = 1 // sarama's idempotent producer takes no more
	return c
}

func run(ctx context.Context, w peer.Worker) error {
	group, err := sarama.NewConsumerGroup(w.Brokers, w.Group, config())
	if err != nil {
		return err
	}
	defer group.Close()
	h := &handler{Worker: w, failed: make(chan error, 1)}
	for ctx.Err() == nil {
		if err := group.Consume(ctx, []string{w.Input}, h); err != nil {
			return err
		}
		select {
		case err := <-h.failed:
			return err
		default:
		}
	}
	return nil
}

type handler struct {
	peer.Worker
	failed chan error
}

func (h *handler) Setup(sarama.ConsumerGroupSession) error {
	h.Ready()
	return nil
}

func (h *handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

// ConsumeClaim passes the records of one partition on. Any failure ends the process:
// whoever starts it again begins where the last commit was.
func (h *handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	err := h.consume(session, claim)
	if err != nil {
		select {
		case h.failed <- fmt.Errorf("partition %d: %w", claim.Partition(), err):
		default: // another partition has said so
		}
	}
	return err
}

func (h *handler) consume(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) (err error) {
	c := config()
	c.Producer.Transaction.ID = fmt.Sprintf("%s-%d", h.Group, claim.Partition())
	producer, err := sarama.NewAsyncProducer(h.Brokers, c)
	if err != nil {
		return err
	}
	t := &transactions{handler: h, producer: producer, claim: claim, group: sarama.NewConsumerGroupMetadata(h.Group)}
	t.group.GenerationID, t.group.MemberID = session.GenerationID(), session.MemberID()
	defer func() { err = errors.Join(err, producer.Close()) }()
	ticker := time.NewTicker(max(h.CommitInterval, time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case message, more := <-claim.Messages():
			if !more {
				return t.commit()
			}
			if err := t.pass(message); err != nil {
				return err
			}
		case <-ticker.C:
			if err := t.commit(); err != nil {
				return err
			}
		case failure := <-producer.Errors():
			return failure
		case <-session.Context().Done():
			return t.commit()
		}
	}
}

// transactions are those of one partition, one after the other.
type transactions struct {
	*handler
	producer sarama.AsyncProducer
	claim    sarama.ConsumerGroupClaim
	group    *sarama.ConsumerGroupMetadata
	open     bool
	next     int64 // offset behind the last record
}

func (t *transactions) pass(in *sarama.ConsumerMessage) error {
	if !t.open {
		if err := t.producer.BeginTxn(); err != nil {
			return err
		}
		t.open = true
	}
	headers := make([]sarama.RecordHeader, len(in.Headers))
	for i, header := range in.Headers {
		headers[i] = *header
	}
	out := &sarama.ProducerMessage{
		Topic:     t.Output,
		Key:       sarama.ByteEncoder(in.Key),
		Value:     sarama.ByteEncoder(in.Value),
		Headers:   headers,
		Timestamp: in.Timestamp,
	}
	select {
	case t.producer.Input() <- out:
		t.next = in.Offset + 1
		return nil
	case failure := <-t.producer.Errors():
		return failure
	}
}

// commit commits the output with the offset up to here; it waits until all of it was
// sent.
func (t *transactions) commit() error {
	if !t.open {
		return nil
	}
	t.open = false
	err := t.producer.AddOffsetsToTxnWithGroupMetadata(map[string][]*sarama.PartitionOffsetMetadata{
		t.Input: {{Partition: t.claim.Partition(), Offset: t.next}},
	}, t.group)
	if err == nil {
		err = t.producer.CommitTxn()
	}
	if err != nil {
		return errors.Join(err, t.producer.AbortTxn())
	}
	return nil
}
