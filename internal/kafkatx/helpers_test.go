package kafkatx_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/kafkatx"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

// patience bounds every wait. It is no part of any claim: reaching it is a failure.
const patience = 60 * time.Second

const headerSource = "source"

// pipe is an input topic with its output and dead-letter topics and a group.
type pipe struct {
	t                      *testing.T
	input, output, letters string
	group                  string
	client                 *kgo.Client
	admin                  *kadm.Client
}

func newPipe(t *testing.T, partitions int32, outputConfigs ...map[string]string) *pipe {
	p := &pipe{
		t:       t,
		input:   sandboxtest.Topic(t, partitions),
		output:  sandboxtest.Topic(t, partitions, outputConfigs...),
		letters: sandboxtest.Topic(t, 1),
		group:   sandboxtest.Name(t),
		client:  sandboxtest.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner())),
	}
	p.admin = kadm.NewClient(p.client)
	return p
}

// send produces n records of the given size, numbered from `from`, over the
// partitions of the input in turn.
func (p *pipe) send(from, n int) {
	p.t.Helper()
	details, err := p.admin.ListTopics(p.t.Context(), p.input)
	require.NoError(p.t, err)
	partitions := len(details[p.input].Partitions)
	records := make([]*kgo.Record, n)
	for i := range records {
		number := from + i
		records[i] = &kgo.Record{Topic: p.input, Partition: int32(number % partitions), Value: []byte(strconv.Itoa(number))}
	}
	require.NoError(p.t, p.client.ProduceSync(p.t.Context(), records...).FirstErr())
}

// config passes every record on.
func (p *pipe) config(instance string) kafkatx.Config {
	seeds := kgo.SeedBrokers(sandboxtest.Brokers(p.t)...)
	return kafkatx.Config{
		Client:         []kgo.Opt{seeds},
		Group:          p.group,
		Instance:       instance,
		Input:          p.input,
		Output:         p.output,
		DeadLetters:    p.letters,
		CommitInterval: 20 * time.Millisecond,
		RetryBackoff:   time.Millisecond,
		SessionTimeout: 6 * time.Second,
		Handler:        kafkatx.Each(pass),
		Logger:         slog.New(slog.NewTextHandler(p.t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo})),
	}
}

// pass keeps the records of one input partition in one output partition, so that
// their order can be asserted.
func pass(_ context.Context, in *kgo.Record) ([]*kgo.Record, error) {
	return []*kgo.Record{{Key: fmt.Appendf(nil, "partition %d", in.Partition), Value: in.Value, Headers: []kgo.RecordHeader{{
		Key: headerSource, Value: fmt.Appendf(nil, "%d@%d", in.Partition, in.Offset),
	}}}}, nil
}

// running is an engine at work.
type running struct {
	t    *testing.T
	stop context.CancelFunc
	done chan struct{}
	err  error
}

func start(t *testing.T, c kafkatx.Config) *running {
	t.Helper()
	engine, err := kafkatx.New(c)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{t: t, stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = engine.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-r.done })
	return r
}

// end stops the engine the way SIGTERM does.
func (r *running) end() {
	r.t.Helper()
	r.stop()
	require.NoError(r.t, r.wait())
}

func (r *running) wait() error {
	r.t.Helper()
	select {
	case <-r.done:
		return r.err
	case <-time.After(patience):
		require.Fail(r.t, "the engine does not end")
		return nil
	}
}

// awaitConsumed waits until the group has committed all of the input.
func (p *pipe) awaitConsumed() {
	p.t.Helper()
	ends, err := p.admin.ListEndOffsets(p.t.Context(), p.input)
	require.NoError(p.t, err)
	var committed kadm.OffsetResponses
	require.Eventually(p.t, func() bool {
		committed, err = p.admin.FetchOffsets(p.t.Context(), p.group)
		if err != nil {
			return false
		}
		all := true
		ends.Each(func(end kadm.ListedOffset) {
			at, ok := committed.Lookup(end.Topic, end.Partition)
			all = all && (end.Offset == 0 || ok && at.At == end.Offset)
		})
		return all
	}, patience, 5*time.Millisecond, "the group does not get to the end of the input: %v", &committed)
}

// read returns all records of a topic, once its last stable offsets have met its
// high watermarks.
func (p *pipe) read(topic string, isolation kgo.IsolationLevel) []*kgo.Record {
	p.t.Helper()
	var ends, stable kadm.ListedOffsets
	require.Eventually(p.t, func() bool {
		var errs [2]error
		ends, errs[0] = p.admin.ListEndOffsets(p.t.Context(), topic)
		stable, errs[1] = p.admin.ListCommittedOffsets(p.t.Context(), topic)
		if errors.Join(errs[:]...) != nil {
			return false
		}
		met := true
		ends.Each(func(end kadm.ListedOffset) {
			s, ok := stable.Lookup(topic, end.Partition)
			met = met && ok && s.Offset == end.Offset
		})
		return met
	}, patience, 5*time.Millisecond, "a transaction stays open: last stable offsets %v, high watermarks %v", &stable, &ends)

	left := make(map[int32]int64)
	assigned := make(map[int32]kgo.Offset)
	ends.Each(func(end kadm.ListedOffset) {
		if end.Offset > 0 {
			left[end.Partition] = end.Offset
			assigned[end.Partition] = kgo.NewOffset().AtStart()
		}
	})
	if len(left) == 0 {
		return nil
	}
	reader := sandboxtest.Client(p.t,
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: assigned}),
		kgo.FetchIsolationLevel(isolation), kgo.KeepControlRecords())
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	var records []*kgo.Record
	for len(left) > 0 {
		fetches := reader.PollFetches(ctx)
		require.NoError(p.t, fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
			if !r.Attrs.IsControl() {
				records = append(records, r)
			}
		})
	}
	return records
}

func values(records []*kgo.Record) []int {
	numbers := make([]int, len(records))
	for i, r := range records {
		numbers[i], _ = strconv.Atoi(string(r.Value))
	}
	return numbers
}

func upTo(n int) []int {
	numbers := make([]int, n)
	for i := range numbers {
		numbers[i] = i
	}
	return numbers
}

// requireExactlyOnce asserts that a read_committed reader sees 0..n-1, each once,
// and those of one input partition in their order.
func (p *pipe) requireExactlyOnce(n int) {
	p.t.Helper()
	records := p.read(p.output, kgo.ReadCommitted())
	seen := values(records)
	slices.Sort(seen)
	require.Equal(p.t, upTo(n), seen)
	last := make(map[int32]int64)
	for _, r := range records {
		var from int32
		var offset int64
		_, err := fmt.Sscanf(string(r.Headers[0].Value), "%d@%d", &from, &offset)
		require.NoError(p.t, err)
		if before, ok := last[from]; ok {
			require.Greater(p.t, offset, before, "input partition %d is out of order", from)
		}
		last[from] = offset
	}
}

// requireNothingOpen asserts that no transaction of an instance is open.
func (p *pipe) requireNothingOpen(instance string) {
	p.t.Helper()
	described, err := p.admin.DescribeTransactions(p.t.Context(), kafkatx.TransactionalIDs(p.group, instance)...)
	require.NoError(p.t, err)
	initialised := 0
	for id, d := range described {
		if errors.Is(d.Err, kerr.TransactionalIDNotFound) {
			continue
		}
		require.NoError(p.t, d.Err, id)
		require.NotEqual(p.t, "Ongoing", d.State, id)
		initialised++
	}
	require.Positive(p.t, initialised)
}

// counter counts from 1.
type counter struct {
	mu sync.Mutex
	n  int
}

func (o *counter) next() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.n++
	return o.n
}
