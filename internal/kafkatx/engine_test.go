package kafkatx_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
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

func TestEveryRecordOnce(t *testing.T) {
	for _, guarantee := range kafkatx.Guarantees() {
		for _, interval := range []time.Duration{0, 20 * time.Millisecond} {
			t.Run(fmt.Sprintf("%s, %v", guarantee, interval), func(t *testing.T) {
				p := newPipe(t, 3)
				p.send(0, 500)
				c := p.config("a")
				c.Guarantee, c.CommitInterval = guarantee, interval
				engine := start(t, c)
				p.awaitConsumed()
				p.send(500, 500)
				p.awaitConsumed()
				engine.end()
				p.requireExactlyOnce(1000)
				require.ElementsMatch(t, upTo(1000), values(p.read(p.output, kgo.ReadUncommitted())), "nothing was aborted")
			})
		}
	}
}

func TestTransactionsEndAtMaxRecords(t *testing.T) {
	p := newPipe(t, 1)
	p.send(0, 100)
	c := p.config("a")
	c.CommitInterval, c.MaxTransactionRecords = 5*time.Second, 30
	var (
		mu    sync.Mutex
		sizes []int
	)
	c.Hook = func(_ context.Context, passage kafkatx.Passage) error {
		if passage.Step == kafkatx.Committed {
			mu.Lock()
			defer mu.Unlock()
			sizes = append(sizes, len(passage.Records))
		}
		return nil
	}
	engine := start(t, c)
	p.awaitConsumed()
	engine.end()
	total := 0
	for _, size := range sizes {
		require.LessOrEqual(t, size, 30)
		total += size
	}
	require.Equal(t, 100, total)
	p.requireExactlyOnce(100)
}

// A filter has no output: its offsets advance all the same.
func TestNoOutput(t *testing.T) {
	p := newPipe(t, 2)
	p.send(0, 50)
	c := p.config("a")
	c.Handler = func(context.Context, []*kgo.Record) ([]*kgo.Record, error) { return nil, nil }
	engine := start(t, c)
	p.awaitConsumed()
	engine.end()
	require.Empty(t, p.read(p.output, kgo.ReadUncommitted()))
}

func TestFailureAtEveryStep(t *testing.T) {
	for _, step := range kafkatx.Steps(kafkatx.ExactlyOnce) {
		t.Run(string(step), func(t *testing.T) {
			p := newPipe(t, 2)
			p.send(0, 200)
			c := p.config("a")
			c.MaxTransactionRecords = 40
			var passed counter
			c.Hook = func(_ context.Context, passage kafkatx.Passage) error {
				if passage.Step != step {
					return nil
				}
				if n := passed.next(); n%2 == 1 && n < 6 {
					return errors.New("failed on purpose")
				}
				return nil
			}
			engine := start(t, c)
			p.awaitConsumed()
			engine.end()
			p.requireExactlyOnce(200)
			require.GreaterOrEqual(t, passed.n, 2)
		})
	}
}

func TestDeadLetters(t *testing.T) {
	const n = 60
	boom := errors.New("boom")
	failing := func(poison map[string]error) func(context.Context, *kgo.Record) ([]*kgo.Record, error) {
		return func(ctx context.Context, in *kgo.Record) ([]*kgo.Record, error) {
			if err := poison[string(in.Value)]; err != nil {
				return nil, err
			}
			return pass(ctx, in)
		}
	}
	all := make(map[string]error)
	for i := range n {
		all[fmt.Sprint(i)] = boom
	}
	one := map[string]error{"7": boom}
	five := map[string]error{"7": boom, "8": boom, "9": boom, "30": boom, "59": boom}
	for name, c := range map[string]struct {
		poison   map[string]error
		handler  func(map[string]error) kafkatx.Handler
		attempts string
	}{
		"one":            {one, nil, "3"},
		"five":           {five, nil, "3"},
		"all":            {all, nil, "3"},
		"permanent ones": {map[string]error{"7": kafkatx.Permanent(boom), "8": kafkatx.Permanent(boom)}, nil, "1"},
		"five, by a handler that doesn't say which": {five, func(poison map[string]error) kafkatx.Handler {
			transform := failing(poison)
			return func(ctx context.Context, batch []*kgo.Record) (out []*kgo.Record, err error) {
				for _, in := range batch {
					records, err := transform(ctx, in)
					if err != nil {
						return nil, err
					}
					out = append(out, records...)
				}
				return out, nil
			}
		}, "3"},
	} {
		for _, guarantee := range kafkatx.Guarantees() {
			t.Run(name+", "+string(guarantee), func(t *testing.T) {
				p := newPipe(t, 1)
				p.send(0, n)
				config := p.config("a")
				config.Guarantee = guarantee
				config.Handler = kafkatx.Each(failing(c.poison))
				if c.handler != nil {
					config.Handler = c.handler(c.poison)
				}
				engine := start(t, config)
				p.awaitConsumed()
				engine.end()

				letters := p.read(p.letters, kgo.ReadCommitted())
				var dead []string
				for _, letter := range letters {
					dead = append(dead, string(letter.Value))
					require.Equal(t, map[string]string{
						kafkatx.HeaderOriginTopic:     p.input,
						kafkatx.HeaderOriginPartition: "0",
						kafkatx.HeaderOriginOffset:    string(letter.Value), // one partition: the n-th record has offset n
						kafkatx.HeaderError:           "boom",
						kafkatx.HeaderAttempts:        c.attempts,
					}, headers(letter))
				}
				var want, alive []string
				for i := range n {
					if c.poison[fmt.Sprint(i)] != nil {
						want = append(want, fmt.Sprint(i))
					} else {
						alive = append(alive, fmt.Sprint(i))
					}
				}
				require.ElementsMatch(t, want, dead)
				var out []string
				for _, r := range p.read(p.output, kgo.ReadCommitted()) {
					out = append(out, string(r.Value))
				}
				require.Equal(t, alive, out, "the rest is done once, in order")
			})
		}
	}
}

