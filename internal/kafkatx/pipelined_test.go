package kafkatx_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
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

	"github.com/delivered-twice/delivered-twice/internal/kafkatx"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

// small are transactions that follow each other as fast as they can.
func small(c *kafkatx.Config, inFlight int) {
	c.TransactionsInFlight, c.MaxTransactionRecords = inFlight, 10
}

// Failures at random steps of random transactions, with several in flight: everything is
// there once and in order, and committed offsets only go forward.
func TestFailuresWithTransactionsInFlight(t *testing.T) {
	for _, inFlight := range []int{2, 3, 4} {
		t.Run(fmt.Sprint(inFlight), func(t *testing.T) {
			const n = 1500
			p := newPipe(t, 3)
			p.send(0, n)
			watch := p.watchOffsets()
			c := p.config("a")
			small(&c, inFlight)
			var (
				mu       sync.Mutex
				failures int
				random   = rand.New(rand.NewPCG(7, uint64(inFlight)))
			)
			c.Hook = func(context.Context, kafkatx.Passage) error {
				mu.Lock()
				defer mu.Unlock()
				if failures < 10 && random.IntN(40) == 0 {
					failures++
					return errors.New("failed on purpose")
				}
				return nil
			}
			engine := start(t, c)
			p.awaitConsumed()
			engine.end()
			watch()
			require.Equal(t, 10, failures)
			p.requireExactlyOnce(n)
			p.requireNothingOpen("a")
		})
	}
}

// watchOffsets looks at the group's stable offsets all the time, and asserts that they
// only go forward, until the function that it returns is called.
func (p *pipe) watchOffsets() (stop func()) {
	client := sandboxtest.Client(p.t)
	ctx, cancel := context.WithCancel(p.t.Context())
	done := make(chan error, 1)
	go func() {
		last := make(map[int32]int64)
		for ctx.Err() == nil {
			req := kmsg.NewPtrOffsetFetchRequest()
			group := kmsg.NewOffsetFetchRequestGroup()
			group.Group = p.group
			req.Groups, req.RequireStable = append(req.Groups, group), true
			resp, err := req.RequestWith(ctx, client)
			if err != nil || len(resp.Groups) == 0 {
				continue
			}
			for _, topic := range resp.Groups[0].Topics {
				for _, at := range topic.Partitions {
					if at.ErrorCode != 0 || at.Offset < 0 {
						continue // unstable for now
					}
					if at.Offset < last[at.Partition] {
						done <- fmt.Errorf("partition %d: committed offset went back from %d to %d", at.Partition, last[at.Partition], at.Offset)
						return
					}
					last[at.Partition] = at.Offset
				}
			}
		}
		done <- nil
	}()
	return func() {
		p.t.Helper()
		cancel()
		require.NoError(p.t, <-done)
	}
}

// When a transaction fails, one that has begun after it and has only its end before it
// must not commit: its offsets would skip the input of the failed one.
func TestLaterTransactionsFailToo(t *testing.T) {
	p := newPipe(t, 1)
	p.send(0, 100)
	c := p.config("a")
	small(&c, 2)
	var sent counter
	second := make(chan struct{})
	c.Hook = func(ctx context.Context, passage kafkatx.Passage) error {
		if passage.Step != kafkatx.OffsetsSent {
			return nil
		}
		switch sent.next() {
		case 1:
			select {
			case <-second:
			case <-ctx.Done():
			}
			return errors.New("failed on purpose")
		case 2:
			close(second)
		}
		return nil
	}
	engine := start(t, c)
	p.awaitConsumed()
	engine.end()
	p.requireExactlyOnce(100)
	uncommitted := p.read(p.output, kgo.ReadUncommitted())
	require.Len(t, uncommitted, 100+20, "two transactions were aborted")
}

// A record that no handler takes, in the middle of several transactions in flight.
func TestPoisonWithTransactionsInFlight(t *testing.T) {
	p := newPipe(t, 1)
	p.send(0, 200)
	c := p.config("a")
	small(&c, 4)
	c.Handler = kafkatx.Each(func(ctx context.Context, in *kgo.Record) ([]*kgo.Record, error) {
		if string(in.Value) == "105" {
			return nil, errors.New("boom")
		}
		return pass(ctx, in)
	})
	engine := start(t, c)
	p.awaitConsumed()
	engine.end()
	require.Equal(t, []int{105}, values(p.read(p.letters, kgo.ReadCommitted())))
	require.Equal(t, slices.DeleteFunc(upTo(200), func(i int) bool { return i == 105 }), values(p.read(p.output, kgo.ReadCommitted())))
	require.Equal(t, upTo(200)[:100], values(p.read(p.output, kgo.ReadUncommitted()))[:100], "nothing before it is aborted")
}

