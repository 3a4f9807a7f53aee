package pginbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/pginbox"
	"github.com/delivered-twice/delivered-twice/internal/process"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

const headerEventID = "event-id"

func identify(r *kgo.Record) string {
	for _, h := range r.Headers {
		if h.Key == headerEventID {
			return string(h.Value)
		}
	}
	return ""
}

// stream is a topic, and a group that consumes it.
type stream struct {
	t            *testing.T
	topic, group string
	client       *kgo.Client
	admin        *kadm.Client
}

func newStream(t *testing.T, partitions int32) *stream {
	s := &stream{
		t:      t,
		topic:  sandboxtest.Topic(t, partitions),
		group:  sandboxtest.Name(t),
		client: sandboxtest.Client(t, kgo.RecordPartitioner(kgo.RoundRobinPartitioner()), kgo.ProducerBatchMaxBytes(1<<20)),
	}
	s.admin = kadm.NewClient(s.client)
	return s
}

func (s *stream) send(ids ...string) {
	s.t.Helper()
	records := make([]*kgo.Record, len(ids))
	for i, id := range ids {
		records[i] = &kgo.Record{Value: []byte(id), Headers: []kgo.RecordHeader{{Key: headerEventID, Value: []byte(id)}}}
	}
	s.sendRecords(records...)
}

func (s *stream) sendRecords(records ...*kgo.Record) {
	s.t.Helper()
	for _, r := range records {
		r.Topic = s.topic
	}
	require.NoError(s.t, s.client.ProduceSync(s.t.Context(), records...).FirstErr())
}

func (s *stream) options(in *pginbox.Inbox) pginbox.ConsumerOptions {
	return pginbox.ConsumerOptions{
		Client:         []kgo.Opt{kgo.SeedBrokers(sandboxtest.Brokers(s.t)...)},
		Group:          s.group,
		Topics:         []string{s.topic},
		InstanceID:     "0",
		SessionTimeout: 6 * time.Second,
		BatchSize:      40,
		RetryBackoff:   time.Millisecond,
		Identify:       identify,
		Process:        in.Process,
		Logger:         slog.New(slog.NewTextHandler(s.t.Output(), nil)),
	}
}

// awaitAcknowledged waits until the group has acknowledged the whole topic.
func (s *stream) awaitAcknowledged() {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return s.lag() == 0 }, patience, 5*time.Millisecond, "the group does not get to the end of the topic")
}

// lag is how many records the group has not acknowledged; -1 if unknown.
func (s *stream) lag() (lag int64) {
	ends, err := s.admin.ListEndOffsets(s.t.Context(), s.topic)
	if err != nil {
		return -1
	}
	committed, err := s.admin.FetchOffsets(s.t.Context(), s.group)
	if err != nil {
		return -1
	}
	ends.Each(func(end kadm.ListedOffset) {
		at, _ := committed.Lookup(end.Topic, end.Partition)
		lag += end.Offset - max(at.At, 0)
	})
	return lag
}

// members is how many the group has; -1 while they change.
func (s *stream) members() int {
	described, err := s.admin.DescribeGroups(s.t.Context(), s.group)
	if err != nil || described[s.group].State != "Stable" {
		return -1
	}
	return len(described[s.group].Members)
}

// running is a consumer at work.
type running struct {
	t    *testing.T
	stop context.CancelFunc
	done chan struct{}
	err  error
}

func start(t *testing.T, o pginbox.ConsumerOptions) *running {
	t.Helper()
	consumer, err := pginbox.NewConsumer(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{t: t, stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = consumer.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-r.done })
	return r
}

func (r *running) wait() error {
	r.t.Helper()
	select {
	case <-r.done:
		return r.err
	case <-time.After(patience):
		require.Fail(r.t, "the consumer does not end")
		return nil
	}
}

// end stops the consumer the way SIGTERM does.
func (r *running) end() {
	r.t.Helper()
	r.stop()
	require.NoError(r.t, r.wait())
}

func TestEveryEventOfATopicOnce(t *testing.T) {
	for _, keys := range bothKeys {
		t.Run(string(keys), func(t *testing.T) {
			db, s := newDatabase(t), newStream(t, 3)
			in := db.inbox(pginbox.Options{Keys: keys, Handlers: []pginbox.Handler{worker("warehouse"), worker("loyalty")}})
			ids := numbered(500)
			s.send(ids[:300]...)
			consumer := start(t, s.options(in))
			s.awaitAcknowledged()
			// What the publisher sends twice is two records of one event.
			s.send(append(ids[300:], ids[290:310]...)...)
			s.awaitAcknowledged()
			consumer.end()
			require.ElementsMatch(t, ids, db.done("warehouse"))
			require.ElementsMatch(t, ids, db.done("loyalty"))
			require.Empty(t, db.letters())
		})
	}
}

