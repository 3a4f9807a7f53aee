package pginbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ShareConsumerOptions say what a share consumer reads from Kafka, and who processes
// it.
type ShareConsumerOptions struct {
	// Client are options of the Kafka clients: seed brokers, TLS, SASL, client id.
	Client []kgo.Opt
	// Group is the share group.
	Group string
	// Topics are consumed from their beginning where the group has not begun yet.
	Topics []string
	// RetryTopic, where set, is the topic to which the broker moves a record whose
	// deliveries have run out (KIP-1191, Apache Kafka 4.4), instead of dropping it;
	// the group consumes it like the others, so that the record comes again from
	// there. It is created if it is missing, and must be this group's own. See
	// [ShareConsumer].
	RetryTopic string
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
	// RetryBackoff is about how long the pause is before something that failed is
	// tried again; it doubles, up to a hundredfold. The default is 100 ms.
	RetryBackoff time.Duration
	// Hook, where set, is called at the steps Polled and Acknowledged.
	Hook Hook
	// Logger, where set, hears what a person running the consumer should know.
	Logger *slog.Logger
}

// ErrNoRetryTopic is wrapped by the error of [ShareConsumer.Run] when a RetryTopic is
// asked for and the broker can't move records there: it is older than Apache Kafka
// 4.4, or its share.version is below 2.
var ErrNoRetryTopic = errors.New("the broker has no dead-letter queue for share groups")

// ShareConsumer is a member of a Kafka share group (KIP-932), in which Kafka is a
// queue: a record is acquired by one member at a time, whatever its partition, and is
// acknowledged by itself. Order is nobody's concern.
//
// What a member has acquired and does not acknowledge comes again, here or elsewhere:
// at once where the member stops, dies or loses its connection, or else when the lock
// (share.record.lock.duration.ms) has expired. The lock is renewed for as long as a
// batch is being processed, where the broker can (KIP-1222, Apache Kafka 4.2).
//
// # Where it stops
//
// Every delivery counts, whoever is to blame for its end: a released record, a killed
// process, a lost connection. A record that was delivered as often as
// share.delivery.count.limit allows and still is not acknowledged is archived by the
// broker, which means dropped: nobody gets it again, and nobody is told. The limit is 5
// by default and cannot be raised above group.share.max.delivery.count.limit, by default
// 10. So a share group is at-least-once only for as long as consumers die seldom. Measured on
// Apache Kafka 4.4.0: a record whose consumers were killed 5 times in a row while they
// had it was gone. Near the limit the broker delivers fewer records at a time, at last
// one, so that each death costs one record and not a batch.
//
// Run raises the limit to the broker's maximum, which makes the loss less likely, and
// no more. With a RetryTopic there is none: before the broker archives a record it
// writes another one there, which has its deliveries again, and which is moved again.
// It says where the record was, but leaves the record's headers out, and with them
// perhaps the event's id; so the consumer reads the record again where it was, and
// that is what Identify and Process get. Where it is no longer to be had (retention,
// compaction), they get what is in the RetryTopic: key and value, not the headers.
//
// A killed member keeps its share of the partitions until the group's
// share.session.timeout.ms (45 s) is over; where there are more members than
// partitions, others have them as well.
type ShareConsumer struct {
	options ShareConsumerOptions
	// member does what is the same for both kinds of groups: telling errors apart,
	// and waiting.
	member *Consumer
	topics []string // with the retry topic
	acks   ackResults
}