// An output record that the broker will never take is found when its transaction ends,
// and those that have begun after it are repeated.
func TestTooLargeWithTransactionsInFlight(t *testing.T) {
	p := newPipe(t, 1, map[string]string{"max.message.bytes": "10000"})
	p.send(0, 200)
	c := p.config("a")
	small(&c, 4)
	c.Handler = kafkatx.Each(func(ctx context.Context, in *kgo.Record) ([]*kgo.Record, error) {
		out, err := pass(ctx, in)
		if string(in.Value) == "55" {
			out[0].Value = make([]byte, 20_000)
		}
		return out, err
	})
	engine := start(t, c)
	p.awaitConsumed()
	engine.end()
	require.Equal(t, []int{55}, values(p.read(p.letters, kgo.ReadCommitted())))
	require.Equal(t, slices.DeleteFunc(upTo(200), func(i int) bool { return i == 55 }), values(p.read(p.output, kgo.ReadCommitted())))
}

// There is always a transaction in flight, and all the same a second member gets its
// share, at the cost of none of them.
func TestRebalanceUnderLoad(t *testing.T) {
	p := newPipe(t, 4)
	var committed atomic.Int64 // by both
	ahead := make(chan struct{}, 1)
	sending, stop := context.WithCancel(t.Context())
	sent := make(chan int, 1)
	go func() { // always ahead of both
		n := 0
		defer func() { sent <- n }()
		for sending.Err() == nil {
			for int64(n) > committed.Load()+2000 {
				select {
				case <-ahead:
				case <-sending.Done():
					return
				}
			}
			records := make([]*kgo.Record, 200)
			for i := range records {
				records[i] = &kgo.Record{Topic: p.input, Partition: int32((n + i) % 4), Value: fmt.Append(nil, n+i)}
			}
			if p.client.ProduceSync(t.Context(), records...).FirstErr() != nil {
				return
			}
			n += len(records)
		}
	}()
	defer stop()
	startAndAwait := func(instance string) *running {
		c := p.config(instance)
		small(&c, 4)
		var own atomic.Int64
		c.Hook = func(_ context.Context, passage kafkatx.Passage) error {
			if passage.Step == kafkatx.Committed {
				own.Add(int64(len(passage.Records)))
				committed.Add(int64(len(passage.Records)))
				select {
				case ahead <- struct{}{}:
				default:
				}
			}
			return nil
		}
		r := start(t, c)
		require.Eventually(t, func() bool { return own.Load() > 100 }, patience, time.Millisecond, "member %s gets nothing", instance)
		return r
	}
	a := startAndAwait("a")
	b := startAndAwait("b")
	stop()
	n := <-sent
	p.awaitConsumed()
	a.end()
	b.end()
	p.requireExactlyOnce(n)
	require.Equal(t, n, len(p.read(p.output, kgo.ReadUncommitted())), "nothing was aborted")
}

// Another process initialises one of the transactional ids, with the others untouched.
func TestOneOfSeveralIDsFenced(t *testing.T) {
	p := newPipe(t, 2)
	p.send(0, 300)
	c := p.config("a")
	small(&c, 3)
	var passed counter
	c.Hook = func(ctx context.Context, passage kafkatx.Passage) error {
		if passage.Step == kafkatx.Produced && passed.next() == 5 {
			thief := sandboxtest.Client(t, kgo.TransactionalID(kafkatx.TransactionalID(p.group, "a", 1)))
			_, _, err := thief.ProducerID(ctx)
			return err
		}
		return nil
	}
	engine := start(t, c)
	p.awaitConsumed()
	engine.end()
	p.requireExactlyOnce(300)
}

// abandon opens a transaction under every id that an instance may have, as a process with
// as many in flight that is killed leaves them.
func (p *pipe) abandon(instance string, opts ...kgo.Opt) {
	p.t.Helper()
	for _, id := range kafkatx.TransactionalIDs(p.group, instance) {
		client, err := kgo.NewClient(append(opts, kgo.TransactionalID(id), kgo.TransactionTimeout(10*time.Minute), kgo.DefaultProduceTopic(p.output))...)
		require.NoError(p.t, err)
		require.NoError(p.t, client.BeginTransaction())
		require.NoError(p.t, client.ProduceSync(p.t.Context(), kgo.StringRecord("of a dead process")).FirstErr())
		client.Close()
	}
}