func headers(r *kgo.Record) map[string]string {
	m := make(map[string]string)
	for _, h := range r.Headers {
		m[h.Key] = string(h.Value)
	}
	return m
}

// An outage is nobody's fault: no record is dead-lettered for it, however long.
func TestUnavailable(t *testing.T) {
	p := newPipe(t, 1)
	p.send(0, 20)
	c := p.config("a")
	var calls counter
	c.Handler = func(ctx context.Context, batch []*kgo.Record) ([]*kgo.Record, error) {
		if calls.next() <= 10 {
			return nil, kafkatx.Unavailable(errors.New("the database is down"))
		}
		return kafkatx.Each(pass)(ctx, batch)
	}
	engine := start(t, c)
	p.awaitConsumed()
	engine.end()
	p.requireExactlyOnce(20)
	require.Empty(t, p.read(p.letters, kgo.ReadUncommitted()))
}

func TestTooLargeForTheOutput(t *testing.T) {
	p := newPipe(t, 1, map[string]string{"max.message.bytes": "20000"})
	p.send(0, 10)
	c := p.config("a")
	c.Handler = kafkatx.Each(func(ctx context.Context, in *kgo.Record) ([]*kgo.Record, error) {
		out, err := pass(ctx, in)
		if string(in.Value) == "4" {
			out[0].Value = []byte(strings.Repeat("x", 30_000))
		} else {
			// Together the others are too large for one batch; each alone is not.
			out[0].Key = []byte(strings.Repeat("k", 5_000))
		}
		return out, err
	})
	engine := start(t, c)
	p.awaitConsumed()
	engine.end()
	require.Equal(t, []int{0, 1, 2, 3, 5, 6, 7, 8, 9}, values(p.read(p.output, kgo.ReadCommitted())))
	letters := p.read(p.letters, kgo.ReadCommitted())
	require.Equal(t, []int{4}, values(letters))
	require.Contains(t, headers(letters[0])[kafkatx.HeaderError], "MESSAGE_TOO_LARGE")
}

func TestTooLargeForTheDeadLetterTopic(t *testing.T) {
	p := newPipe(t, 1)
	p.letters = sandboxtest.Topic(t, 1, map[string]string{"max.message.bytes": "10000"})
	large := &kgo.Record{Topic: p.input, Value: []byte(strings.Repeat("x", 20_000))}
	require.NoError(t, p.client.ProduceSync(t.Context(), large).FirstErr())
	c := p.config("a")
	c.Handler = kafkatx.Each(func(context.Context, *kgo.Record) ([]*kgo.Record, error) {
		return nil, kafkatx.Permanent(errors.New("boom"))
	})
	engine := start(t, c)
	p.awaitConsumed()
	engine.end()
	letters := p.read(p.letters, kgo.ReadCommitted())
	require.Len(t, letters, 1)
	require.Empty(t, letters[0].Value)
	require.Equal(t, "20000", headers(letters[0])[kafkatx.HeaderOmitted])
	require.Equal(t, "0", headers(letters[0])[kafkatx.HeaderOriginOffset])
}