// NewShareConsumer returns a share consumer, or an error that says what is wrong with
// the options. It connects to nothing.
func NewShareConsumer(o ShareConsumerOptions) (*ShareConsumer, error) {
	member := ConsumerOptions{
		Client:       o.Client,
		Group:        o.Group,
		Topics:       o.Topics,
		BatchSize:    o.BatchSize,
		Identify:     o.Identify,
		Process:      o.Process,
		StopGrace:    o.StopGrace,
		RetryBackoff: o.RetryBackoff,
		Hook:         o.Hook,
		Logger:       o.Logger,
	}.withDefaults()
	o.BatchSize, o.StopGrace, o.RetryBackoff, o.Logger = member.BatchSize, member.StopGrace, member.RetryBackoff, member.Logger
	if err := member.validate(); err != nil {
		return nil, fmt.Errorf("pginbox: consume: %w", err)
	}
	c := &ShareConsumer{options: o, member: &Consumer{options: member}, topics: slices.Clone(o.Topics)}
	if o.RetryTopic != "" {
		if slices.Contains(o.Topics, o.RetryTopic) {
			return nil, fmt.Errorf("pginbox: consume: the retry topic %s is also a topic to consume: it must be the group's own", o.RetryTopic)
		}
		c.topics = append(c.topics, o.RetryTopic)
	}
	return c, nil
}

// Run consumes until ctx ends: batch by batch, it polls, processes and acknowledges.
// Then it finishes and acknowledges the batch in hand, or releases it where StopGrace
// is not enough, leaves the group, and returns nil.
//
// Before it joins, it sets what the group must be set to, as far as it isn't:
// share.auto.offset.reset=earliest and share.isolation.level=read_committed,
// share.delivery.count.limit as high as the broker lets it,
// share.assignment.interval.ms as low (or a member that comes back waits 5 s for its
// first record), and the dead-letter queue. That takes the permissions
// DescribeConfigs and AlterConfigs on the group; the broker's own limits are left out
// where they may not be read (DescribeConfigs on the cluster).
//
// An acknowledgement that comes too late, because the lock has expired or the
// connection was lost, is refused: the records come again, and the inbox absorbs them.
//
// Run returns an error for what another try cannot mend: an error of Process, a missing
// permission, a group of another kind, a broker without share groups, a topic that is
// gone.
func (c *ShareConsumer) Run(ctx context.Context) error {
	err := c.run(ctx)
	if err != nil {
		return fmt.Errorf("pginbox: share group %s: %w", c.options.Group, err)
	}
	return nil
}

func (c *ShareConsumer) run(ctx context.Context) error {
	if err := c.prepareGroup(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	client, err := kgo.NewClient(c.clientOptions()...)
	if err != nil {
		return err
	}
	defer c.leave(client)
	// What is in hand when ctx ends is finished rather than cut off.
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(c.options.StopGrace, cancel) })()

	for ctx.Err() == nil {
		acquired, err := c.poll(ctx, client)
		if err == nil && len(acquired) > 0 {
			err = c.deliver(work, client, acquired)
		}
		if err != nil && work.Err() != nil {
			c.options.Logger.Warn("stopped without finishing the batch in hand; it is released", "records", len(acquired), "cause", err)
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *ShareConsumer) clientOptions() []kgo.Opt {
	return slices.Concat(c.options.Client, []kgo.Opt{
		kgo.ShareGroup(c.options.Group),
		kgo.ConsumeTopics(c.topics...),
		// Acquire what is polled and nothing in advance: of what waits in a buffer the
		// lock runs out, and if the process dies a delivery of it is spent for nothing.
		kgo.ShareMaxRecords(int32(min(c.options.BatchSize, 1<<30))),
		kgo.ShareMaxRecordsStrict(),
		kgo.ShareAckCallback(func(_ *kgo.Client, results kgo.ShareAckResults) { c.acks.add(results) }),
	})
}

// leave releases what was polled and not acknowledged, and leaves the group.
func (c *ShareConsumer) leave(client *kgo.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), leavePatience)
	defer cancel()
	_ = client.LeaveGroupContext(ctx) // the end of the connection releases them as well
	client.Close()
}

// poll acquires records.
func (c *ShareConsumer) poll(ctx context.Context, client *kgo.Client) ([]*kgo.Record, error) {
	fetches := client.PollRecords(ctx, c.options.BatchSize)
	for _, f := range fetches.Errors() {
		if err := c.member.fetchError(f); err != nil {
			return nil, err
		}
	}
	return fetches.Records(), nil
}

