package pginbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5/pgxpool"
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
	// Resume, where set, is [Inbox.Resume], or whatever else says from which offset on
	// a partition that was assigned is consumed. The group's own offsets are then
	// never read; they are still committed, for tools that show a consumer's lag, and
	// prove nothing. When Process returns an error that wraps [ErrStale], the batch is
	// dropped unacknowledged, the member joins its group again, and what it is assigned
	// then it resumes. About once a second it calls Process with no events, which finds
	// out whether that is necessary, so that work that the database has lost is done
	// again even where nothing new arrives.
	Resume func(ctx context.Context, assigned map[string][]int32) (map[string]map[int32]int64, error)
	// AcknowledgeFirst acknowledges a batch before it is processed: at most once. The
	// steps are then Polled, Acknowledged, and those of Process. A process that dies in
	// between, or is stopped and does not finish within StopGrace, loses the batch, and
	// so does one whose Process returns an error. A batch whose acknowledgement the
	// group refuses is not processed.
	AcknowledgeFirst bool
	// AcknowledgeAfterFlush, where set, is the database that Process works in, where
	// its commits may be asynchronous: batches are acknowledged only once the
	// write-ahead log is on disk as far as their commits, while the next ones are being
	// processed. If the database crashes, or a connection to it is lost, whatever is
	// not acknowledged is in doubt: it comes again, from the committed offsets on.
	//
	// It takes one connection out of the pool and keeps it. It must be a session on
	// the primary server itself, not one of a pooler that deals out transactions.
	AcknowledgeAfterFlush *pgxpool.Pool
	// StopGrace is how long a consumer that is told to stop may take to finish the
	// batch in hand, and one that has to give partitions away to see what it has done
	// on disk; the default is 10 s.
	StopGrace time.Duration
	// RetryBackoff is about how long the pause is before an acknowledgement is tried
	// again; it doubles, up to a hundredfold. The default is 100 ms.
	RetryBackoff time.Duration
	// Hook, where set, is called at the steps Polled and Acknowledged; at the latter
	// from another goroutine with AcknowledgeAfterFlush, and for several batches at once.
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
	case o.AcknowledgeFirst && o.AcknowledgeAfterFlush != nil:
		return errors.New("AcknowledgeFirst and AcknowledgeAfterFlush: a batch is acknowledged either before it is processed or after, choose one")
	case o.AcknowledgeFirst && o.Resume != nil:
		return errors.New("AcknowledgeFirst and Resume: stored offsets would bring back what was acknowledged, so it would not be at most once, choose one")
	case o.AcknowledgeAfterFlush != nil && o.Resume != nil:
		return errors.New("AcknowledgeAfterFlush and Resume: stored offsets are lost with the work, so acknowledgements need not wait for it, choose one")
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
// their offsets) once they are processed. Several can run in one process, each with an
// InstanceID of its own.
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

