package pginbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// ConsumerOptions say what a consumer reads from Kafka, and who processes it.
type ConsumerOptions struct {
	// Client are options of the Kafka client: seed brokers, TLS, SASL, client id.
	Client []kgo.Opt
	// Group is the consumer group.
	Group string
	// Topics are consumed from their beginning where the group has no offset yet.
	Topics []string
	// InstanceID, where set, makes this a static member of the group (KIP-345): a
	// process that is started again under the same id, within SessionTimeout, gets its
	// partitions back at once and without a rebalance. Two live processes must not
	// share one.
	InstanceID string
	// SessionTimeout is how long the group waits for a silent member before it gives
	// its partitions away; the default is 10 s.
	SessionTimeout time.Duration
	// BatchSize is how many records are processed together, at most; the default is
	// 1,000.
	BatchSize int
	// Identify returns the stable identity of a record as received. Any bytes will
	// do; for what an empty one means, see [Event].
	Identify func(*kgo.Record) string
	// Process is [Inbox.Process], or whatever else returns nil only once the events
	// may be acknowledged. It waits outages out until its context ends; an error that
	// it returns before ends the consumer.
	Process func(ctx context.Context, events []Event) error
	// StopGrace is how long a consumer that is told to stop may take to finish the
	// batch in hand; the default is 10 s.
	StopGrace time.Duration
	// RetryBackoff is about how long the pause is before an acknowledgement is tried
	// again; it doubles, up to a hundredfold. The default is 100 ms.
	RetryBackoff time.Duration
	// Hook, where set, is called at the steps Polled and Acknowledged.
	Hook Hook
	// Logger, where set, hears what a person running the consumer should know.
	Logger *slog.Logger
}

func (o ConsumerOptions) withDefaults() ConsumerOptions {
	if o.SessionTimeout == 0 {
		o.SessionTimeout = 10 * time.Second
	}
	if o.BatchSize == 0 {
		o.BatchSize = 1_000
	}
	if o.StopGrace == 0 {
		o.StopGrace = 10 * time.Second
	}
	if o.RetryBackoff == 0 {
		o.RetryBackoff = 100 * time.Millisecond
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

func (o ConsumerOptions) validate() error {
	switch {
	case o.Group == "":
		return errors.New("the consumer group has no name")
	case len(o.Topics) == 0 || slices.Contains(o.Topics, ""):
		return errors.New("there is no topic to consume, or one without a name")
	case o.Identify == nil:
		return errors.New("nothing tells the identity of a record: set Identify")
	case o.Process == nil:
		return errors.New("nothing processes the records: set Process")
	case o.BatchSize < 1:
		return fmt.Errorf("batch size is %d, must be at least 1", o.BatchSize)
	case o.SessionTimeout < 0 || o.StopGrace < 0 || o.RetryBackoff < 0:
		return errors.New("session timeout, stop grace and retry backoff must be positive")
	}
	return nil
}

// ErrFenced is wrapped by the error of [Consumer.Run] when another process has
// joined the group as the same static member: one of the two must have another
// InstanceID.
var ErrFenced = errors.New("another process has joined as the same instance")

// Consumer is a member of a Kafka consumer group that acknowledges records (commits
// their offsets) once they are processed.
type Consumer struct{ options ConsumerOptions }

// NewConsumer returns a consumer, or an error that says what is wrong with the
// options. It connects to nothing.
func NewConsumer(o ConsumerOptions) (*Consumer, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("pginbox: consume: %w", err)
	}
	return &Consumer{options: o}, nil
}

// Run consumes until ctx ends: batch by batch, it polls, processes and acknowledges.
// Then it finishes and acknowledges the batch in hand, or leaves it unacknowledged
// where StopGrace is not enough, and returns nil. A static member does not leave its
// group: its partitions wait for its return for as long as the session timeout.
//
// A batch that is lost on the way, or that takes so long that the group has given its
// partitions away, comes again, here or at another member. The inbox absorbs it, so a
// member that has lost its partitions without knowing does no harm.
//
// Run returns an error for what another try cannot mend: an error of Process, another
// process that has joined as the same instance, a missing permission, a group of
// another kind, a topic that is gone.
func (c *Consumer) Run(ctx context.Context) error {
	client, err := kgo.NewClient(c.clientOptions()...)
	if err != nil {
		return fmt.Errorf("pginbox: consume: %w", err)
	}
	defer c.leave(client)
	// What is in hand when ctx ends is finished rather than cut off.
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(c.options.StopGrace, cancel) })()

	for ctx.Err() == nil {
		events, err := c.poll(ctx, client)
		if err == nil && len(events) > 0 {
			err = c.deliver(work, client, events)
		}
		if err != nil && work.Err() != nil {
			c.options.Logger.Warn("stopped without finishing the batch in hand; it will come again", "records", len(events), "cause", err)
			return nil
		}
		if err != nil {
			return fmt.Errorf("pginbox: group %s: %w", c.options.Group, err)
		}
		client.AllowRebalance()
	}
	return nil
}

