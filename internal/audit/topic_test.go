package audit_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/delivered-twice/delivered-twice/internal/audit"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

const (
	commit = true
	abort  = false
)

// topic is an output topic that a test fills by hand.
type topic struct {
	testing.TB
	name  string
	plain *kgo.Client
	inTxn *kgo.Client
}

func newTopic(t *testing.T, partitions int32) topic {
	t.Helper()
	opts := []kgo.Opt{
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		// A topic this fresh may have to be asked for again.
		kgo.MetadataMinAge(100 * time.Millisecond),
	}
	return topic{
		TB:    t,
		name:  sandboxtest.Topic(t, partitions),
		plain: sandboxtest.Client(t, opts...),
		inTxn: sandboxtest.Client(t, append(opts, kgo.TransactionalID(sandboxtest.Name(t)))...),
	}
}

func (t topic) records(partition int32, attempt string, ids []string) (all []*kgo.Record) {
	for _, id := range ids {
		all = append(all, &kgo.Record{
			Topic: t.name, Partition: partition, Value: []byte("{}"),
			Headers: []kgo.RecordHeader{
				{Key: order.HeaderEventID, Value: []byte(id)},
				{Key: order.HeaderAttempt, Value: []byte(attempt)},
			},
		})
	}
	return all
}

// produce writes outside any transaction.
func (t topic) produce(partition int32, ids ...string) {
	t.Helper()
	require.NoError(t, t.plain.ProduceSync(t.Context(), t.records(partition, "plain", ids)...).FirstErr())
}

// begin leaves a transaction open; end ends it.
func (t topic) begin(partition int32, ids ...string) {
	t.Helper()
	require.NoError(t, t.inTxn.BeginTransaction())
	require.NoError(t, t.inTxn.ProduceSync(t.Context(), t.records(partition, "txn", ids)...).FirstErr())
}

func (t topic) end(how bool) {
	if err := t.inTxn.EndTransaction(context.Background(), kgo.TransactionEndTry(how)); err != nil {
		t.Error(err) // and go on: this may be another goroutine than the test's
	}
}

func (t topic) transaction(how bool, partition int32, ids ...string) {
	t.Helper()
	t.begin(partition, ids...)
	t.end(how)
}

func (t topic) audit(expected audit.Expected) audit.TopicAudit {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	a, err := audit.Topic(ctx, t.name, expected, seeds(t)...)
	require.NoError(t, err)
	return a
}

func seeds(t testing.TB) []kgo.Opt {
	return []kgo.Opt{kgo.SeedBrokers(sandboxtest.Brokers(t)...)}
}

func TestTopicCounts(t *testing.T) {
	for _, c := range []struct {
		name                   string
		fill                   func(t topic)
		sent                   []string
		committed, uncommitted lane.Counts
	}{
		{
			name:        "nothing",
			fill:        func(topic) {},
			sent:        []string{"a", "b"},
			committed:   lane.Counts{Expected: 2, Lost: 2},
			uncommitted: lane.Counts{Expected: 2, Lost: 2},
		},
		{
			name:        "outside transactions",
			fill:        func(t topic) { t.produce(0, "a", "b"); t.produce(2, "b", "c"); t.produce(1, "b") },
			sent:        []string{"a", "b", "c", "d"},
			committed:   lane.Counts{Expected: 4, Once: 2, Duplicated: 1, Lost: 1},
			uncommitted: lane.Counts{Expected: 4, Once: 2, Duplicated: 1, Lost: 1},
		},
		{
			name: "a killed attempt and the one that replaced it",
			fill: func(t topic) {
				t.transaction(abort, 0, "a", "b")
				t.transaction(commit, 0, "a", "b", "c")
			},
			sent:        []string{"a", "b", "c"},
			committed:   lane.Counts{Expected: 3, Once: 3},
			uncommitted: lane.Counts{Expected: 3, Once: 1, AbortedVisible: 2},
		},
		{
			name: "only aborted is lost, on either level",
			fill: func(t topic) {
				t.transaction(commit, 1, "b")
				t.transaction(abort, 1, "a")
			},
			sent:        []string{"a", "b"},
			committed:   lane.Counts{Expected: 2, Once: 1, Lost: 1},
			uncommitted: lane.Counts{Expected: 2, Once: 1, Lost: 1},
		},
		{
			name: "committed twice is duplicated, aborted copies or not",
			fill: func(t topic) {
				t.transaction(commit, 0, "a")
				t.transaction(abort, 0, "a")
				t.transaction(commit, 0, "a")
			},
			sent:        []string{"a"},
			committed:   lane.Counts{Expected: 1, Duplicated: 1},
			uncommitted: lane.Counts{Expected: 1, Duplicated: 1},
		},
		{
			name: "a partition that ends in aborts and their markers",
			fill: func(t topic) {
				t.transaction(commit, 0, "a")
				for range 5 {
					t.transaction(abort, 0, "b")
				}
				t.transaction(commit, 1, "b")
			},
			sent:        []string{"a", "b"},
			committed:   lane.Counts{Expected: 2, Once: 2},
			uncommitted: lane.Counts{Expected: 2, Once: 1, AbortedVisible: 1},
		},
		{
			name: "what nobody sent, committed and aborted",
			fill: func(t topic) {
				t.transaction(commit, 2, "a", "stranger")
				t.transaction(abort, 2, "ghost")
			},
			sent:        []string{"a"},
			committed:   lane.Counts{Expected: 1, Once: 1, Unexpected: 1},
			uncommitted: lane.Counts{Expected: 1, Once: 1, Unexpected: 2},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			topic := newTopic(t, 3)
			c.fill(topic)
			a := topic.audit(sent(c.sent...))
			require.Equal(t, c.committed, a.Committed, "committed")
			require.Equal(t, c.uncommitted, a.Uncommitted, "uncommitted")
		})
	}
}