func TestRecordsOfEveryShape(t *testing.T) {
	db, s := newDatabase(t), newStream(t, 1)
	in := db.inbox(pginbox.Options{Handlers: []pginbox.Handler{worker("warehouse", func(ctx context.Context, tx pgx.Tx, e pginbox.Event) error {
		if e.Record.Value == nil {
			return pginbox.Permanent(errors.New("a tombstone"))
		}
		_, err := tx.Exec(ctx, `SELECT $1::text`, string(e.Record.Value)) // as a handler may that stores it
		return err
	})}})
	id := func(id string) []kgo.RecordHeader { return []kgo.RecordHeader{{Key: headerEventID, Value: []byte(id)}} }
	megabyte := bytes.Repeat([]byte("x"), 1_000_000)
	s.sendRecords(
		&kgo.Record{Value: []byte("no id")},
		&kgo.Record{Key: []byte("k"), Value: nil},
		&kgo.Record{Value: nil, Headers: id("evt_tombstone")},
		&kgo.Record{Value: []byte{}, Headers: id("evt_empty")},
		&kgo.Record{Value: []byte("\xff"), Headers: id("evt_invalid")},
		&kgo.Record{Value: []byte("\x00"), Headers: id("evt_nul")},
		&kgo.Record{Value: []byte("fine"), Headers: id("evt_\x00")},
		&kgo.Record{Value: megabyte, Headers: id("evt_large")},
		&kgo.Record{Value: append(megabyte[:len(megabyte)-1:len(megabyte)-1], 0), Headers: id("evt_large_nul")},
		&kgo.Record{Key: []byte("k"), Value: []byte("fine"), Headers: id("evt_last")},
	)
	consumer := start(t, s.options(in))
	s.awaitAcknowledged()
	consumer.end()
	require.Len(t, db.done("warehouse"), 4)
	require.Subset(t, db.done("warehouse"), []string{"evt_empty", "evt_large", "evt_last"})
	require.ElementsMatch(t, []string{
		"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", // the tombstone without an id
		"evt_tombstone", "evt_invalid", "evt_nul", "evt_\x00", "evt_large_nul",
	}, db.deadIDs())
}

// The process dies after COMMIT and before the acknowledgement: the events come again
// and find that they are done. And before COMMIT: nothing may be acknowledged.
func TestTheConsumerDiesBeforeItAcknowledges(t *testing.T) {
	for _, step := range inboxSteps {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			db, s := newDatabase(t), newStream(t, 1)
			s.send(numbered(30)...)
			died := make(chan struct{})
			first := db.inbox(pginbox.Options{Handlers: []pginbox.Handler{worker("warehouse")}, Hook: func(ctx context.Context, p pginbox.Passage) error {
				if p.Step == step {
					close(died)
					<-ctx.Done() // not a word more from this one
				}
				return nil
			}})
			o := s.options(first)
			o.StopGrace = time.Millisecond
			dying := start(t, o)
			<-died
			require.NotZero(t, s.lag())
			dying.end()

			calls := counter{}
			second := db.inbox(pginbox.Options{Handlers: []pginbox.Handler{worker("warehouse", func(context.Context, pgx.Tx, pginbox.Event) error {
				calls.next()
				return nil
			})}})
			consumer := start(t, s.options(second))
			s.awaitAcknowledged()
			consumer.end()
			require.ElementsMatch(t, numbered(30), db.done("warehouse"))
			if step == pginbox.Committed {
				require.Zero(t, calls.Load(), "all of them were absorbed")
			}
		})
	}
}

func TestGracefulStopFinishesTheBatchInHand(t *testing.T) {
	db, s := newDatabase(t), newStream(t, 1)
	s.send(numbered(30)...)
	working, stopped := make(chan struct{}), make(chan struct{})
	once := counter{}
	in := db.inbox(pginbox.Options{Handlers: []pginbox.Handler{worker("warehouse", func(ctx context.Context, _ pgx.Tx, _ pginbox.Event) error {
		if once.next() == 1 {
			close(working)
			<-stopped
		}
		return ctx.Err()
	})}})
	consumer := start(t, s.options(in))
	<-working
	consumer.stop()
	close(stopped)
	require.NoError(t, consumer.wait())
	require.Equal(t, numbered(30), db.done("warehouse"))
	require.Zero(t, s.lag(), "acknowledged")

	// A static member does not leave by stopping.
	described, err := s.admin.DescribeGroups(t.Context(), s.group)
	require.NoError(t, err)
	require.Len(t, described[s.group].Members, 1)
	require.Equal(t, "0", *described[s.group].Members[0].InstanceID)
}