// deliver processes a batch and acknowledges it.
func (c *ShareConsumer) deliver(ctx context.Context, client *kgo.Client, acquired []*kgo.Record) error {
	renewed := c.keepRenewing(ctx, client, acquired)
	events, err := c.process(ctx, acquired)
	renewed()
	if err != nil {
		return err
	}
	return c.acknowledge(ctx, client, acquired, events)
}

// process returns the events of the acquired records, in their order.
func (c *ShareConsumer) process(ctx context.Context, acquired []*kgo.Record) ([]Event, error) {
	events := make([]Event, len(acquired))
	for i, r := range acquired {
		if r.Topic == c.options.RetryTopic {
			var err error
			if r, err = c.origin(ctx, r); err != nil {
				return nil, err
			}
		}
		events[i] = Event{ID: c.options.Identify(r), Record: r}
	}
	if err := c.pass(ctx, Passage{Step: Polled, Events: events}); err != nil {
		return nil, err
	}
	return events, c.options.Process(ctx, events)
}

// pass calls the hook until it succeeds or ctx ends.
func (c *ShareConsumer) pass(ctx context.Context, p Passage) error {
	pauses := newBackoff(c.options.RetryBackoff)
	for {
		err := c.options.Hook.pass(ctx, p)
		if err == nil {
			return nil
		}
		if err := c.member.pause(ctx, pauses, err); err != nil {
			return err
		}
	}
}

// renewEvery bounds the time between two renewals: the client gives up a connection
// that is idle for 20 seconds, and the broker then releases what was acquired on it.
const renewEvery = 5 * time.Second

// keepRenewing extends the locks of the records until stop is called, which returns
// when no renewal is on its way any more: one that met the acknowledgement would have
// it refused.
func (c *ShareConsumer) keepRenewing(ctx context.Context, client *kgo.Client, records []*kgo.Record) (stop func()) {
	interval := renewEvery
	for _, r := range records {
		interval = min(interval, time.Until(r.AcquisitionDeadline())/3)
	}
	stopped := make(chan struct{})
	var renewing sync.WaitGroup
	renewing.Go(func() {
		tick := time.NewTicker(max(interval, 10*time.Millisecond))
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-stopped:
				return
			case <-tick.C:
				client.MarkAcks(kgo.AckRenew, records...)
				_ = client.FlushAcks(ctx) // a lock that was lost shows at the acknowledgement
			}
		}
	})
	return func() { close(stopped); renewing.Wait() }
}

// acknowledge accepts the events and waits until the broker has answered. Meanwhile
// the client tries again by itself what passes, until the locks are gone.
func (c *ShareConsumer) acknowledge(ctx context.Context, client *kgo.Client, acquired []*kgo.Record, events []Event) error {
	c.acks.reset()
	client.MarkAcks(kgo.AckAccept, acquired...)
	if err := client.FlushAcks(ctx); err != nil {
		return fmt.Errorf("acknowledge %d records: %w", len(acquired), err)
	}
	var accepted []Event
	for i, r := range acquired {
		if c.acks.refused(r) == nil {
			accepted = append(accepted, events[i])
		}
	}
	if err := c.acks.first(); err != nil {
		if fatal := c.member.fatal(err); fatal != nil {
			return fatal
		}
		c.options.Logger.Info("an acknowledgement was refused; the records come again and are absorbed", "records", len(events)-len(accepted), "cause", err)
	}
	if len(accepted) == 0 {
		return nil
	}
	return c.pass(ctx, Passage{Step: Acknowledged, Events: accepted})
}

// Headers by which a record in the retry topic says where it was (KIP-1191).
const (
	headerOriginTopic     = "__dlq.errors.topic"
	headerOriginPartition = "__dlq.errors.partition"
	headerOriginOffset    = "__dlq.errors.offset"
)

