package audit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/order"
)

// TopicAudit is what an output topic holds.
type TopicAudit struct {
	// Committed are the events as a read_committed reader sees them.
	Committed lane.Counts
	// Uncommitted are the events as a reader on the default isolation level sees
	// them: lost or duplicated by their committed copies, else aborted-visible
	// where an aborted copy is to be seen beside the one.
	Uncommitted lane.Counts
	// Order are the events that a read_committed reader sees, by whether the first
	// record of each comes before those of all later events of its key. A record of
	// such an event that says no key is counted as unexpected here.
	Order lane.Counts
	// Effects are all records, those of aborted transactions marked; by
	// partition, then by offset.
	Effects []Effect
	// Unexpected are the records of events that nobody sent.
	Unexpected []Effect
}

// Topic audits an output topic. It first waits until no transaction is open in
// any of its partitions, because until then a read_committed reader does not see
// what lies behind the open one; and then reads every partition up to its end,
// once on each isolation level. A reader that sees nothing for a while is not
// believed: only having reached the end counts, and where the context ends before
// that, the result is an error that names the partition.
//
// The options tell how to reach Kafka; they must name the brokers and must not
// name topics, partitions or groups to consume.
func Topic(ctx context.Context, topic string, expected Expected, opts ...kgo.Opt) (TopicAudit, error) {
	ends, err := settle(ctx, topic, opts)
	if err != nil {
		return TopicAudit{}, err
	}

	type position struct {
		partition int32
		offset    int64
	}
	committed := make(map[position]struct{})
	err = read(ctx, topic, ends, kgo.ReadCommitted(), opts, func(r *kgo.Record) {
		if !r.Attrs.IsControl() {
			committed[position{r.Partition, r.Offset}] = struct{}{}
		}
	})
	if err != nil {
		return TopicAudit{}, err
	}

	visible, aborted := newTally(expected), newTally(expected)
	var found []record
	markers := make(map[producer][]marker)
	err = read(ctx, topic, ends, kgo.ReadUncommitted(), opts, func(r *kgo.Record) {
		from := producer{r.Partition, r.ProducerID}
		if r.Attrs.IsControl() {
			markers[from] = append(markers[from], marker{r.Offset, r.Timestamp})
			return
		}
		_, isCommitted := committed[position{r.Partition, r.Offset}]
		key, sequence := requested(r)
		found = append(found, record{
			producer:      from,
			offset:        r.Offset,
			transactional: r.Attrs.IsTransactional(),
			effect: Effect{
				EventID:  order.ID(r),
				Attempt:  order.Header(r, order.HeaderAttempt),
				Where:    topic,
				Position: fmt.Sprintf("%d@%d", r.Partition, r.Offset),
				At:       r.Timestamp,
				Aborted:  !isCommitted,
				Key:      key,
				Sequence: sequence,
			},
		})
	})
	if err != nil {
		return TopicAudit{}, err
	}

	var a TopicAudit
	slices.SortFunc(found, record.compare)
	for _, r := range found {
		if r.transactional {
			r.effect.At = ended(markers[r.producer], r.offset)
		}
		a.Effects = append(a.Effects, r.effect)
		if r.effect.Aborted {
			aborted.add(r.effect)
		} else {
			visible.add(r.effect)
		}
	}
	a.Unexpected = slices.Concat(visible.unexpected, aborted.unexpected)
	a.Committed = visible.counts(func(id string) lane.Outcome { return outcome(visible.found[id]) })
	a.Uncommitted = visible.counts(func(id string) lane.Outcome {
		if visible.found[id] == 1 && aborted.found[id] > 0 {
			return lane.AbortedVisible
		}
		return outcome(visible.found[id])
	})
	a.Uncommitted.Unexpected = len(a.Unexpected)
	a.Order = inOrder(expected, a.Effects)
	return a, nil
}

// requested returns the order that a pick request is about and the place of its
// event among the order's; "" and 0 where the record is none.
func requested(r *kgo.Record) (orderID string, sequence int64) {
	var pick order.PickRequested
	if json.Unmarshal(r.Value, &pick) != nil || pick.OrderID == "" || pick.Sequence < 1 {
		return "", 0
	}
	return pick.OrderID, pick.Sequence
}

// CommittedRecords counts what a read_committed reader sees in a topic, such as
// the dead letters. It waits for open transactions as [Topic] does.
func CommittedRecords(ctx context.Context, topic string, opts ...kgo.Opt) (int, error) {
	n := 0
	err := EachCommitted(ctx, topic, func(*kgo.Record) { n++ }, opts...)
	return n, err
}

// EachCommitted calls found for every record that a read_committed reader sees in a
// topic, those of one partition in the order of their offsets. It waits for open
// transactions as [Topic] does. What found gets is valid until it returns.
func EachCommitted(ctx context.Context, topic string, found func(*kgo.Record), opts ...kgo.Opt) error {
	ends, err := settle(ctx, topic, opts)
	if err != nil {
		return err
	}
	return read(ctx, topic, ends, kgo.ReadCommitted(), opts, func(r *kgo.Record) {
		if !r.Attrs.IsControl() {
			found(r)
		}
	})
}

// record is a data record on its way to become an effect.
type record struct {
	producer
	offset        int64
	transactional bool
	effect        Effect
}

// producer is one producer in one partition, where its transactions follow one
// another: each of its records belongs to its next marker.
type producer struct {
	partition int32
	id        int64
}