func TestADynamicMemberLeaves(t *testing.T) {
	db, s := newDatabase(t), newStream(t, 1)
	s.send("evt_1")
	o := s.options(db.inbox(pginbox.Options{Handlers: []pginbox.Handler{worker("warehouse")}}))
	o.InstanceID = ""
	consumer := start(t, o)
	s.awaitAcknowledged()
	consumer.end()
	described, err := s.admin.DescribeGroups(t.Context(), s.group)
	require.NoError(t, err)
	require.Empty(t, described[s.group].Members)
}

func TestConsumerHookFailures(t *testing.T) {
	for _, step := range []pginbox.Step{pginbox.Polled, pginbox.Acknowledged} {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			db, s := newDatabase(t), newStream(t, 2)
			s.send(numbered(100)...)
			var passed counter
			o := s.options(db.inbox(pginbox.Options{Handlers: []pginbox.Handler{worker("warehouse")}}))
			o.Hook = func(_ context.Context, p pginbox.Passage) error {
				if p.Step == step && passed.next()%2 == 1 {
					return errBoom
				}
				return nil
			}
			consumer := start(t, o)
			s.awaitAcknowledged()
			consumer.end()
			require.ElementsMatch(t, numbered(100), db.done("warehouse"))
			require.GreaterOrEqual(t, passed.Load(), int64(4))
		})
	}
}

// The group gives the partitions away while a batch is being processed (a member that
// stood still for longer than the session timeout): its acknowledgement is refused,
// the records come again, and are absorbed.
func TestThrownOutOfTheGroup(t *testing.T) {
	db, s := newDatabase(t), newStream(t, 2)
	s.send(numbered(100)...)
	var passed counter
	in := db.inbox(pginbox.Options{Handlers: []pginbox.Handler{worker("warehouse")}, Hook: func(ctx context.Context, p pginbox.Passage) error {
		if p.Step == pginbox.Committed && passed.next() == 2 {
			_, err := s.admin.LeaveGroup(ctx, kadm.LeaveGroup(s.group).InstanceIDs("0"))
			return err
		}
		return nil
	}})
	consumer := start(t, s.options(in))
	s.awaitAcknowledged()
	consumer.end()
	require.ElementsMatch(t, numbered(100), db.done("warehouse"))
}

func TestAnotherProcessJoinsAsTheSameInstance(t *testing.T) {
	db, s := newDatabase(t), newStream(t, 1)
	in := db.inbox(pginbox.Options{Handlers: []pginbox.Handler{worker("warehouse")}})
	s.send("evt_1")
	first := start(t, s.options(in))
	s.awaitAcknowledged()
	second := start(t, s.options(in))
	err := first.wait()
	require.ErrorIs(t, err, pginbox.ErrFenced)
	require.ErrorContains(t, err, "group "+s.group+": instance 0: another process has joined as the same instance")
	s.send("evt_2")
	s.awaitAcknowledged()
	second.end()
	require.Equal(t, []string{"evt_1", "evt_2"}, db.done("warehouse"))
}

func TestMembersComeAndGo(t *testing.T) {
	db, s := newDatabase(t), newStream(t, 4)
	in := db.inbox(pginbox.Options{Handlers: []pginbox.Handler{worker("warehouse")}})
	a := start(t, s.options(in))
	ids := numbered(600)
	for round := range 3 {
		s.send(ids[round*200 : round*200+100]...)
		o := s.options(in)
		o.InstanceID = "" // leaves when it stops
		b := start(t, o)
		require.Eventually(t, func() bool { return s.members() == 2 }, patience, 5*time.Millisecond)
		s.send(ids[round*200+100 : round*200+200]...)
		s.awaitAcknowledged()
		b.end()
		require.Eventually(t, func() bool { return s.members() == 1 }, patience, 5*time.Millisecond)
	}
	a.end()
	require.ElementsMatch(t, ids, db.done("warehouse"))
}

func TestAnErrorOfProcessEndsTheConsumer(t *testing.T) {
	db, s := newDatabase(t), newStream(t, 1)
	s.send("evt_1")
	in := db.inbox(pginbox.Options{Handlers: []pginbox.Handler{worker("warehouse")}})
	db.exec(`DROP TABLE processed_messages`)
	err := start(t, s.options(in)).wait()
	require.ErrorContains(t, err, "group "+s.group)
	require.ErrorContains(t, err, "42P01")
	require.EqualValues(t, 1, s.lag())
}