// origin returns the record for which one in the retry topic stands, or that one
// itself if the record is gone.
func (c *ShareConsumer) origin(ctx context.Context, copied *kgo.Record) (*kgo.Record, error) {
	pauses := newBackoff(c.options.RetryBackoff)
	at := copied
	for at.Topic == c.options.RetryTopic { // it may have been moved more than once
		topic, partition, offset, err := originOf(at)
		if err == nil {
			var r *kgo.Record
			if r, err = c.read(ctx, topic, partition, offset); err == nil {
				at = r
				continue
			}
		}
		if !errors.Is(err, errGone) {
			if err := c.member.pause(ctx, pauses, err); err != nil {
				return nil, err
			}
			continue
		}
		c.options.Logger.Error("a record of the retry topic cannot be found where it was; its headers are lost", "topic", copied.Topic, "partition", copied.Partition, "offset", copied.Offset, "cause", err)
		return copied, nil
	}
	return at, nil
}

func originOf(r *kgo.Record) (topic string, partition int32, offset int64, err error) {
	var errs [2]error
	for _, h := range r.Headers {
		switch h.Key {
		case headerOriginTopic:
			topic = string(h.Value)
		case headerOriginPartition:
			var n int64
			n, errs[0] = strconv.ParseInt(string(h.Value), 10, 32)
			partition = int32(n)
		case headerOriginOffset:
			offset, errs[1] = strconv.ParseInt(string(h.Value), 10, 64)
		}
	}
	if err := errors.Join(errs[:]...); err != nil || topic == "" {
		return "", 0, 0, fmt.Errorf("%w: its headers name no origin: %v", errGone, err)
	}
	return topic, partition, offset, nil
}

var errGone = errors.New("the record is gone")

// read returns one record. A client for one record is slow, and rarely needed.
func (c *ShareConsumer) read(ctx context.Context, topic string, partition int32, offset int64) (*kgo.Record, error) {
	client, err := kgo.NewClient(slices.Concat(c.options.Client, []kgo.Opt{
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().At(offset)}}),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
	})...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	fetches := client.PollRecords(ctx, 1)
	err = fetches.Err()
	if errors.Is(err, kerr.OffsetOutOfRange) || errors.Is(err, kerr.UnknownTopicOrPartition) {
		return nil, fmt.Errorf("%w: topic %s, partition %d, offset %d: %w", errGone, topic, partition, offset, err)
	}
	if err != nil {
		return nil, err
	}
	records := fetches.Records()
	if len(records) == 0 {
		return nil, errors.New("nothing was fetched")
	}
	r := records[0]
	if r.Offset != offset {
		return nil, fmt.Errorf("%w: topic %s, partition %d: offset %d is not there, the next one is %d", errGone, topic, partition, offset, r.Offset)
	}
	return r, nil
}

// ackResults are the answers to acknowledgements, by partition. The client hands
// them in on a goroutine of its own.
type ackResults struct {
	mu   sync.Mutex
	errs map[topicPartition]error
}

type topicPartition struct {
	topic     string
	partition int32
}

func (a *ackResults) reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.errs = make(map[topicPartition]error)
}

func (a *ackResults) add(results kgo.ShareAckResults) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range results {
		if r.Err != nil && a.errs != nil {
			a.errs[topicPartition{r.Topic, r.Partition}] = fmt.Errorf("topic %s, partition %d: %w", r.Topic, r.Partition, r.Err)
		}
	}
}

func (a *ackResults) refused(r *kgo.Record) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.errs[topicPartition{r.Topic, r.Partition}]
}

func (a *ackResults) first() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, err := range a.errs {
		return err
	}
	return nil
}

// Configs of a share group, by Kafka's names (KIP-932, KIP-1191, KIP-1240).
const (
	offsetReset        = "share.auto.offset.reset"
	isolationLevel     = "share.isolation.level"
	deliveryLimit      = "share.delivery.count.limit"
	assignmentInterval = "share.assignment.interval.ms"
	retryTopicName     = "errors.deadletterqueue.topic.name"
	retryTopicCopies   = "errors.deadletterqueue.copy.record.enable"

	// of a topic: share groups may move records there
	retryTopicAllowed = "errors.deadletterqueue.group.enable"

	// of a broker: between which a group's may be
	maxDeliveryLimit      = "group.share.max.delivery.count.limit"
	minAssignmentInterval = "group.share.min.assignment.interval.ms"
)

