// Command librdkafka consumes, transforms and produces exactly once through
// confluent-kafka-go, tuned for throughput as librdkafka's docs say (INTRODUCTION.md,
// "Performance"; CONFIGURATION.md).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"

	"github.com/delivered-twice/delivered-twice/benchmarks/peers/internal/peer"
)

var (
	linger      time.Duration
	compression string
)

func main() {
	peer.Main(1, func(f *flag.FlagSet) {
		f.DurationVar(&linger, "linger", 50*time.Millisecond, "linger.ms of the producer; a commit does not wait for it")
		f.StringVar(&compression, "compression", "none", "compression.type of the producer")
	}, func(peer.Flags) {
		for _, config := range []kafka.ConfigMap{consumerTuning(), producerTuning()} {
			for _, name := range slices.Sorted(maps.Keys(config)) {
				peer.Setting(name, config[name])
			}
		}
	}, run)
}

func consumerTuning() kafka.ConfigMap {
	return kafka.ConfigMap{
		"queued.min.messages":        1_000_000,
		"queued.max.messages.kbytes": 128 << 10,
		"fetch.message.max.bytes":    10 << 20,
		"fetch.max.bytes":            100 << 20,
		"fetch.wait.max.ms":          10,
		"fetch.queue.backoff.ms":     5,
		"check.crcs":                 false,
		"isolation.level":            "read_committed",
	}
}

func producerTuning() kafka.ConfigMap {
	return kafka.ConfigMap{
		"linger.ms":                    int(linger.Milliseconds()),
		"batch.num.messages":           10_000,
		"batch.size":                   1_000_000,
		"queue.buffering.max.messages": 1_000_000,
		"queue.buffering.max.kbytes":   1 << 20,
		"compression.type":             compression,
		"partitioner":                  "murmur2_random",
		// A message that fails makes its transaction fail; no report for each is needed.
		"go.delivery.reports": false,
	}
}

func run(ctx context.Context, w peer.Worker) error {
	brokers := strings.Join(w.Brokers, ",")
	config := consumerTuning()
	maps.Copy(config, kafka.ConfigMap{
		"bootstrap.servers":  brokers,
		"client.id":          "librdkafka",
		"group.id":           w.Group,
		"auto.offset.reset":  "earliest",
		"enable.auto.commit": false,
	})
	consumer, err := kafka.NewConsumer(&config)
	if err != nil {
		return err
	}
	config = producerTuning()
	maps.Copy(config, kafka.ConfigMap{
		"bootstrap.servers":      brokers,
		"client.id":              "librdkafka",
		"transactional.id":       w.Group + "-" + w.Name,
		"transaction.timeout.ms": 10_000,
	})
	producer, err := kafka.NewProducer(&config)
	if err != nil {
		return err
	}
	defer producer.Close()
	if err := producer.InitTransactions(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	l := &loop{Worker: w, consumer: consumer, producer: producer}
	if err := consumer.Subscribe(w.Input, l.rebalanced); err != nil {
		return err
	}
	err = l.run(ctx)
	return errors.Join(err, consumer.Close())
}

// loop is one consumer with its producer. Everything is called by one goroutine, the
// rebalance too, from within Poll.
type loop struct {
	peer.Worker
	consumer *kafka.Consumer
	producer *kafka.Producer
	open     bool // a transaction is
	opened   time.Time
}

// rebalanced ends the transaction before partitions go.
func (l *loop) rebalanced(_ *kafka.Consumer, event kafka.Event) error {
	switch event := event.(type) {
	case kafka.AssignedPartitions:
		defer l.Ready()
		return l.consumer.Assign(event.Partitions)
	case kafka.RevokedPartitions:
		if l.consumer.AssignmentLost() {
			return errors.Join(l.abort(), l.consumer.Unassign())
		}
		return errors.Join(l.commit(), l.consumer.Unassign())
	}
	return nil
}

func (l *loop) run(ctx context.Context) error {
	const idle = 10 // ms
	for ctx.Err() == nil {
		event := l.consumer.Poll(idle)
		switch event := event.(type) {
		case *kafka.Message:
			if err := l.pass(event); err != nil {
				return err
			}
		case kafka.Error:
			if event.IsFatal() {
				return event
			}
		}
		// A look at the clock for each message costs little, and no interval is missed.
		if l.open && time.Since(l.opened) >= l.CommitInterval {
			if err := l.commit(); err != nil {
				return err
			}
		}
	}
	return l.commit()
}

func (l *loop) pass(in *kafka.Message) error {
	if in.TopicPartition.Error != nil {
		return in.TopicPartition.Error
	}
	if !l.open {
		if err := l.producer.BeginTransaction(); err != nil {
			return err
		}
		l.open, l.opened = true, time.Now()
	}
	out := &kafka.Message{
		TopicPartition: kafka.TopicPartition{Topic: &l.Output, Partition: kafka.PartitionAny},
		Key:            in.Key,
		Value:          in.Value,
		Headers:        in.Headers,
		Timestamp:      in.Timestamp,
	}
	for {
		err := l.producer.Produce(out, nil)
		if failed, ok := err.(kafka.Error); !ok || failed.Code() != kafka.ErrQueueFull {
			return err
		}
		l.producer.Flush(10)
	}
}

// commit commits the output with the offsets up to here. What cannot be committed is
// aborted, and the process ends: whoever starts it again begins where the last commit
// was.
func (l *loop) commit() error {
	if !l.open {
		return nil
	}
	l.open = false
	ctx := context.Background()
	positions, err := l.positions()
	if err == nil {
		var metadata *kafka.ConsumerGroupMetadata
		if metadata, err = l.consumer.GetConsumerGroupMetadata(); err == nil {
			err = l.producer.SendOffsetsToTransaction(ctx, positions, metadata)
		}
	}
	if err == nil {
		err = l.producer.CommitTransaction(ctx)
	}
	if err != nil {
		l.open = true
		return errors.Join(fmt.Errorf("commit: %w", err), l.abort())
	}
	return nil
}

// positions are those behind the last message of each partition that had one.
func (l *loop) positions() ([]kafka.TopicPartition, error) {
	assigned, err := l.consumer.Assignment()
	if err != nil {
		return nil, err
	}
	positions, err := l.consumer.Position(assigned)
	return slices.DeleteFunc(positions, func(p kafka.TopicPartition) bool { return p.Offset < 0 }), err
}

func (l *loop) abort() error {
	if !l.open {
		return nil
	}
	l.open = false
	return l.producer.AbortTransaction(context.Background())
}
