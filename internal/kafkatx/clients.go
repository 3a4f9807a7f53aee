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
	"golang.org/x/sync/errgroup"
)

// defaultBatchBytes is what a producer sends in one batch where the topic's own
// limit can't be read: a little below Kafka's default of 1,048,588 bytes.
const defaultBatchBytes = 1_000_012

// openConsumer joins the group. blocked is called when a rebalance waits until it is
// allowed.
func openConsumer(c Config, blocked func()) (*kgo.Client, error) {
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
		// A rebalance waits until all transactions have ended, and then takes every
		// partition away before the member joins again (an eager balancer): so no
		// transaction begins while the group's generation is changing, which would
		// cost it its offsets. Under load there is always one that has not ended, so
		// that a rebalance has to be noticed and made room for.
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsCallbackBlocked(func(context.Context, *kgo.Client) { blocked() }),
		kgo.Balancers(kgo.StickyBalancer()),
	})...)
}

// newProducer returns a producer of the member, under the given TransactionalID where
// there are transactions. maxBytes says how large a batch a topic takes; it is not asked
// before the first record is produced.
func newProducer(c Config, id string, maxBytes func(topic string) int32) (*kgo.Client, error) {
	opts := slices.Concat(c.Client, []kgo.Opt{
		kgo.ProducerBatchMaxBytesFn(maxBytes),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
	})
	switch c.Guarantee {
	case ExactlyOnce:
		opts = append(opts,
			kgo.TransactionalID(id),
			kgo.TransactionTimeout(c.TransactionTimeout))
	case AtLeastOnce:
		opts = append(opts, kgo.DisableIdempotentWrite())
	}
	return kgo.NewClient(opts...)
}

// initialise claims a producer's TransactionalID: from here on an earlier incarnation is
// fenced, and what it left open is aborted.
func initialise(ctx context.Context, id string, producer *kgo.Client) error {
	if _, _, err := producer.ProducerID(ctx); err != nil {
		return fmt.Errorf("initialise transactional id %s: %w", id, err)
	}
	return nil
}

// fenceLeftovers initialises those ids that only an earlier incarnation used, which had
// more transactions in flight. Ids that the broker says it doesn't know are left alone
// (KIP-664, from Kafka 3.0 on): each that is initialised is kept for
// transactional.id.expiration.ms.
func fenceLeftovers(ctx context.Context, c Config, client *kgo.Client, ids []string) error {
	unknown := make(map[string]bool)
	describe := kmsg.NewPtrDescribeTransactionsRequest()
	describe.TransactionalIDs = ids
	if described, err := describe.RequestWith(ctx, client); ctx.Err() != nil {
		return ctx.Err()
	} else if err != nil {
		c.Logger.Info("transactional ids of earlier incarnations can't be looked up; all that there may be are initialised", "cause", err)
	} else {
		for _, d := range described.TransactionStates {
			unknown[d.TransactionalID] = d.ErrorCode == kerr.TransactionalIDNotFound.Code
		}
	}
	all, ctx := errgroup.WithContext(ctx)
	for _, id := range ids {
		if unknown[id] {
			continue
		}
		all.Go(func() error {
			req := kmsg.NewPtrInitProducerIDRequest()
			req.TransactionalID = &id
			req.TransactionTimeoutMillis = int32(c.TransactionTimeout.Milliseconds())
			req.ProducerID, req.ProducerEpoch = -1, -1
			err := retriable(ctx, func() error {
				resp, err := req.RequestWith(ctx, client)
				if err != nil {
					return err
				}
				return kerr.ErrorForCode(resp.ErrorCode)
			})
			switch {
			case errors.Is(err, kerr.TransactionalIDAuthorizationFailed):
				return nil // an earlier incarnation could not use it either
			case err != nil:
				return fmt.Errorf("initialise transactional id %s of an earlier incarnation: %w", id, err)
			}
			return nil
		})
	}
	return all.Wait()
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