func TestConsumerOptions(t *testing.T) {
	complete := pginbox.ConsumerOptions{Group: "g", Topics: []string{"t"}, Identify: identify, Process: (&pginbox.Inbox{}).Process}
	for want, change := range map[string]func(*pginbox.ConsumerOptions){
		"the consumer group has no name":         func(o *pginbox.ConsumerOptions) { o.Group = "" },
		"there is no topic to consume":           func(o *pginbox.ConsumerOptions) { o.Topics = nil },
		"or one without a name":                  func(o *pginbox.ConsumerOptions) { o.Topics = []string{""} },
		"nothing tells the identity of a record": func(o *pginbox.ConsumerOptions) { o.Identify = nil },
		"nothing processes the records":          func(o *pginbox.ConsumerOptions) { o.Process = nil },
		"batch size is -1":                       func(o *pginbox.ConsumerOptions) { o.BatchSize = -1 },
		"must be positive":                       func(o *pginbox.ConsumerOptions) { o.StopGrace = -1 },
		"AcknowledgeFirst and AcknowledgeAfterFlush: a batch is acknowledged either before": func(o *pginbox.ConsumerOptions) {
			o.AcknowledgeFirst, o.AcknowledgeAfterFlush = true, &pgxpool.Pool{}
		},
		"AcknowledgeFirst and Resume: stored offsets would bring back": func(o *pginbox.ConsumerOptions) {
			o.AcknowledgeFirst, o.Resume = true, (&pginbox.Inbox{}).Resume
		},
		"AcknowledgeAfterFlush and Resume: stored offsets are lost with the work": func(o *pginbox.ConsumerOptions) {
			o.AcknowledgeAfterFlush, o.Resume = &pgxpool.Pool{}, (&pginbox.Inbox{}).Resume
		},
	} {
		o := complete
		change(&o)
		_, err := pginbox.NewConsumer(o)
		require.ErrorContains(t, err, want)
	}
	_, err := pginbox.NewConsumer(complete)
	require.NoError(t, err)
}

// mortal is a consumer in a process of its own, which kills itself at the n-th
// passing of a step.
const mortal = "mortal-consumer"

func init() { process.Register(mortal, mortalMain) }

func mortalMain(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := consumeUntilKilled(ctx, args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func consumeUntilKilled(ctx context.Context, args []string) error {
	brokers, databaseURL, topic, group, step, remember := args[0], args[1], args[2], args[3], pginbox.Step(args[4]), pginbox.Remember(args[6])
	passing, err := strconv.Atoi(args[5])
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer pool.Close()
	var passed counter
	hook := func(_ context.Context, p pginbox.Passage) error {
		if p.Step == step && passed.next() == passing {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return nil
	}
	in, err := pginbox.New(pool, pginbox.Options{Remember: remember, Handlers: []pginbox.Handler{worker("warehouse"), worker("loyalty")}, Hook: hook})
	if err != nil {
		return err
	}
	o := pginbox.ConsumerOptions{
		Client:     []kgo.Opt{kgo.SeedBrokers(strings.Split(brokers, ",")...)},
		Group:      group,
		Topics:     []string{topic},
		InstanceID: "0",
		BatchSize:  40,
		Identify:   identify,
		Process:    in.Process,
		Hook:       hook,
	}
	if remember != pginbox.RememberIDs {
		o.Resume = in.Resume
	}
	consumer, err := pginbox.NewConsumer(o)
	if err != nil {
		return err
	}
	return consumer.Run(ctx)
}

func TestKilledAtEveryStep(t *testing.T) {
	for _, remember := range []pginbox.Remember{pginbox.RememberIDs, pginbox.RememberOffsets} {
		for _, step := range pginbox.Steps() {
			t.Run(fmt.Sprintf("remembers %s, at %s", remember, step), func(t *testing.T) {
				t.Parallel()
				db, s := newDatabase(t), newStream(t, 2)
				ids := numbered(300)
				s.send(ids...)
				begin := func(passing int) *process.Cmd {
					cmd := process.Command(mortal, strings.Join(sandboxtest.Brokers(t), ","), db.url, s.topic, s.group, string(step), strconv.Itoa(passing), string(remember))
					cmd.Stderr = t.Output()
					require.NoError(t, cmd.Start())
					return cmd
				}
				for _, passing := range []int{1, 3, 2} {
					err := begin(passing).Wait()
					var exit *exec.ExitError
					require.ErrorAs(t, err, &exit)
					require.Equal(t, syscall.SIGKILL, exit.Sys().(syscall.WaitStatus).Signal())
				}
				last := begin(0) // never
				s.awaitAcknowledged()
				require.NoError(t, last.Process.Signal(syscall.SIGTERM))
				require.NoError(t, last.Wait())
				require.ElementsMatch(t, ids, db.done("warehouse"))
				require.ElementsMatch(t, ids, db.done("loyalty"))
				require.Empty(t, db.letters())
			})
		}
	}
}