// leave closes the client. A static member tells the group nothing, so a join that
// waits for other members is not waited for either; another member says goodbye, if
// the group listens.
func (c *Consumer) leave(client *kgo.Client) {
	client.AllowRebalance()
	ctx, cancel := context.WithTimeout(context.Background(), leavePatience)
	defer cancel()
	if c.options.InstanceID != "" {
		cancel()
	}
	_ = client.LeaveGroupContext(ctx) // the session timeout does the rest
	client.Close()
}

// leavePatience bounds how long leaving a group may take.
const leavePatience = 5 * time.Second

func (c *Consumer) clientOptions() []kgo.Opt {
	o := c.options
	opts := slices.Concat(o.Client, []kgo.Opt{
		kgo.ConsumerGroup(o.Group),
		kgo.ConsumeTopics(o.Topics...),
		// Never skip: what comes again is absorbed.
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.DisableAutoCommit(),
		// Partitions stay until the batch in hand is acknowledged. The balancer is an
		// eager one: it takes every partition away before the member joins again, so
		// that nothing that was fetched for an earlier generation is left over.
		kgo.BlockRebalanceOnPoll(),
		kgo.Balancers(kgo.StickyBalancer()),
		kgo.SessionTimeout(o.SessionTimeout),
		kgo.HeartbeatInterval(o.SessionTimeout / 10),
	})
	if o.InstanceID != "" {
		opts = append(opts, kgo.InstanceID(o.InstanceID))
	}
	return opts
}

// poll waits for records. From here on no rebalance takes place until it is allowed.
func (c *Consumer) poll(ctx context.Context, client *kgo.Client) ([]Event, error) {
	fetches := client.PollRecords(ctx, c.options.BatchSize)
	for _, f := range fetches.Errors() {
		if err := c.fetchError(f); err != nil {
			return nil, err
		}
	}
	events := make([]Event, 0, fetches.NumRecords())
	fetches.EachRecord(func(r *kgo.Record) {
		events = append(events, Event{ID: c.options.Identify(r), Record: r})
	})
	return events, nil
}

// fetchError logs what the client goes on trying by itself, and returns the rest.
func (c *Consumer) fetchError(f kgo.FetchError) error {
	var (
		lost  *kgo.ErrDataLoss
		group *kgo.ErrGroupSession
	)
	switch {
	case errors.Is(f.Err, context.Canceled), errors.Is(f.Err, context.DeadlineExceeded):
		return nil
	case c.fatal(f.Err) != nil:
		return c.fatal(f.Err)
	case errors.As(f.Err, &lost):
		c.options.Logger.Error("the topic has lost records that were not consumed yet", "topic", f.Topic, "partition", f.Partition, "cause", f.Err)
		return nil
	case errors.As(f.Err, &group):
		c.options.Logger.Warn("the group session has ended; the client joins again", "group", c.options.Group, "cause", f.Err)
		return nil
	case kerr.IsRetriable(f.Err):
		c.options.Logger.Warn("fetching failed; the client goes on trying", "topic", f.Topic, "partition", f.Partition, "cause", f.Err)
		return nil
	}
	return fmt.Errorf("fetch topic %s, partition %d: %w", f.Topic, f.Partition, f.Err)
}