// SIGTERM leaves nothing for the transaction timeout to clean up.
func TestGracefulStopLeavesNoOpenTransaction(t *testing.T) {
	p := newPipe(t, 1)
	p.send(0, 10)
	c := p.config("a")
	c.CommitInterval = 5 * time.Second // still far off when the engine is stopped
	handled := make(chan struct{}, 1)
	c.Hook = func(_ context.Context, passage kafkatx.Passage) error {
		if passage.Step == kafkatx.Handled {
			handled <- struct{}{}
		}
		return nil
	}
	engine := start(t, c)
	<-handled
	engine.end()
	p.requireNothingOpen("a")
	p.awaitConsumed()
	p.requireExactlyOnce(10)
}

// Another process initialises the transactional id: the engine is fenced, builds
// its producer anew, and goes on.
func TestFencedByAnotherProducer(t *testing.T) {
	p := newPipe(t, 1)
	p.send(0, 50)
	c := p.config("a")
	c.MaxTransactionRecords = 10
	var passed counter
	c.Hook = func(ctx context.Context, passage kafkatx.Passage) error {
		if passage.Step == kafkatx.Produced && passed.next() == 2 {
			thief := sandboxtest.Client(t, kgo.TransactionalID(kafkatx.TransactionalID(p.group, "a", 0)))
			_, _, err := thief.ProducerID(ctx)
			return err
		}
		return nil
	}
	engine := start(t, c)
	p.awaitConsumed()
	engine.end()
	p.requireExactlyOnce(50)
	require.Greater(t, passed.n, 2)
}

// The broker forgets a transactional id that was idle for long (7 days by
// default, transactional.id.expiration.ms) and answers
// INVALID_PRODUCER_ID_MAPPING; the client that gets it is of no use any more.
func TestForgottenTransactionalID(t *testing.T) {
	broker := kfake.MustCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "in", "out", "letters"))
	defer broker.Close()
	seeds := kgo.SeedBrokers(broker.ListenAddrs()...)
	client, err := kgo.NewClient(seeds)
	require.NoError(t, err)
	defer client.Close()
	p := &pipe{t: t, input: "in", output: "out", letters: "letters", group: "g", client: client, admin: kadm.NewClient(client)}
	p.send(0, 30)
	c := p.config("a")
	c.Client, c.MaxTransactionRecords = []kgo.Opt{seeds}, 10
	var commits counter
	broker.ControlKey(int16(kmsg.TxnOffsetCommit), func(req kmsg.Request) (kmsg.Response, error, bool) {
		broker.KeepControl()
		if commits.next() != 2 {
			return nil, nil, false
		}
		r := req.(*kmsg.TxnOffsetCommitRequest)
		resp := r.ResponseKind().(*kmsg.TxnOffsetCommitResponse)
		topic := kmsg.NewTxnOffsetCommitResponseTopic()
		topic.Topic, topic.TopicID = r.Topics[0].Topic, r.Topics[0].TopicID
		partition := kmsg.NewTxnOffsetCommitResponseTopicPartition()
		partition.ErrorCode = kerr.InvalidProducerIDMapping.Code
		topic.Partitions = append(topic.Partitions, partition)
		resp.Topics = append(resp.Topics, topic)
		return resp, nil, true
	})
	engine := start(t, c)
	p.awaitConsumed()
	engine.end()
	require.Equal(t, upTo(30), committedValues(t, seeds, "out"))
	require.Greater(t, commits.n, 2)
}

func committedValues(t *testing.T, seeds kgo.Opt, topic string) (numbers []int) {
	reader, err := kgo.NewClient(seeds, kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	require.NoError(t, err)
	defer reader.Close()
	ends, err := kadm.NewClient(reader).ListEndOffsets(t.Context(), topic)
	require.NoError(t, err)
	end, _ := ends.Lookup(topic, 0)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for at := int64(0); at < end.Offset; {
		fetches := reader.PollFetches(ctx)
		require.NoError(t, fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			at = r.Offset + 1
			if !r.Attrs.IsControl() {
				numbers = append(numbers, values([]*kgo.Record{r})...)
			}
		})
	}
	return numbers
}