func TestTopicTellsWhichAttemptLeftWhatAndWhere(t *testing.T) {
	topic := newTopic(t, 2)
	topic.transaction(abort, 1, "a")
	topic.transaction(commit, 1, "a")
	topic.produce(0, "stranger")

	a := topic.audit(sent("a"))
	for i := range a.Effects {
		require.WithinDuration(t, time.Now(), a.Effects[i].At, time.Minute)
		a.Effects[i].At = time.Time{}
	}
	require.Equal(t, []audit.Effect{
		{EventID: "stranger", Attempt: "plain", Where: topic.name, Position: "0@0"},
		{EventID: "a", Attempt: "txn", Where: topic.name, Position: "1@0", Aborted: true},
		{EventID: "a", Attempt: "txn", Where: topic.name, Position: "1@2"},
	}, a.Effects)
	require.Len(t, a.Unexpected, 1)
	require.Equal(t, fmt.Sprintf(`"stranger" in %s at 0@0, by attempt "plain"`, topic.name), a.Unexpected[0].String())
}

// pick is a record of the output topic as the pipelines write it: an event's id, its
// order and its sequence.
func (t topic) pick(partition int32, id, orderID string, sequence int64) *kgo.Record {
	r := order.Pick(t.name, &kgo.Record{Key: []byte(orderID)}, id, order.Event{OrderID: orderID, Sequence: sequence}, "p-1")
	r.Partition = partition
	return r
}

func (t topic) picks(all ...*kgo.Record) {
	t.Helper()
	require.NoError(t, t.plain.ProduceSync(t.Context(), all...).FirstErr())
}

func (t topic) picksIn(how bool, all ...*kgo.Record) {
	t.Helper()
	require.NoError(t, t.inTxn.BeginTransaction())
	require.NoError(t, t.inTxn.ProduceSync(t.Context(), all...).FirstErr())
	t.end(how)
}

func TestTopicOrder(t *testing.T) {
	for _, c := range []struct {
		name string
		fill func(t topic)
		want lane.Counts
	}{
		{
			name: "nothing",
			fill: func(topic) {},
			want: lane.Counts{},
		},
		{
			name: "as they were sent, orders mixed, one lost",
			fill: func(t topic) {
				t.picks(t.pick(0, "a1", "A", 1), t.pick(0, "b1", "B", 1), t.pick(0, "b2", "B", 2), t.pick(0, "a3", "A", 3))
			},
			want: lane.Counts{Expected: 4, Once: 4},
		},
		{
			name: "a duplicate that comes later is none of it",
			fill: func(t topic) {
				t.picks(t.pick(0, "a1", "A", 1), t.pick(0, "a2", "A", 2), t.pick(0, "a1", "A", 1), t.pick(0, "a3", "A", 3))
			},
			want: lane.Counts{Expected: 3, Once: 3},
		},
		{
			name: "first effects behind that of a later event",
			fill: func(t topic) {
				t.picks(t.pick(0, "a3", "A", 3), t.pick(0, "a1", "A", 1), t.pick(0, "a2", "A", 2), t.pick(0, "a4", "A", 4))
			},
			want: lane.Counts{Expected: 4, Once: 2, Reordered: 2},
		},
		{
			name: "a later event of another order, and of another partition",
			fill: func(t topic) {
				t.picks(t.pick(0, "b2", "B", 2), t.pick(0, "a2", "A", 2))
				t.picks(t.pick(1, "a1", "A", 1))
			},
			want: lane.Counts{Expected: 3, Once: 3},
		},
		{
			name: "aborted copies were never applied",
			fill: func(t topic) {
				t.picksIn(abort, t.pick(0, "a2", "A", 2))
				t.picksIn(commit, t.pick(0, "a1", "A", 1))
				t.picksIn(abort, t.pick(0, "a3", "A", 3))
				t.picksIn(commit, t.pick(0, "a2", "A", 2))
			},
			want: lane.Counts{Expected: 2, Once: 2},
		},
		{
			name: "an aborted first copy does not make the second one early",
			fill: func(t topic) {
				t.picksIn(abort, t.pick(0, "a1", "A", 1))
				t.picksIn(commit, t.pick(0, "a2", "A", 2))
				t.picksIn(commit, t.pick(0, "a1", "A", 1))
			},
			want: lane.Counts{Expected: 2, Once: 1, Reordered: 1},
		},
		{
			name: "strangers overtake nobody",
			fill: func(t topic) {
				t.picks(t.pick(0, "x9", "A", 9), t.pick(0, "a1", "A", 1))
			},
			want: lane.Counts{Expected: 1, Once: 1},
		},
		{
			name: "a record that says no key has no order",
			fill: func(t topic) {
				t.picks(t.pick(0, "a1", "A", 1))
				t.produce(0, "a2")
			},
			want: lane.Counts{Expected: 1, Once: 1, Unexpected: 1},
		},
		{
			name: "offsets of two digits",
			fill: func(t topic) {
				for n := range int64(12) {
					t.picks(t.pick(0, fmt.Sprintf("a%d", n+1), "A", n+1))
				}
			},
			want: lane.Counts{Expected: 12, Once: 12},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			topic := newTopic(t, 2)
			c.fill(topic)
			var ids []string
			for n := range 12 {
				ids = append(ids, fmt.Sprintf("a%d", n+1), fmt.Sprintf("b%d", n+1))
			}
			require.Equal(t, c.want, topic.audit(sent(ids...)).Order)
		})
	}
}

