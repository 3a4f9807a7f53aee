package kafkatx

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// defaultBatchBytes is what a producer sends in one batch where the topic's own
// limit can't be read: a little below Kafka's default of 1,048,588 bytes.
const defaultBatchBytes = 1_000_012

// openConsumer joins the group.
func openConsumer(c Config) (*kgo.Client, error) {
	return kgo.NewClient(slices.Concat(c.Client, []kgo.Opt{
		kgo.ConsumerGroup(c.Group),
		kgo.InstanceID(c.Instance),
		kgo.ConsumeTopics(c.Input),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.DisableAutoCommit(),
		kgo.SessionTimeout(c.SessionTimeout),
		kgo.HeartbeatInterval(c.SessionTimeout / 10),
		kgo.RebalanceTimeout(max(c.SessionTimeout, c.TransactionTimeout)),
		// A rebalance waits until the open transaction has ended, and then takes
		// every partition away before the member joins again (an eager balancer):
		// so no transaction begins while the group's generation is changing, which
		// would cost it its offsets.
		kgo.BlockRebalanceOnPoll(),
		kgo.Balancers(kgo.StickyBalancer()),
	})...)
}

// newProducer returns the member's producer. maxBytes says how large a batch a topic
// takes; it is not asked before the first record is produced.
func newProducer(c Config, maxBytes func(topic string) int32) (*kgo.Client, error) {
	opts := slices.Concat(c.Client, []kgo.Opt{
		kgo.ProducerBatchMaxBytesFn(maxBytes),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
	})
	switch c.Guarantee {
	case ExactlyOnce:
		opts = append(opts,
			kgo.TransactionalID(TransactionalID(c.Group, c.Instance)),
			kgo.TransactionTimeout(c.TransactionTimeout))
	case AtLeastOnce:
		opts = append(opts, kgo.DisableIdempotentWrite())
	}
	return kgo.NewClient(opts...)
}

// initialise claims the producer's TransactionalID: from here on an earlier
// incarnation is fenced, and what it left open is aborted.
func initialise(ctx context.Context, c Config, producer *kgo.Client) error {
	if _, _, err := producer.ProducerID(ctx); err != nil {
		return fmt.Errorf("initialise transactional id %s: %w", TransactionalID(c.Group, c.Instance), err)
	}
	return nil
}

// batchLimits reads how large a batch the output topics take. A batch above the
// limit is refused as a whole, with records that did nothing wrong; below it, only
// the one record that is too large by itself is refused, by the client.
func batchLimits(ctx context.Context, admin *kadm.Client, topics ...string) map[string]int32 {
	limits := make(map[string]int32)
	configs, err := admin.DescribeTopicConfigs(ctx, topics...)
	if err != nil {
		return limits // not permitted to read them: the defaults serve
	}
	for _, topic := range configs {
		for _, config := range topic.Configs {
			if config.Key != "max.message.bytes" || config.Value == nil {
				continue
			}
			// The client takes limits from 512 bytes to 1 GiB.
			if n, err := strconv.ParseInt(*config.Value, 10, 32); err == nil {
				limits[topic.Name] = int32(min(max(n, 512), 1<<30))
			}
		}
	}
	return limits
}

// topicIDs returns the ids by which requests of newer versions name topics
// (KIP-516).
func topicIDs(ctx context.Context, admin *kadm.Client, topics ...string) (map[string]kadm.TopicID, error) {
	details, err := admin.ListTopics(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("look up topics %v: %w", topics, err)
	}
	ids := make(map[string]kadm.TopicID)
	for _, topic := range topics {
		detail := details[topic]
		if detail.Err != nil {
			return nil, fmt.Errorf("look up topic %s: %w", topic, detail.Err)
		}
		ids[topic] = detail.ID
	}
	return ids, nil
}

// TransactionEpochs says whether the cluster is at transaction.version 2 or above
// (KIP-890): every transaction of a TransactionalID then has a producer epoch of its own,
// and sending offsets also adds the group to the transaction.
func TransactionEpochs(ctx context.Context, client *kgo.Client) (bool, error) {
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "kafkatx", "1"
	resp, err := req.RequestWith(ctx, client)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return false, fmt.Errorf("ask for the broker's features: %w", err)
	}
	for _, feature := range resp.FinalizedFeatures {
		if feature.Name == "transaction.version" {
			return feature.MaxVersionLevel >= 2, nil
		}
	}
	return false, nil
}

// retriable repeats a request until its answer is not one of those that pass with
// time: a coordinator that is moving or loading, markers of the transaction before
// that are still being written.
func retriable(ctx context.Context, request func() error) error {
	wait := 5 * time.Millisecond
	for {
		err := request()
		if err == nil || !kerr.IsRetriable(err) && !errors.Is(err, kerr.ConcurrentTransactions) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w, last answer: %w", ctx.Err(), err)
		case <-time.After(wait):
		}
		wait = min(2*wait, 200*time.Millisecond)
	}
}
