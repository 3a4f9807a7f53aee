package wire_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
	"github.com/delivered-twice/delivered-twice/internal/wire"
)

func kafkaProxy(t *testing.T) *wire.Proxy {
	proxy, err := wire.Kafka(sandboxtest.Brokers(t))
	return closing(t, proxy, err)
}

// dialled records where a client connects to.
type dialled struct {
	mu        sync.Mutex
	addresses map[string]bool
}

func (d *dialled) dial(ctx context.Context, network, address string) (net.Conn, error) {
	d.mu.Lock()
	if d.addresses == nil {
		d.addresses = make(map[string]bool)
	}
	d.addresses[address] = true
	d.mu.Unlock()
	return new(net.Dialer).DialContext(ctx, network, address)
}

// all are the addresses so far: clients that are still there may be dialling.
func (d *dialled) all() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.addresses))
}

// through returns a client that knows nothing but the proxy.
func through(t *testing.T, proxy *wire.Proxy, opts ...kgo.Opt) *kgo.Client {
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(proxy.Addrs()...)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

// brokers are the addresses that the brokers advertise to a client.
func brokers(t *testing.T, client *kgo.Client) []string {
	metadata, err := kadm.NewClient(client).BrokerMetadata(within(t))
	require.NoError(t, err)
	var addresses []string
	for _, broker := range metadata.Brokers {
		addresses = append(addresses, net.JoinHostPort(broker.Host, strconv.Itoa(int(broker.Port))))
	}
	return addresses
}

// committed are the values that a read_committed reader that goes past the proxy
// finds in a topic of one partition.
func committed(t *testing.T, topic string) []string {
	const end = "the end"
	client := sandboxtest.Client(t, kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DefaultProduceTopic(topic))
	require.NoError(t, client.ProduceSync(within(t), kgo.StringRecord(end)).FirstErr())
	var values []string
	for {
		fetches := client.PollFetches(within(t))
		require.NoError(t, fetches.Err())
		for _, record := range fetches.Records() {
			if string(record.Value) == end {
				return values
			}
			values = append(values, string(record.Value))
		}
	}
}

func TestNoClientGetsPastTheProxy(t *testing.T) {
	proxy := kafkaProxy(t)
	in, out := sandboxtest.Topic(t, 6), sandboxtest.Topic(t, 6)
	group := sandboxtest.Name(t)
	var to dialled
	opts := []kgo.Opt{kgo.Dialer(to.dial), kgo.RecordPartitioner(kgo.ManualPartitioner())}

	producer := through(t, proxy, opts...)
	for partition := range int32(6) {
		require.NoError(t, producer.ProduceSync(within(t), &kgo.Record{Topic: in, Partition: partition, Value: []byte("x")}).FirstErr())
	}
	session, err := kgo.NewGroupTransactSession(append(opts, kgo.SeedBrokers(proxy.Addrs()...), kgo.TransactionalID(group),
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(in), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	require.NoError(t, err)
	defer session.Close()
	for passed := 0; passed < 6; {
		fetches := session.PollFetches(within(t))
		require.NoError(t, fetches.Err())
		require.NoError(t, session.Begin())
		for _, record := range fetches.Records() {
			session.Produce(within(t), &kgo.Record{Topic: out, Partition: record.Partition, Value: record.Value}, nil)
		}
		done, err := session.End(within(t), kgo.TryCommit)
		require.NoError(t, err)
		if done {
			passed += fetches.NumRecords()
		}
	}
	reader := through(t, proxy, append(opts, kgo.ConsumeTopics(out), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	for got := 0; got < 6; {
		fetches := reader.PollFetches(within(t))
		require.NoError(t, fetches.Err())
		got += fetches.NumRecords()
	}
	lags, err := kadm.NewClient(reader).Lag(within(t), group)
	require.NoError(t, err)
	require.NoError(t, lags.Error())
	require.Zero(t, lags[group].Lag.Total())

	upstream := brokers(t, sandboxtest.Client(t))
	require.Len(t, brokers(t, reader), len(upstream))
	described, err := kmsg.NewPtrDescribeClusterRequest().RequestWith(within(t), reader)
	require.NoError(t, err)
	require.Len(t, described.Brokers, len(upstream))
	for _, broker := range described.Brokers {
		require.NotContains(t, upstream, net.JoinHostPort(broker.Host, strconv.Itoa(int(broker.Port))))
	}
	addresses := to.all()
	require.GreaterOrEqual(t, len(addresses), len(upstream), "some broker was never needed")
	for _, address := range addresses {
		require.NotContains(t, append(upstream, sandboxtest.Brokers(t)...), address, "a broker's own address was dialled")
	}
}

func TestTransactionCutAtEndTxn(t *testing.T) {
	for _, test := range []struct {
		when   wire.When
		states []string // of the transaction, when it strikes
		done   bool
	}{
		{wire.BeforeForward, []string{"Ongoing"}, false},
		{wire.BeforeAnswer, []string{"PrepareCommit", "CompleteCommit", "Empty"}, true}, // Empty is what kfake says,
	} {
		t.Run(string(test.when), func(t *testing.T) {
			proxy := kafkaProxy(t)
			topic, id := sandboxtest.Topic(t, 1), sandboxtest.Name(t)
			direct := kadm.NewClient(sandboxtest.Client(t))
			client := through(t, proxy, kgo.TransactionalID(id), kgo.ClientID("the one"), kgo.DefaultProduceTopic(topic), kgo.RequestRetries(2))

			var state string
			var strike wire.Strike
			cut := wire.Trigger{On: wire.EndTxn, When: test.when}
			cut.Do = func(s *wire.Strike) {
				if state == "" {
					strike = *s
					described, err := direct.DescribeTransactions(context.Background(), id)
					if err == nil {
						state = described[id].State
					}
				}
				s.Cut()
				proxy.At(cut) // the client tries again
			}
			struck := proxy.At(cut)
			require.NoError(t, client.BeginTransaction())
			require.NoError(t, client.ProduceSync(within(t), kgo.StringRecord("x")).FirstErr())
			requireOpen(t, struck, "it struck at something else")
			require.Error(t, client.EndTransaction(within(t), kgo.TryCommit))
			wait(t, "EndTxn", struck)
			require.NoError(t, proxy.Close())
			requireNoGoroutines(t)

			require.Contains(t, test.states, state)
			require.Equal(t, wire.EndTxn, strike.Kind)
			require.Equal(t, "the one", strike.Conn.ClientID)
			require.Contains(t, brokers(t, sandboxtest.Client(t)), strike.Conn.Server)
			// The next one under that id aborts what was left open.
			next := sandboxtest.Client(t, kgo.TransactionalID(id))
			_, _, err := next.ProducerID(within(t))
			require.NoError(t, err)
			want := []string(nil)
			if test.done {
				want = []string{"x"}
			}
			require.Equal(t, want, committed(t, topic))
		})
	}
}

func TestAnAbortIsNoCommit(t *testing.T) {
	proxy := kafkaProxy(t)
	topic := sandboxtest.Topic(t, 1)
	client := through(t, proxy, kgo.TransactionalID(topic), kgo.DefaultProduceTopic(topic))
	struck := proxy.At(wire.Trigger{On: wire.EndTxn, When: wire.AfterAnswer, Do: func(*wire.Strike) {}})
	for _, try := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		requireOpen(t, struck, "it struck at an abort")
		require.NoError(t, client.BeginTransaction())
		require.NoError(t, client.ProduceSync(within(t), kgo.StringRecord("x")).FirstErr())
		require.NoError(t, client.EndTransaction(within(t), try))
	}
	wait(t, "the commit", struck)
}

func TestCountsAcrossConnectionsThatMatch(t *testing.T) {
	proxy := kafkaProxy(t)
	topic := sandboxtest.Topic(t, 1)
	clients := make(map[string]*kgo.Client)
	for _, id := range []string{"a", "b", "other"} {
		clients[id] = through(t, proxy, kgo.ClientID(id), kgo.DefaultProduceTopic(topic))
	}
	produce := func(id string) {
		require.NoError(t, clients[id].ProduceSync(within(t), kgo.StringRecord("x")).FirstErr())
	}
	produce("a") // before it is armed
	var at atomic.Value
	third := proxy.At(wire.Trigger{
		On: wire.Produce, Nth: 3, When: wire.AfterAnswer,
		Match: func(c wire.Conn) bool { return c.ClientID != "other" },
		Do:    func(s *wire.Strike) { at.Store(s.Conn.ClientID) },
	})
	seventh := proxy.At(wire.Trigger{On: wire.Produce, Nth: 7, When: wire.BeforeForward, Do: func(*wire.Strike) {}})
	for _, id := range []string{"other", "a", "other", "b", "other"} {
		produce(id)
		requireOpen(t, third, "too early")
	}
	produce("b")
	wait(t, "the third", third)
	require.Equal(t, "b", at.Load())
	requireOpen(t, seventh, "too early")
	produce("a")
	wait(t, "the seventh of all", seventh)
}

func TestProduceWithoutAnswer(t *testing.T) {
	proxy := kafkaProxy(t)
	topic := sandboxtest.Topic(t, 1)
	silent := through(t, proxy, kgo.ClientID("silent"), kgo.DefaultProduceTopic(topic), kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite())
	struck := make(map[wire.When]<-chan struct{})
	var by sync.Map
	for _, when := range []wire.When{wire.BeforeForward, wire.AfterForward, wire.BeforeAnswer, wire.AfterAnswer} {
		struck[when] = proxy.At(wire.Trigger{On: wire.Produce, When: when, Do: func(s *wire.Strike) { by.Store(when, s.Conn.ClientID) }})
	}
	for range 3 {
		require.NoError(t, silent.ProduceSync(within(t), kgo.StringRecord("x")).FirstErr())
	}
	wait(t, "before it is forwarded", struck[wire.BeforeForward])
	wait(t, "after it was forwarded", struck[wire.AfterForward])
	// Its answers are matched as before, past those that never come.
	require.Len(t, brokers(t, silent), len(brokers(t, sandboxtest.Client(t))))
	require.NoError(t, through(t, proxy, kgo.ClientID("answered"), kgo.DefaultProduceTopic(topic)).
		ProduceSync(within(t), kgo.StringRecord("x")).FirstErr())
	for when, want := range map[wire.When]string{
		wire.BeforeForward: "silent", wire.AfterForward: "silent", wire.BeforeAnswer: "answered", wire.AfterAnswer: "answered",
	} {
		wait(t, string(when), struck[when])
		got, _ := by.Load(when)
		require.Equal(t, want, got, when)
	}
}

func TestHoldLetsOtherConnectionsGoOn(t *testing.T) {
	proxy := kafkaProxy(t)
	topic := sandboxtest.Topic(t, 1)
	held, release := make(chan struct{}), make(chan struct{})
	struck := proxy.At(wire.Trigger{On: wire.Produce, When: wire.BeforeForward, Do: func(s *wire.Strike) {
		close(held)
		s.Hold(release)
	}})
	first := through(t, proxy, kgo.DefaultProduceTopic(topic))
	slow := make(chan struct{})
	first.Produce(within(t), kgo.StringRecord("held"), func(*kgo.Record, error) { close(slow) })
	wait(t, "the hold", held)
	require.NoError(t, through(t, proxy, kgo.DefaultProduceTopic(topic)).ProduceSync(within(t), kgo.StringRecord("past it")).FirstErr())
	requireOpen(t, slow, "it was not held")
	requireOpen(t, struck, "Do has not returned")
	close(release)
	wait(t, "the answer", slow)
	require.Equal(t, []string{"past it", "held"}, committed(t, topic))
}

func TestGroupOffsets(t *testing.T) {
	proxy := kafkaProxy(t)
	topic := sandboxtest.Topic(t, 1)
	group := sandboxtest.Name(t)
	direct := kadm.NewClient(sandboxtest.Client(t))
	offset := func() int64 {
		offsets, err := direct.FetchOffsets(context.Background(), group)
		if err != nil {
			return -1
		}
		at, _ := offsets.Lookup(topic, 0)
		return at.At
	}
	commit := func(admin *kadm.Client, last int64) error {
		return admin.CommitAllOffsets(within(t), group, kadm.OffsetsFromRecords(kgo.Record{Topic: topic, Offset: last}))
	}
	// The group's coordinator may be a broker that has not heard of the topic yet.
	require.Eventually(t, func() bool { return commit(direct, 3) == nil }, patience, 10*time.Millisecond)
	var before, after int64
	proxy.At(wire.Trigger{On: wire.OffsetCommit, When: wire.BeforeForward, Do: func(*wire.Strike) { before = offset() }})
	struck := proxy.At(wire.Trigger{On: wire.OffsetCommit, When: wire.BeforeAnswer, Do: func(*wire.Strike) { after = offset() }})
	require.NoError(t, commit(kadm.NewClient(through(t, proxy)), 6))
	wait(t, "the answer", struck)
	require.EqualValues(t, 4, before)
	require.EqualValues(t, 7, after)
}

func TestOffsetsInATransaction(t *testing.T) {
	proxy := kafkaProxy(t)
	topic := sandboxtest.Topic(t, 1)
	var order []wire.Kind
	note := func(s *wire.Strike) { order = append(order, s.Kind) }
	for _, kind := range []wire.Kind{wire.EndTxn, wire.TxnOffsetCommit} {
		proxy.At(wire.Trigger{On: kind, When: wire.BeforeAnswer, Do: note})
	}
	require.NoError(t, sandboxtest.Client(t, kgo.DefaultProduceTopic(topic)).ProduceSync(within(t), kgo.StringRecord("x")).FirstErr())
	session, err := kgo.NewGroupTransactSession(kgo.SeedBrokers(proxy.Addrs()...), kgo.TransactionalID(topic), kgo.ConsumerGroup(topic),
		kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.NoError(t, err)
	defer session.Close()
	for fetched := 0; fetched == 0; {
		fetches := session.PollFetches(within(t))
		require.NoError(t, fetches.Err())
		fetched = fetches.NumRecords()
	}
	require.NoError(t, session.Begin())
	done, err := session.End(within(t), kgo.TryCommit)
	require.NoError(t, err)
	require.True(t, done)
	require.Equal(t, []wire.Kind{wire.TxnOffsetCommit, wire.EndTxn}, order)
}

func TestShareGroupAcknowledges(t *testing.T) {
	for _, when := range []wire.When{wire.BeforeForward, wire.BeforeAnswer} {
		t.Run(string(when), func(t *testing.T) {
			proxy := kafkaProxy(t)
			topic, group := sandboxtest.Topic(t, 1), sandboxtest.Name(t)
			direct := sandboxtest.Client(t, kgo.DefaultProduceTopic(topic))
			config := kmsg.NewIncrementalAlterConfigsRequestResource()
			config.ResourceType, config.ResourceName = kmsg.ConfigResourceTypeGroupConfig, group
			reset := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
			reset.Name, reset.Value = "share.auto.offset.reset", kmsg.StringPtr("earliest")
			config.Configs = append(config.Configs, reset)
			alter := kmsg.NewPtrIncrementalAlterConfigsRequest()
			alter.Resources = append(alter.Resources, config)
			altered, err := alter.RequestWith(within(t), direct)
			require.NoError(t, err)
			require.NoError(t, kerr.ErrorForCode(altered.Resources[0].ErrorCode))
			require.NoError(t, direct.ProduceSync(within(t), kgo.StringRecord("x")).FirstErr())

			var acknowledging, early atomic.Bool
			struck := proxy.At(wire.Trigger{On: wire.ShareAcknowledge, When: when, Do: func(s *wire.Strike) {
				early.Store(!acknowledging.Load())
				s.Cut()
			}})
			var to dialled
			member := through(t, proxy, kgo.ShareGroup(group), kgo.ConsumeTopics(topic), kgo.Dialer(to.dial))
			poll := func() {
				for fetched := 0; fetched == 0; {
					fetches := member.PollFetches(within(t))
					for _, failed := range fetches.Errors() { // what the cut connection carried is tried again
						require.NoError(t, within(t).Err(), failed.Err)
					}
					fetched = fetches.NumRecords()
				}
			}
			poll()
			acknowledging.Store(true)
			member.MarkAcks(kgo.AckAccept)
			_ = member.FlushAcks(within(t)) // what becomes of it is the client's
			wait(t, "the acknowledgement", struck)
			require.False(t, early.Load(), "it struck at a request that acknowledges nothing")
			if when == wire.BeforeForward {
				poll() // the record came back: nobody acknowledged it
			}
			for _, broker := range brokers(t, direct) {
				require.NotContains(t, to.all(), broker)
			}
		})
	}
}

// A broker that is restarted is found again by the same client.
func TestBrokerAwayAndBack(t *testing.T) {
	port := func() int {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer func() { require.NoError(t, listener.Close()) }()
		return listener.Addr().(*net.TCPAddr).Port
	}()
	proxy, err := wire.Kafka([]string{fmt.Sprintf("127.0.0.1:%d", port)})
	closing(t, proxy, err)
	requireClosed(t, dial(t, proxy.Addrs()[0]))

	data := kfake.DataDir(t.TempDir())
	start := func() *kfake.Cluster {
		cluster, err := kfake.NewCluster(kfake.Ports(port), data, kfake.SeedTopics(1, "topic"))
		require.NoError(t, err)
		return cluster
	}
	cluster := start()
	client := through(t, proxy, kgo.DefaultProduceTopic("topic"), kgo.DisableIdempotentWrite())
	require.NoError(t, client.ProduceSync(within(t), kgo.StringRecord("x")).FirstErr())
	cluster.Close()
	requireClosed(t, dial(t, proxy.Addrs()[0]))
	cluster = start()
	defer cluster.Close()
	require.NoError(t, client.ProduceSync(within(t), kgo.StringRecord("x")).FirstErr())
}

func TestRequestsAreCounted(t *testing.T) {
	proxy := kafkaProxy(t)
	require.Zero(t, proxy.Requests())
	client := through(t, proxy)
	for range 2 { // on a connection to the seed, and on one to the broker that it names
		require.NoError(t, client.Ping(within(t)))
	}
	before := proxy.Requests()
	require.Positive(t, before)
	for range 3 {
		require.NoError(t, client.Ping(within(t)))
	}
	require.EqualValues(t, before+3, proxy.Requests())
}

func TestAddressesThatAreNone(t *testing.T) {
	for _, address := range []string{"", "localhost", ":9092", "127.0.0.1:kafka", "127.0.0.1:70000"} {
		_, err := wire.Kafka([]string{address})
		require.ErrorContains(t, err, strconv.Quote(address))
		_, err = wire.Postgres(address)
		require.ErrorContains(t, err, "host:port")
	}
	_, err := wire.Kafka(nil)
	require.ErrorContains(t, err, "host:port")
}

func TestTriggersThatCouldNeverStrike(t *testing.T) {
	kafka := kafkaProxy(t)
	good := wire.Trigger{On: wire.Produce, When: wire.BeforeForward, Do: (*wire.Strike).Cut}
	for name, spoil := range map[string]func(*wire.Trigger){
		"another protocol": func(t *wire.Trigger) { t.On = wire.Commit },
		"no kind":          func(t *wire.Trigger) { t.On = "" },
		"no moment":        func(t *wire.Trigger) { t.When = "" },
		"negative":         func(t *wire.Trigger) { t.Nth = -1 },
		"does nothing":     func(t *wire.Trigger) { t.Do = nil },
	} {
		t.Run(name, func(t *testing.T) {
			bad := good
			spoil(&bad)
			require.Panics(t, func() { kafka.At(bad) })
		})
	}
	require.NotPanics(t, func() { kafka.At(good) })
}

func TestAddrsAreACopy(t *testing.T) {
	proxy, err := wire.Kafka([]string{"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:1"})
	closing(t, proxy, err)
	addrs := proxy.Addrs()
	require.Len(t, addrs, 3)
	require.Equal(t, addrs[0], addrs[2])
	require.NotEqual(t, addrs[0], addrs[1])
	want := slices.Clone(addrs)
	addrs[0] = ""
	require.Equal(t, want, proxy.Addrs())
}