// A record without an id header goes by the hash of its bytes; one of a stranger
// must not disappear.
func TestTopicTakesTheIdentityRule(t *testing.T) {
	topic := newTopic(t, 1)
	r := &kgo.Record{Topic: topic.name, Value: []byte(`{"id":"a"}`)}
	require.NoError(t, topic.plain.ProduceSync(t.Context(), r).FirstErr())
	require.Equal(t, lane.Counts{Expected: 1, Once: 1}, topic.audit(sent(order.ID(r))).Committed)
	require.Equal(t, lane.Counts{Expected: 1, Lost: 1, Unexpected: 1}, topic.audit(sent("a")).Committed)
}

// asked counts the rounds in which the auditor has looked for open transactions.
type asked chan struct{}

func (a asked) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	if key == int16(kmsg.ListOffsets) {
		select {
		case a <- struct{}{}:
		default:
		}
	}
}

func TestTopicWaitsForAnOpenTransaction(t *testing.T) {
	topic := newTopic(t, 2)
	topic.transaction(commit, 0, "a")
	topic.begin(1, "b")
	topic.produce(1, "c") // behind the open one, so hidden from read_committed

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	waiting := make(asked)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer topic.end(commit)
		for range 9 { // three questions a round
			select {
			case <-waiting:
			case <-ctx.Done():
				return
			}
		}
	}()
	a, err := audit.Topic(ctx, topic.name, sent("a", "b", "c"), append(seeds(t), kgo.WithHooks(waiting))...)
	cancel()
	<-ended
	require.NoError(t, err)
	require.Equal(t, lane.Counts{Expected: 3, Once: 3}, a.Committed)
	require.Equal(t, lane.Counts{Expected: 3, Once: 3}, a.Uncommitted)
}

func TestTopicNamesTheTransactionThatNeverEnds(t *testing.T) {
	topic := newTopic(t, 2)
	topic.begin(1, "a")
	defer topic.end(abort)

	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := audit.Topic(ctx, topic.name, sent("a"), seeds(t)...)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "a transaction is still open in "+topic.name+"/1: the last stable offset is 0, the high watermark 1")
}

func TestTopicThatIsNotThere(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	name := sandboxtest.Name(t)
	_, err := audit.Topic(ctx, name, sent("a"), seeds(t)...)
	require.ErrorContains(t, err, "audit topic "+name)
	require.ErrorContains(t, err, "UNKNOWN_TOPIC_OR_PARTITION")
}

// stalled lets connections through until the first fetch, and then nothing more.
type stalled struct {
	stop chan struct{}
}

func (s stalled) dial(ctx context.Context, network, host string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, host)
	if err != nil {
		return nil, err
	}
	return stalledConn{conn, s.stop}, nil
}

func (s stalled) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	if key == int16(kmsg.Fetch) {
		select {
		case <-s.stop:
		default:
			close(s.stop)
		}
	}
}

type stalledConn struct {
	net.Conn
	stop chan struct{}
}

func (c stalledConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	select {
	case <-c.stop:
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

func TestAReaderThatSeesNothingIsNotBelieved(t *testing.T) {
	topic := newTopic(t, 1)
	topic.produce(0, "a", "b")

	broken := stalled{make(chan struct{})}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := audit.Topic(ctx, topic.name, sent("a", "b"), append(seeds(t), kgo.Dialer(broken.dial), kgo.WithHooks(broken))...)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "partition 0 was read only up to offset 0 of 2")
}

func TestCommittedRecordsCountsRecordsNotOffsets(t *testing.T) {
	topic := newTopic(t, 2)
	topic.transaction(commit, 0, "a", "b")
	topic.transaction(abort, 1, "c")
	topic.produce(1, "d")
	n, err := audit.CommittedRecords(t.Context(), topic.name, seeds(t)...)
	require.NoError(t, err)
	require.Equal(t, 3, n)
}