// prepareGroup sets the group's configs, and waits outages out until ctx ends.
func (c *ShareConsumer) prepareGroup(ctx context.Context) error {
	client, err := kgo.NewClient(c.options.Client...)
	if err != nil {
		return err
	}
	defer client.Close()
	pauses := newBackoff(c.options.RetryBackoff)
	for {
		err := c.setGroup(ctx, kadm.NewClient(client), client)
		var answer *kerr.Error
		if err == nil || errors.Is(err, ErrNoRetryTopic) || errors.As(err, &answer) && !answer.Retriable {
			return err
		}
		if c.member.pause(ctx, pauses, err) != nil {
			return nil // told to stop before it has begun
		}
	}
}

func (c *ShareConsumer) setGroup(ctx context.Context, admin *kadm.Client, client *kgo.Client) error {
	groups, err := admin.ListGroups(ctx)
	if err != nil {
		return fmt.Errorf("list groups: %w", err)
	}
	// A member of a share group that joins another kind of group is answered that there
	// is none, for ever.
	if kind := groups[c.options.Group].GroupType; kind != "" && kind != "share" && kind != "Share" {
		return fmt.Errorf("in use as a %s group, choose another group: %w", kind, kerr.InconsistentGroupProtocol)
	}
	is, err := describe(ctx, client, kmsg.ConfigResourceTypeGroupConfig, c.options.Group)
	if err != nil {
		return fmt.Errorf("read the group's configs (this takes the permission DescribeConfigs on the group): %w", err)
	}
	wanted, err := c.wantedConfigs(ctx, admin, client, is)
	if err != nil {
		return err
	}
	changed := make(map[string]string)
	for name, value := range wanted {
		if is[name] != value {
			changed[name] = value
		}
	}
	if len(changed) == 0 {
		return nil
	}
	if err := alter(ctx, client, kmsg.ConfigResourceTypeGroupConfig, c.options.Group, changed); err != nil {
		return fmt.Errorf("set the group's configs to %v, without which it may lose records (this takes the permission AlterConfigs on the group; or have an administrator set them): %w", changed, err)
	}
	return c.awaitConfigs(ctx, admin, client, changed)
}

// wantedConfigs returns what the group is to be set to, of what the broker knows.
func (c *ShareConsumer) wantedConfigs(ctx context.Context, admin *kadm.Client, client *kgo.Client, known map[string]string) (map[string]string, error) {
	wanted := map[string]string{
		offsetReset:    "earliest", // not what was sent before the first member came is skipped
		isolationLevel: "read_committed",
	}
	limits, err := c.brokerLimits(ctx, admin, client)
	if err != nil {
		c.options.Logger.Warn("the broker's limits cannot be read; the group's stay as they are", "group", c.options.Group, deliveryLimit, known[deliveryLimit], "cause", err)
	}
	for name, limit := range map[string]string{deliveryLimit: maxDeliveryLimit, assignmentInterval: minAssignmentInterval} {
		if value, ok := limits[limit]; ok {
			if _, ok := known[name]; ok {
				wanted[name] = value
			}
		}
	}
	if c.options.RetryTopic == "" {
		return wanted, nil
	}
	if _, ok := known[retryTopicName]; !ok {
		return nil, fmt.Errorf("%w (no config %s), so records would be lost after some deliveries: do without a retry topic, or upgrade", ErrNoRetryTopic, retryTopicName)
	}
	wanted[retryTopicName], wanted[retryTopicCopies] = c.options.RetryTopic, "true"
	return wanted, c.allowRetryTopic(ctx, admin, client)
}

// brokerLimits returns the configs of some broker.
func (c *ShareConsumer) brokerLimits(ctx context.Context, admin *kadm.Client, client *kgo.Client) (map[string]string, error) {
	metadata, err := admin.BrokerMetadata(ctx)
	if err != nil {
		return nil, err
	}
	if len(metadata.Brokers) == 0 {
		return nil, errors.New("the cluster names no broker")
	}
	return describe(ctx, client, kmsg.ConfigResourceTypeBroker, fmt.Sprint(metadata.Brokers[0].NodeID))
}

