package kafkatx

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Guarantee is how input offsets and output records belong together.
type Guarantee string

const (
	// ExactlyOnce commits both in one Kafka transaction.
	ExactlyOnce Guarantee = "exactly-once"
	// IdempotentProducer produces first and commits the offsets afterwards, with an
	// idempotent producer (KIP-98): the broker knows a batch that the client sends
	// again, because no answer came, by its sequence number. A crash between
	// producing and committing duplicates all the same: the next incarnation is
	// another producer, and to the broker its records are new ones.
	IdempotentProducer Guarantee = "idempotent-producer"
	// AtLeastOnce does the same with a producer that is not idempotent: a batch that
	// the client sends again is in the topic twice if the broker had taken it, and a
	// crash duplicates, too. Both wait for all in-sync replicas (acks=all).
	AtLeastOnce Guarantee = "at-least-once"
)

// Guarantees returns all guarantees.
func Guarantees() []Guarantee { return []Guarantee{ExactlyOnce, IdempotentProducer, AtLeastOnce} }

// Config says what an engine consumes, produces and promises.
type Config struct {
	// Client are options of both Kafka clients: seed brokers, TLS, SASL.
	Client []kgo.Opt
	// Group is the consumer group. Its members must all be engines of this group,
	// with the same input.
	Group string
	// Instance names this member among its group, and must be its own: it is the
	// static member id (KIP-345) and part of the TransactionalID. A process that
	// is started again must have the same one. Two live processes with one name
	// fence each other.
	Instance string
	// Input is the topic consumed; Output the default topic produced to;
	// DeadLetters the topic that keeps what could not be handled.
	Input, Output, DeadLetters string
	// Handler does the work.
	Handler Handler

	// Guarantee; the default is ExactlyOnce.
	Guarantee Guarantee
	// Participant, where set, commits together with every transaction. It needs
	// ExactlyOnce.
	Participant Participant
	// TransactionsInFlight is how many transactions may be under way at the same time, at
	// most [MaxTransactionsInFlight]; the default is [DefaultTransactionsInFlight], and 1
	// with a Participant, which takes no more. Each has a producer of its own, and without
	// transactions it is how many batches are.
	TransactionsInFlight int
	// CommitInterval ends a transaction so long after its first record; 0 ends it
	// after every poll. A longer interval costs latency, a shorter one throughput.
	CommitInterval time.Duration
	// MaxTransactionRecords ends a transaction that has so many input records;
	// the default is 10,000.
	MaxTransactionRecords int
	// MaxAttempts is how often a record may fail before it is dead-lettered; the
	// default is 3.
	MaxAttempts int
	// RetryBackoff is the pause before the second attempt; it doubles up to a
	// hundredfold. The default is 100 ms.
	RetryBackoff time.Duration
	// TransactionTimeout is how long the broker lets a transaction stay open. It
	// must not exceed the broker's transaction.max.timeout.ms. The default is 10 s.
	TransactionTimeout time.Duration
	// SessionTimeout is how long the group waits for a silent member before it
	// gives its partitions away. The default is 10 s.
	SessionTimeout time.Duration

	// Hook, where set, is called at every step.
	Hook Hook
	// Logger, where set, hears what a person running the engine should know.
	Logger *slog.Logger
}

const (
	// MaxTransactionsInFlight bounds [Config.TransactionsInFlight]. A new incarnation has
	// to end what any earlier one left open, and knows by this where to look.
	MaxTransactionsInFlight = 8
	// DefaultTransactionsInFlight is the default of [Config.TransactionsInFlight].
	DefaultTransactionsInFlight = 4
)

// TransactionalID is the i-th id, from 0, under which a member's transactions run in
// turn. It depends on group and instance alone: a random one would leave the open
// transaction of a dead process to the transaction timeout, and every read_committed
// reader of the output, and the group's own offsets, would wait behind it until then.
func TransactionalID(group, instance string, i int) string {
	return fmt.Sprintf("%s-%s-%d", group, instance, i)
}

// TransactionalIDs returns every id under which a member's transactions may run, however
// many are in flight.
func TransactionalIDs(group, instance string) []string {
	ids := make([]string, MaxTransactionsInFlight)
	for i := range ids {
		ids[i] = TransactionalID(group, instance, i)
	}
	return ids
}

func (c Config) withDefaults() Config {
	if c.Guarantee == "" {
		c.Guarantee = ExactlyOnce
	}
	if c.TransactionsInFlight == 0 {
		c.TransactionsInFlight = DefaultTransactionsInFlight
		if c.Participant != nil {
			c.TransactionsInFlight = 1
		}
	}
	if c.MaxTransactionRecords == 0 {
		c.MaxTransactionRecords = 10_000
	}
	if c.MaxAttempts == 0 {
		c.MaxAttempts = 3
	}
	if c.RetryBackoff == 0 {
		c.RetryBackoff = 100 * time.Millisecond
	}
	if c.TransactionTimeout == 0 {
		c.TransactionTimeout = 10 * time.Second
	}
	if c.SessionTimeout == 0 {
		c.SessionTimeout = 10 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Group == "":
		return errors.New("the consumer group has no name")
	case c.Instance == "":
		return errors.New("the instance has no name")
	case c.Input == "" || c.Output == "" || c.DeadLetters == "":
		return errors.New("input, output and dead-letter topics must all be named")
	case c.Input == c.Output || c.Input == c.DeadLetters:
		return fmt.Errorf("input topic %q is also written to: the engine would consume its own output", c.Input)
	case c.Handler == nil:
		return errors.New("there is no handler")
	case !slices.Contains(Guarantees(), c.Guarantee):
		return fmt.Errorf("unknown guarantee %q: choose one of %v", c.Guarantee, Guarantees())
	case c.Participant != nil && c.Guarantee != ExactlyOnce:
		return fmt.Errorf("a participant has no transaction to take part in: guarantee %q has none", c.Guarantee)
	case c.TransactionsInFlight < 1 || c.TransactionsInFlight > MaxTransactionsInFlight:
		return fmt.Errorf("%d transactions in flight, must be from 1 to %d", c.TransactionsInFlight, MaxTransactionsInFlight)
	case c.Participant != nil && c.TransactionsInFlight > 1:
		return fmt.Errorf("%d transactions in flight and a participant, which decides on one after the other: must be 1", c.TransactionsInFlight)
	case c.CommitInterval < 0:
		return fmt.Errorf("commit interval is %v, must not be negative", c.CommitInterval)
	case c.Guarantee == ExactlyOnce && c.CommitInterval >= c.TransactionTimeout:
		return fmt.Errorf("commit interval %v reaches the transaction timeout %v: every transaction would be aborted; shorten the interval", c.CommitInterval, c.TransactionTimeout)
	case c.CommitInterval >= c.SessionTimeout:
		return fmt.Errorf("commit interval %v reaches the session timeout %v: rebalances, which wait for the end of a transaction, would be missed; shorten the interval", c.CommitInterval, c.SessionTimeout)
	case c.MaxTransactionRecords < 1:
		return fmt.Errorf("at most %d records a transaction, must be at least 1", c.MaxTransactionRecords)
	case c.MaxAttempts < 1:
		return fmt.Errorf("at most %d attempts, must be at least 1", c.MaxAttempts)
	}
	return nil
}