// deliver processes a batch and acknowledges it.
func (c *Consumer) deliver(ctx context.Context, client *kgo.Client, events []Event) error {
	pauses := newBackoff(c.options.RetryBackoff)
	for {
		err := c.options.Hook.pass(ctx, Passage{Step: Polled, Events: events})
		if err == nil {
			break
		}
		if err := c.pause(ctx, pauses, err); err != nil {
			return err
		}
	}
	if err := c.options.Process(ctx, events); err != nil {
		return err
	}
	return c.acknowledge(ctx, client, events)
}

// acknowledgePatience bounds how long a commit of offsets is tried. An outage of the
// group's coordinator passes; a topic that was deleted gives the same answers.
const acknowledgePatience = time.Minute

// acknowledge commits the offsets of the events with the group's generation, so that
// a member that has lost its partitions can't move their offsets.
func (c *Consumer) acknowledge(ctx context.Context, client *kgo.Client, events []Event) error {
	records := make([]*kgo.Record, len(events))
	for i, e := range events {
		records[i] = e.Record
	}
	pauses := newBackoff(c.options.RetryBackoff)
	begin := time.Now()
	for {
		err := client.CommitRecords(ctx, records...)
		switch {
		case errors.Is(err, kerr.UnknownMemberID), errors.Is(err, kerr.IllegalGeneration), errors.Is(err, kerr.RebalanceInProgress):
			c.options.Logger.Info("the group gave the partitions away in the meantime; the records come again and are absorbed", "records", len(records), "cause", err)
			return nil
		case c.fatal(err) != nil:
			return c.fatal(err)
		case err == nil:
			err = c.options.Hook.pass(ctx, Passage{Step: Acknowledged, Events: events})
		}
		if err == nil {
			return nil
		}
		last := records[len(records)-1]
		err = fmt.Errorf("acknowledge %d records, the last at topic %s, partition %d, offset %d: %w", len(records), last.Topic, last.Partition, last.Offset, err)
		if time.Since(begin) > acknowledgePatience {
			return err
		}
		if err := c.pause(ctx, pauses, err); err != nil {
			return err
		}
	}
}

// pause waits before what failed with err is tried again. It returns an error when
// ctx ends.
func (c *Consumer) pause(ctx context.Context, pauses *backoff.ExponentialBackOff, err error) error {
	wait := pauses.NextBackOff()
	if ctx.Err() == nil {
		c.options.Logger.Warn("a step failed through no fault of the records; it is tried again", "after", wait, "cause", err)
	}
	if stopped := sleep(ctx, wait); stopped != nil {
		return fmt.Errorf("%w, the last attempt: %w", stopped, err)
	}
	return nil
}

// fatal returns err, told to a person, if another try cannot mend it, and nil
// otherwise.
func (c *Consumer) fatal(err error) error {
	switch {
	case errors.Is(err, kerr.FencedInstanceID):
		return fmt.Errorf("instance %s: %w (%w): stop one of them, or give it another instance id", c.options.InstanceID, ErrFenced, err)
	case errors.Is(err, kerr.InvalidSessionTimeout):
		return fmt.Errorf("the session timeout of %v is outside the broker's group.min.session.timeout.ms and group.max.session.timeout.ms: %w", c.options.SessionTimeout, err)
	case errors.Is(err, kerr.InconsistentGroupProtocol), errors.Is(err, kerr.GroupIDNotFound):
		return fmt.Errorf("the group is in use by consumers of another kind: choose another group: %w", err)
	}
	for _, hopeless := range []error{
		kerr.SaslAuthenticationFailed,
		kerr.TopicAuthorizationFailed,
		kerr.GroupAuthorizationFailed,
		kerr.ClusterAuthorizationFailed,
		kerr.InvalidGroupID,
		kerr.InvalidTopicException,
		kerr.GroupMaxSizeReached,
		kerr.UnsupportedVersion,
	} {
		if errors.Is(err, hopeless) {
			return err
		}
	}
	return nil
}