// marker is the control record that ends a transaction in a partition, with the
// time at which the broker wrote it.
type marker struct {
	offset int64
	at     time.Time
}

func (r record) compare(other record) int {
	return cmp.Or(cmp.Compare(r.partition, other.partition), cmp.Compare(r.offset, other.offset))
}

// ended returns the time of the first marker behind offset, or zero. Markers are
// in the order of their offsets.
func ended(markers []marker, offset int64) time.Time {
	// No marker has the offset of a record, so this is where the next one is.
	at, _ := slices.BinarySearchFunc(markers, offset, func(m marker, o int64) int { return cmp.Compare(m.offset, o) })
	if at == len(markers) {
		return time.Time{}
	}
	return markers[at].at
}

// span is what is to be read of one partition: from start up to, not including,
// end.
type span struct{ start, end int64 }

// settle waits until the last stable offset of every partition has reached its
// high watermark, so that no transaction is open, and returns what there is to
// read. The high watermark is asked for first: a transaction that begins between
// the two questions then lies behind what is read.
func settle(ctx context.Context, topic string, opts []kgo.Opt) (map[int32]span, error) {
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("audit topic %s: %w", topic, err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)

	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval = 20 * time.Millisecond
	pause.MaxInterval = 500 * time.Millisecond
	var reason error
	spans, err := backoff.Retry(ctx, func() (map[int32]span, error) {
		spans, err := offsets(ctx, admin, topic)
		// A request that ended with the context says nothing about the topic,
		// so the last answer before it remains the reason.
		if err != nil && (reason == nil || ctx.Err() == nil) {
			reason = err
		}
		if err != nil && final(err) {
			err = backoff.Permanent(err)
		}
		return spans, err
	}, backoff.WithBackOff(pause), backoff.WithMaxElapsedTime(0))
	switch {
	case err == nil:
		return spans, nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("audit topic %s: gave up waiting: %w (%w)", topic, reason, context.Cause(ctx))
	default:
		return nil, fmt.Errorf("audit topic %s: %w", topic, err)
	}
}

// final says that asking again cannot help. Whatever a restarting broker may
// answer, or fail to answer, is not final; records that are gone are.
func final(err error) bool {
	var answered *kerr.Error
	var gone *kgo.ErrDataLoss
	return errors.As(err, &gone) || errors.As(err, &answered) && !answered.Retriable
}

// offsets returns what there is to read, or why that cannot be said yet.
func offsets(ctx context.Context, admin *kadm.Client, topic string) (map[int32]span, error) {
	starts, err := listed(admin.ListStartOffsets(ctx, topic))
	if err != nil {
		return nil, err
	}
	ends, err := listed(admin.ListEndOffsets(ctx, topic))
	if err != nil {
		return nil, err
	}
	stable, err := listed(admin.ListCommittedOffsets(ctx, topic))
	if err != nil {
		return nil, err
	}
	spans := make(map[int32]span)
	for partition, end := range ends[topic] {
		if at := stable[topic][partition].Offset; at < end.Offset {
			return nil, fmt.Errorf("a transaction is still open in %s/%d: the last stable offset is %d, the high watermark %d",
				topic, partition, at, end.Offset)
		}
		spans[partition] = span{starts[topic][partition].Offset, end.Offset}
	}
	if len(spans) == 0 {
		return nil, errors.New("the topic has no partitions")
	}
	return spans, nil
}

// listed makes an error of a partition the error of the answer.
func listed(offsets kadm.ListedOffsets, err error) (kadm.ListedOffsets, error) {
	if err == nil {
		err = offsets.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("list offsets: %w", err)
	}
	return offsets, nil
}

// read calls found for every record in the spans, control records included: they
// take offsets too, and without them nobody could tell a partition that ends in
// markers from one that has not been read to its end.
func read(ctx context.Context, topic string, spans map[int32]span, level kgo.IsolationLevel, opts []kgo.Opt, found func(*kgo.Record)) error {
	from := make(map[int32]kgo.Offset)
	left := make(map[int32]span)
	for partition, s := range spans {
		if s.start < s.end {
			from[partition] = kgo.NewOffset().At(s.start)
			left[partition] = s
		}
	}
	if len(left) == 0 {
		return nil
	}
	client, err := kgo.NewClient(append(slices.Clone(opts),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}),
		kgo.FetchIsolationLevel(level),
		kgo.KeepControlRecords(),
	)...)
	if err != nil {
		return fmt.Errorf("audit topic %s: %w", topic, err)
	}
	defer client.Close()

	var trouble error // the last that may pass
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			for partition, s := range left {
				return fmt.Errorf("audit topic %s: partition %d was read only up to offset %d of %d: %w",
					topic, partition, s.start, s.end, errors.Join(context.Cause(ctx), trouble))
			}
		}
		for _, failed := range fetches.Errors() {
			if final(failed.Err) {
				return fmt.Errorf("audit topic %s: read partition %d: %w", topic, failed.Partition, failed.Err)
			}
			trouble = failed.Err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			s, reading := left[r.Partition]
			if !reading {
				return
			}
			if r.Offset < s.end {
				found(r)
				s.start = r.Offset + 1
				left[r.Partition] = s
			}
			if r.Offset >= s.end-1 {
				delete(left, r.Partition)
			}
		})
	}
	return nil
}