// allowRetryTopic creates the retry topic, or allows an existing one to be one.
func (c *ShareConsumer) allowRetryTopic(ctx context.Context, admin *kadm.Client, client *kgo.Client) error {
	topic, allowed := c.options.RetryTopic, "true"
	created, err := admin.CreateTopic(ctx, -1, -1, map[string]*string{retryTopicAllowed: &allowed}, topic)
	if err == nil {
		err = created.Err
	}
	if errors.Is(err, kerr.TopicAlreadyExists) {
		var is map[string]string
		if is, err = describe(ctx, client, kmsg.ConfigResourceTypeTopic, topic); err == nil && is[retryTopicAllowed] != allowed {
			err = alter(ctx, client, kmsg.ConfigResourceTypeTopic, topic, map[string]string{retryTopicAllowed: allowed})
		}
	}
	if err != nil {
		return fmt.Errorf("create the retry topic %s with %s=true: %w", topic, retryTopicAllowed, err)
	}
	return nil
}

// awaitConfigs waits until every broker has heard of the group's configs: one that
// has not would begin a partition at its end.
func (c *ShareConsumer) awaitConfigs(ctx context.Context, admin *kadm.Client, client *kgo.Client, set map[string]string) error {
	metadata, err := admin.BrokerMetadata(ctx)
	if err != nil {
		return err
	}
	pauses := newBackoff(10 * time.Millisecond)
	for _, broker := range metadata.Brokers {
		for {
			is, err := describe(ctx, client.Broker(int(broker.NodeID)), kmsg.ConfigResourceTypeGroupConfig, c.options.Group)
			if err != nil && ctx.Err() == nil {
				break // a broker that is down hears of everything before it serves again
			}
			if err == nil && isSubset(set, is) {
				break
			}
			if err := sleep(ctx, pauses.NextBackOff()); err != nil {
				return err
			}
		}
	}
	return nil
}

func isSubset(some, all map[string]string) bool {
	for name, value := range some {
		if all[name] != value {
			return false
		}
	}
	return true
}

// describe returns the configs that a resource can have.
func describe(ctx context.Context, requestor kmsg.Requestor, kind kmsg.ConfigResourceType, name string) (map[string]string, error) {
	req := kmsg.NewPtrDescribeConfigsRequest()
	resource := kmsg.NewDescribeConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kind, name
	req.Resources = append(req.Resources, resource)
	resp, err := req.RequestWith(ctx, requestor)
	if err != nil {
		return nil, err
	}
	configs := make(map[string]string)
	for _, r := range resp.Resources {
		if err := answer(r.ErrorCode, r.ErrorMessage); err != nil {
			return nil, err
		}
		for _, config := range r.Configs {
			configs[config.Name] = ""
			if config.Value != nil {
				configs[config.Name] = *config.Value
			}
		}
	}
	return configs, nil
}

// alter sets configs of a resource, in one request: all of them or none.
func alter(ctx context.Context, requestor kmsg.Requestor, kind kmsg.ConfigResourceType, name string, configs map[string]string) error {
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	resource := kmsg.NewIncrementalAlterConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kind, name
	for name, value := range configs {
		config := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		config.Name, config.Op, config.Value = name, kmsg.IncrementalAlterConfigOpSet, &value
		resource.Configs = append(resource.Configs, config)
	}
	req.Resources = append(req.Resources, resource)
	resp, err := req.RequestWith(ctx, requestor)
	if err != nil {
		return err
	}
	for _, r := range resp.Resources {
		if err := answer(r.ErrorCode, r.ErrorMessage); err != nil {
			return err
		}
	}
	return nil
}

func answer(code int16, message *string) error {
	err := kerr.ErrorForCode(code)
	if err != nil && message != nil && *message != "" {
		return fmt.Errorf("%w (%s)", err, *message)
	}
	return err
}