// Run consumes until ctx ends: batch by batch, it polls, processes and acknowledges,
// or acknowledges and processes where the options say so. Then it finishes and
// acknowledges the batch in hand, or leaves it where StopGrace is not enough, and
// returns nil. A static member does not leave its
// group: its partitions wait for its return for as long as the session timeout.
//
// A batch that is lost on the way, or that takes so long that the group has given its
// partitions away, comes again, here or at another member (but see AcknowledgeFirst).
// The inbox absorbs it, or refuses it where offsets are stored, so a member that has
// lost its partitions without knowing does no harm.
//
// Run returns an error for what another try cannot mend: an error of Process or
// Resume, another process that has joined as the same instance, a missing permission,
// a group of another kind, a topic that is gone, or one that ends before its stored
// offset.
func (c *Consumer) Run(ctx context.Context) error {
	m := &member{Consumer: c}
	var err error
	if m.client, err = kgo.NewClient(m.clientOptions()...); err != nil {
		return fmt.Errorf("pginbox: consume: %w", err)
	}
	defer c.leave(m.client)
	// What is in hand when ctx ends is finished rather than cut off.
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(c.options.StopGrace, cancel) })()

	for ctx.Err() == nil && err == nil {
		var events []Event
		if events, err = m.poll(ctx); err == nil {
			err = m.serve(work, events)
		}
		if err != nil && work.Err() != nil {
			c.options.Logger.Warn("stopped without finishing the batch in hand", "records", len(events), "lost", c.options.AcknowledgeFirst, "cause", err)
			return nil
		}
		if err == nil {
			m.client.AllowRebalance()
		}
	}
	m.finishTail(c.options.StopGrace)
	if err == nil {
		err = m.failure()
	}
	if err != nil {
		return fmt.Errorf("pginbox: group %s: %w", c.options.Group, err)
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

func (m *member) clientOptions() []kgo.Opt {
	o := m.options
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
		kgo.OnPartitionsAssigned(func(context.Context, *kgo.Client, map[string][]int32) { m.assigned() }),
		kgo.OnPartitionsRevoked(func(context.Context, *kgo.Client, map[string][]int32) { m.finishTail(o.StopGrace) }),
		// Acknowledgements would be refused.
		kgo.OnPartitionsLost(func(context.Context, *kgo.Client, map[string][]int32) { m.finishTail(0) }),
		kgo.SessionTimeout(o.SessionTimeout),
		kgo.HeartbeatInterval(o.SessionTimeout / 10),
	})
	if o.InstanceID != "" {
		opts = append(opts, kgo.InstanceID(o.InstanceID))
	}
	if o.Resume != nil {
		opts = append(opts, kgo.AdjustFetchOffsetsFn(m.resume))
	}
	return opts
}

// pollPatience bounds how long records are waited for before other things are looked
// after.
const pollPatience = time.Second

// poll waits for records, not for long. From here on no rebalance takes place until
// it is allowed.
func (m *member) poll(ctx context.Context) ([]Event, error) {
	ctx, cancel := context.WithTimeout(ctx, pollPatience)
	defer cancel()
	fetches := m.client.PollRecords(ctx, m.options.BatchSize)
	for _, f := range fetches.Errors() {
		if err := m.fetchError(f); err != nil {
			return nil, err
		}
	}
	events := make([]Event, 0, fetches.NumRecords())
	fetches.EachRecord(func(r *kgo.Record) {
		events = append(events, Event{ID: m.options.Identify(r), Record: r})
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

// polled passes the step.
func (c *Consumer) polled(ctx context.Context, events []Event) error {
	pauses := newBackoff(c.options.RetryBackoff)
	for {
		err := c.options.Hook.pass(ctx, Passage{Step: Polled, Events: events})
		if err == nil {
			return nil
		}
		if err := c.pause(ctx, pauses, err); err != nil {
			return err
		}
	}
}

// acknowledgePatience bounds how long a commit of offsets is tried. An outage of the
// group's coordinator passes; a topic that was deleted gives the same answers.
const acknowledgePatience = time.Minute

// acknowledge commits the offsets of the events with the group's generation, so that
// a member that has lost its partitions can't move their offsets. It says whether the
// group has taken them.
func (c *Consumer) acknowledge(ctx context.Context, client *kgo.Client, events []Event) (taken bool, err error) {
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
			c.options.Logger.Info("the group gave the partitions away in the meantime; the records come again, here or at another member", "records", len(records), "cause", err)
			return false, nil
		case c.fatal(err) != nil:
			return false, c.fatal(err)
		case err == nil:
			err = c.options.Hook.pass(ctx, Passage{Step: Acknowledged, Events: events})
		}
		if err == nil {
			return true, nil
		}
		last := records[len(records)-1]
		err = fmt.Errorf("acknowledge %d records, the last at topic %s, partition %d, offset %d: %w", len(records), last.Topic, last.Partition, last.Offset, err)
		if time.Since(begin) > acknowledgePatience {
			return false, err
		}
		if err := c.pause(ctx, pauses, err); err != nil {
			return false, err
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