// A new incarnation with fewer transactions in flight ends what an earlier one with more
// has left open: nobody waits for the transaction timeout.
func TestFewerInFlightThanBefore(t *testing.T) {
	p := newPipe(t, 1)
	p.send(0, 50)
	p.abandon("a", kgo.SeedBrokers(sandboxtest.Brokers(t)...))
	c := p.config("a")
	small(&c, 1)
	engine := start(t, c)
	p.awaitConsumed()
	p.requireNothingOpen("a")
	engine.end()
	p.requireExactlyOnce(50)
}

// The same where the broker doesn't say which ids there are.
func TestFewerInFlightThanBeforeAndNoDescription(t *testing.T) {
	for name, answer := range map[string]func(*kmsg.DescribeTransactionsRequest) (kmsg.Response, error){
		"not permitted": func(req *kmsg.DescribeTransactionsRequest) (kmsg.Response, error) {
			resp := req.ResponseKind().(*kmsg.DescribeTransactionsResponse)
			for _, id := range req.TransactionalIDs {
				state := kmsg.NewDescribeTransactionsResponseTransactionState()
				state.TransactionalID, state.ErrorCode = id, kerr.TransactionalIDAuthorizationFailed.Code
				resp.TransactionStates = append(resp.TransactionStates, state)
			}
			return resp, nil
		},
		"not supported": func(*kmsg.DescribeTransactionsRequest) (kmsg.Response, error) {
			return nil, kerr.UnsupportedVersion
		},
	} {
		t.Run(name, func(t *testing.T) {
			broker := kfake.MustCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "in", "out", "letters"))
			defer broker.Close()
			seeds := kgo.SeedBrokers(broker.ListenAddrs()...)
			client, err := kgo.NewClient(seeds)
			require.NoError(t, err)
			defer client.Close()
			p := &pipe{t: t, input: "in", output: "out", letters: "letters", group: "g", client: client, admin: kadm.NewClient(client)}
			p.send(0, 30)
			p.abandon("a", seeds)
			var asked atomic.Bool
			broker.ControlKey(int16(kmsg.DescribeTransactions), func(req kmsg.Request) (kmsg.Response, error, bool) {
				broker.KeepControl()
				asked.Store(true)
				resp, err := answer(req.(*kmsg.DescribeTransactionsRequest))
				return resp, err, true
			})
			c := p.config("a")
			c.Client = []kgo.Opt{seeds, kgo.RequestRetries(2)}
			small(&c, 1)
			engine := start(t, c)
			p.awaitConsumed()
			engine.end()
			require.Equal(t, upTo(30), committedValues(t, seeds, "out"))
			require.True(t, asked.Load())
		})
	}
}

// holder holds the first request of one kind back until a second one is about to be sent,
// by whatever connection, or nobody has sent one for a while.
type holder struct {
	key       uint16
	requests  atomic.Int64
	second    chan struct{}
	overtaken atomic.Bool
}

func (h *holder) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &heldConn{conn, h}, nil
}

type heldConn struct {
	net.Conn
	*holder
}

func (c *heldConn) Write(p []byte) (int, error) {
	if len(p) > 6 && binary.BigEndian.Uint16(p[4:]) == c.key {
		switch c.requests.Add(1) {
		case 1:
			select {
			case <-c.second:
				c.overtaken.Store(true)
			case <-time.After(300 * time.Millisecond): // long enough for somebody who doesn't wait
			}
		case 2:
			close(c.second)
		}
	}
	return c.Conn.Write(p)
}

// Nothing that has to come in order overtakes anything: a transaction's records, offsets
// and end are sent when those of the transaction before were answered.
func TestNothingOvertakes(t *testing.T) {
	for _, key := range []kmsg.Key{kmsg.Produce, kmsg.TxnOffsetCommit, kmsg.EndTxn} {
		t.Run(key.Name(), func(t *testing.T) {
			p := newPipe(t, 1)
			p.send(0, 100)
			h := &holder{key: uint16(key), second: make(chan struct{})}
			c := p.config("a")
			small(&c, 4)
			c.Client = append(c.Client, kgo.Dialer(h.dial))
			engine := start(t, c)
			p.awaitConsumed()
			engine.end()
			p.requireExactlyOnce(100)
			require.Greater(t, h.requests.Load(), int64(1))
			require.False(t, h.overtaken.Load(), "%s was sent while the one before was held back", key.Name())
		})
	}
}
