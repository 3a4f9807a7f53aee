package outbox

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// publisher publishes rows so that no record of a key overtakes an earlier one of
// that key that is still to be published.
//
// A partition refuses or loses records by the batch, and the client sends further
// batches after one that was refused. So no more is sent at a time than fits into one
// batch of a partition: all of a key's records have one fate.
type publisher struct {
	client  *kgo.Client
	options Options
	// batchBytes is how much fits into one batch.
	batchBytes int
	// known are topics to which something was sent. What is sent to another may be sent
	// in several batches, while the client learns of its partitions.
	known map[string]bool
	// holds are on topics that did not take their records.
	holds map[string]*hold
}

// hold keeps a topic's rows in the outbox for a while. Other topics go on: Kafka has
// no order across topics.
type hold struct {
	until  time.Time
	pauses *backoff.ExponentialBackOff
	// skipped says that the last look for rows left the topic's out.
	skipped bool
}

// refusal is a row whose record Kafka refuses for what it is.
type refusal struct {
	row
	cause error
}

func newPublisher(client *kgo.Client, o Options) *publisher {
	batchBytes, _ := client.OptValue(kgo.ProducerBatchMaxBytes).(int32)
	return &publisher{
		client:     client,
		options:    o,
		batchBytes: int(batchBytes),
		known:      make(map[string]bool),
		holds:      make(map[string]*hold),
	}
}

// publish publishes rows, which come in the order of their ids. It returns those that
// are acknowledged and those that are refused, each in that order. The others stay
// pending, and their topics are on hold.
func (p *publisher) publish(ctx context.Context, rows []row) (published []row, refused []refusal) {
	ctx, cancel := context.WithTimeout(ctx, p.options.PublishTimeout)
	defer cancel()
	d := &dispatch{publisher: p, failed: make(map[string]bool)}
	var heads, rest []row
	for _, r := range rows {
		if p.known[r.Record.Topic] {
			rest = append(rest, r)
			continue
		}
		heads = append(heads, r)
		p.known[r.Record.Topic] = true
	}
	d.send(ctx, heads)
	d.send(ctx, rest)
	for topic := range d.failed {
		delete(p.known, topic)
	}
	byID := func(a, b row) int { return int(a.id - b.id) }
	slices.SortFunc(d.published, byID)
	slices.SortFunc(d.refused, func(a, b refusal) int { return byID(a.row, b.row) })
	return d.published, d.refused
}

// dispatch is one call of publish.
type dispatch struct {
	*publisher
	published []row
	refused   []refusal
	failed    map[string]bool // topics that did not take their records this time
}

// send publishes rows in their order. Those that are refused together are tried in
// two parts, so that in the end only those are refused that are alone to blame.
func (d *dispatch) send(ctx context.Context, rows []row) {
	rows = slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return d.failed[r.Record.Topic] })
	switch {
	case len(rows) == 0:
		return
	case len(rows) > 1 && size(rows) > d.batchBytes:
		d.send(ctx, rows[:len(rows)/2])
		d.send(ctx, rows[len(rows)/2:])
		return
	}
	var again []row
	for i, err := range d.produce(ctx, rows) {
		topic := rows[i].Record.Topic
		switch {
		case err == nil:
			d.published = append(d.published, rows[i])
			delete(d.holds, topic)
		case !refusedForWhatItIs(err):
			d.fail(ctx, topic, err)
		case len(rows) == 1:
			d.refused = append(d.refused, refusal{rows[i], err})
		default:
			again = append(again, rows[i])
		}
	}
	d.send(ctx, again[:len(again)/2])
	d.send(ctx, again[len(again)/2:])
}

// produce sends rows and waits for what becomes of each.
func (d *dispatch) produce(ctx context.Context, rows []row) []error {
	var (
		outcomes = make([]error, len(rows))
		all      sync.WaitGroup
	)
	all.Add(len(rows))
	for i, r := range rows {
		record := *r.Record // the client writes into what it gets
		d.client.Produce(ctx, &record, func(_ *kgo.Record, err error) {
			outcomes[i] = err
			all.Done()
		})
	}
	// Until every record has come to an end, which is when ctx ends at the latest: a
	// client that is not being flushed would not bring them to one.
	_ = d.client.Flush(context.WithoutCancel(ctx))
	all.Wait()
	return outcomes
}

// fail puts a topic on hold that has not taken its records.
func (d *dispatch) fail(ctx context.Context, topic string, cause error) {
	if d.failed[topic] {
		return
	}
	d.failed[topic] = true
	if errors.Is(ctx.Err(), context.Canceled) {
		return // the relay ends, and not its patience
	}
	h := d.holds[topic]
	if h == nil {
		h = &hold{pauses: newBackoff(d.options.RetryBackoff)}
		d.holds[topic] = h
	}
	pause := h.pauses.NextBackOff()
	h.until = time.Now().Add(pause)
	d.options.Logger.Error("Kafka does not take records of this topic; they stay in the outbox and are tried again, in their order; see that the brokers are up, that the topic exists and that this client may write to it",
		"topic", topic, "after", pause, "cause", cause)
}

// held returns the topics that are on hold, whose rows are to be left out.
func (p *publisher) held() []string {
	topics := []string{}
	for topic, h := range p.holds {
		if h.skipped = time.Now().Before(h.until); h.skipped {
			topics = append(topics, topic)
		}
	}
	return topics
}

// untilRelease is how long it takes until a topic that was left out is no longer on
// hold; most, if there is none, or if it takes longer.
func (p *publisher) untilRelease(most time.Duration) time.Duration {
	for _, h := range p.holds {
		if h.skipped {
			most = min(most, max(time.Until(h.until), 0))
		}
	}
	return most
}

// refusedForWhatItIs says that Kafka will not take this record, or one that was in a
// batch with it, whenever it is sent. A topic that is missing, or that may not be
// written to, is not the record's fault.
func refusedForWhatItIs(err error) bool {
	return slices.ContainsFunc([]error{
		kerr.MessageTooLarge,
		kerr.RecordListTooLarge,
		kerr.InvalidRecord,    // without a key, in a compacted topic
		kerr.InvalidTimestamp, // too far from now for the topic
		kerr.InvalidTopicException,
		kerr.UnsupportedForMessageFormat,
	}, func(refusal error) bool { return errors.Is(err, refusal) })
}

// size is more than the records take in a batch.
func size(rows []row) int {
	const overhead = 40 // lengths and differences, at most
	n := 100            // of the batch
	for _, r := range rows {
		n += overhead + len(r.Record.Key) + len(r.Record.Value)
		for _, h := range r.Record.Headers {
			n += overhead + len(h.Key) + len(h.Value)
		}
	}
	return n
}
