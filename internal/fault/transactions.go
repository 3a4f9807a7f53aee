package fault

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/kafkatx"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/sandbox"
	"github.com/delivered-twice/delivered-twice/internal/stage"
)

// noTransactions says why a fault of Kafka transactions is no fault of a lane.
func noTransactions(l lane.Lane) string {
	if l.Transactional {
		return ""
	}
	return "there is no Kafka transaction"
}

var foreignTransactionalID = Fault{
	Name:  lane.ForeignTransactionalID,
	Says:  "another process initialises the member's transactional id in the middle of a transaction",
	Unfit: func(l lane.Lane, _ *sandbox.Services) string { return noTransactions(l) },
	Inject: func(ctx context.Context, s *stage.Stage) error {
		return inTransaction(ctx, s, func() error {
			id, err := openID(ctx, s)
			if err != nil {
				return err
			}
			foreigner, err := kgo.NewClient(kgo.SeedBrokers(s.Services.Brokers...), kgo.TransactionalID(id))
			if err != nil {
				return err
			}
			defer foreigner.Close()
			if _, _, err := foreigner.ProducerID(ctx); err != nil {
				return fmt.Errorf("initialise transactional id %s: %w", id, err)
			}
			s.Happened("another process initialised transactional id " + id)
			return nil
		})
	},
}

// shortTimeout is a transaction timeout that is soon over, and longer than a
// transaction.
const shortTimeout = time.Second

var transactionTimeout = Fault{
	Name:  lane.TransactionTimeout,
	Says:  "a member stands still in the middle of a transaction until the broker has aborted it (transaction.timeout.ms)",
	Unfit: func(l lane.Lane, _ *sandbox.Services) string { return noTransactions(l) },
	Inject: func(ctx context.Context, s *stage.Stage) error {
		return inTransaction(ctx, s, func() error {
			return awaitAborted(ctx, s)
		}, "--transaction-timeout="+shortTimeout.String())
	},
}

// transactionalID is the first one of the first member.
func transactionalID(s *stage.Stage) string { return kafkatx.TransactionalID(s.Group, "0", 0) }

// openID is the transactional id of the first member's newest transaction that is open and
// has records, and its first id where none is.
func openID(ctx context.Context, s *stage.Stage) (open string, err error) {
	ids := kafkatx.TransactionalIDs(s.Group, "0")
	described, err := s.Admin.DescribeTransactions(ctx, ids...)
	if err != nil {
		return "", fmt.Errorf("look for an open transaction of group %s: %w", s.Group, err)
	}
	open = transactionalID(s)
	var latest int64
	for _, id := range ids {
		d := described[id]
		if _, produced := d.Topics[s.Output]; d.State == "Ongoing" && produced && d.StartTimestamp >= latest {
			open, latest = id, d.StartTimestamp
		}
	}
	return open, nil
}

// inTransaction holds a member still in its second transaction, when its output is
// there, and its offsets are not. Then it does something and lets the member go on.
func inTransaction(ctx context.Context, s *stage.Stage, do func() error, args ...string) error {
	m, err := s.Enter(stage.Entry{Failpoint: string(kafkatx.Produced) + ":2:pause", Args: args})
	if err != nil {
		return err
	}
	if err := s.Publish(ctx, fewBatches); err != nil {
		return err
	}
	if err := s.AwaitStopped(ctx, m); err != nil {
		return err
	}
	if none, err := closed(ctx, s); err != nil || none {
		return errors.Join(err, fmt.Errorf("%s stands still at %s, and no transaction is seen to be open in topic %s", m.Attempt, kafkatx.Produced, s.Output))
	}
	if err := do(); err != nil {
		return err
	}
	s.Struck()
	if err := m.Continue(); err != nil {
		return err
	}
	return s.AwaitConsumed(ctx)
}

// awaitAborted waits until the broker has aborted the transaction that is open, of itself.
func awaitAborted(ctx context.Context, s *stage.Stage) error {
	err := s.Await(ctx, "the broker to abort the transactions of "+s.Group, func(ctx context.Context) (bool, error) { return closed(ctx, s) })
	if err == nil {
		s.Happened("the broker aborted the transaction, which was open for too long")
	}
	return err
}

// closed says whether no transaction is open in the output topic: the last stable
// offset of every partition is its high watermark.
func closed(ctx context.Context, s *stage.Stage) (bool, error) {
	stable, err := s.Admin.ListCommittedOffsets(ctx, s.Output)
	if err == nil {
		err = stable.Error()
	}
	if err != nil {
		return false, fmt.Errorf("list the last stable offsets of topic %s: %w", s.Output, err)
	}
	ends, err := s.Admin.ListEndOffsets(ctx, s.Output)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return false, fmt.Errorf("list the end offsets of topic %s: %w", s.Output, err)
	}
	all := true
	ends.Each(func(end kadm.ListedOffset) {
		if at, ok := stable.Lookup(end.Topic, end.Partition); !ok || at.Offset < end.Offset {
			all = false
		}
	})
	return all, nil
}

var transactionalIDExpired = Fault{
	Name: lane.TransactionalIDExpired,
	Says: "a member has nothing to do for longer than transactional.id.expiration.ms, and then goes on",
	Unfit: func(l lane.Lane, s *sandbox.Services) string {
		if why := noTransactions(l); why != "" {
			return why
		}
		return tooLongToWait(s)
	},
	Inject: func(ctx context.Context, s *stage.Stage) error {
		if err := consume(ctx, s); err != nil {
			return err
		}
		id := transactionalID(s)
		err := s.Await(ctx, "the broker to forget transactional id "+id, func(ctx context.Context) (bool, error) {
			described, err := s.Admin.DescribeTransactions(ctx, id)
			if err != nil {
				return false, err
			}
			return errors.Is(described[id].Err, kerr.TransactionalIDNotFound), described[id].Err
		})
		if err != nil {
			return err
		}
		s.Struck()
		s.Happened("the broker forgot transactional id " + id)
		return s.Publish(ctx, stage.Batch)
	},
}

const (
	expirationConfig  = "transactional.id.expiration.ms"
	longestExpiration = time.Minute
)

// tooLongToWait says so if the broker remembers ids for too long to be waited for.
func tooLongToWait(s *sandbox.Services) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	expiration, err := expiration(ctx, s.Brokers)
	switch {
	case err != nil:
		return fmt.Sprintf("the broker does not tell its %s: %v", expirationConfig, err)
	case expiration > longestExpiration:
		return fmt.Sprintf("the broker remembers transactional ids for %v (%s)", expiration, expirationConfig)
	}
	return ""
}

func expiration(ctx context.Context, brokers []string) (time.Duration, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return 0, err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	metadata, err := admin.BrokerMetadata(ctx)
	if err != nil {
		return 0, err
	}
	described, err := admin.DescribeBrokerConfigs(ctx, metadata.Brokers.NodeIDs()...)
	if err != nil {
		return 0, err
	}
	for _, broker := range described {
		for _, config := range broker.Configs {
			if config.Key == expirationConfig && config.Value != nil {
				ms, err := strconv.ParseInt(*config.Value, 10, 64)
				return time.Duration(ms) * time.Millisecond, err
			}
		}
	}
	return 0, errors.New("it is not among the broker's settings")
}