// The group throws the member out (as after a session timeout, or when a crashed
// coordinator has forgotten it) while its transaction is open.
func TestThrownOutOfTheGroup(t *testing.T) {
	p := newPipe(t, 2)
	p.send(0, 60)
	c := p.config("a")
	c.MaxTransactionRecords = 20
	var passed counter
	c.Hook = func(ctx context.Context, passage kafkatx.Passage) error {
		if passage.Step == kafkatx.Produced && passed.next() == 2 {
			_, err := p.admin.LeaveGroup(ctx, kadm.LeaveGroup(p.group).InstanceIDs("a"))
			return err
		}
		return nil
	}
	engine := start(t, c)
	p.awaitConsumed()
	engine.end()
	p.requireExactlyOnce(60)
	require.Greater(t, passed.n, 2)
}

// Members come and go while records flow: nothing is lost or duplicated, and no
// transaction is aborted, because a rebalance waits for its end.
func TestRebalanceCostsNoTransaction(t *testing.T) {
	p := newPipe(t, 4)
	const rounds, each = 6, 100
	a := start(t, p.config("a"))
	for round := range rounds {
		p.send(round*each, each)
		if round%2 == 0 {
			b := start(t, p.config("b"))
			p.awaitMembers(2)
			p.send(rounds*each+round*each, each)
			p.awaitConsumed()
			b.end()
			_, err := p.admin.LeaveGroup(t.Context(), kadm.LeaveGroup(p.group).InstanceIDs("b"))
			require.NoError(t, err)
		} else {
			p.awaitMembers(1)
			p.send(rounds*each+round*each, each)
		}
	}
	p.awaitConsumed()
	a.end()
	p.requireExactlyOnce(2 * rounds * each)
	require.Len(t, p.read(p.output, kgo.ReadUncommitted()), 2*rounds*each, "nothing was aborted")
}

func (p *pipe) awaitMembers(n int) {
	p.t.Helper()
	require.Eventually(p.t, func() bool {
		groups, err := p.admin.DescribeGroups(p.t.Context(), p.group)
		return err == nil && groups[p.group].State == "Stable" && len(groups[p.group].Members) == n
	}, patience, 5*time.Millisecond)
}

func TestTwoProcessesAsOneInstance(t *testing.T) {
	p := newPipe(t, 1)
	p.send(0, 10)
	first := start(t, p.config("a"))
	p.awaitConsumed()
	second := start(t, p.config("a"))
	require.ErrorIs(t, first.wait(), kafkatx.ErrFenced)
	p.send(10, 10)
	p.awaitConsumed()
	second.end()
	p.requireExactlyOnce(20)
}

func TestTransactionTimeoutAboveTheBrokersMaximum(t *testing.T) {
	p := newPipe(t, 1)
	c := p.config("a")
	c.TransactionTimeout = 24 * time.Hour
	require.ErrorContains(t, start(t, c).wait(), "transaction.max.timeout.ms")
}

type participant struct{ kafkatx.Participant }

func TestConfig(t *testing.T) {
	valid := kafkatx.Config{Group: "g", Instance: "a", Input: "in", Output: "out", DeadLetters: "dead", Handler: kafkatx.Each(pass)}
	_, err := kafkatx.New(valid)
	require.NoError(t, err)
	for want, change := range map[string]func(*kafkatx.Config){
		"group":                   func(c *kafkatx.Config) { c.Group = "" },
		"instance":                func(c *kafkatx.Config) { c.Instance = "" },
		"must all be named":       func(c *kafkatx.Config) { c.DeadLetters = "" },
		"consume its own output":  func(c *kafkatx.Config) { c.Output = "in" },
		"no handler":              func(c *kafkatx.Config) { c.Handler = nil },
		"unknown guarantee":       func(c *kafkatx.Config) { c.Guarantee = "twice" },
		"must not be negative":    func(c *kafkatx.Config) { c.CommitInterval = -1 },
		"the transaction timeout": func(c *kafkatx.Config) { c.CommitInterval = 10 * time.Second },
		"the session timeout":     func(c *kafkatx.Config) { c.CommitInterval, c.SessionTimeout = 5*time.Second, 5*time.Second },
		"records a transaction":   func(c *kafkatx.Config) { c.MaxTransactionRecords = -1 },
		"attempts":                func(c *kafkatx.Config) { c.MaxAttempts = -1 },
		"must be from 1 to 8":     func(c *kafkatx.Config) { c.TransactionsInFlight = 9 },
		"one after the other":     func(c *kafkatx.Config) { c.TransactionsInFlight, c.Participant = 2, participant{} },
	} {
		t.Run(want, func(t *testing.T) {
			c := valid
			change(&c)
			_, err := kafkatx.New(c)
			require.ErrorContains(t, err, want)
		})
	}
}
