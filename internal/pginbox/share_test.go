package pginbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/delivered-twice/delivered-twice/internal/pginbox"
	"github.com/delivered-twice/delivered-twice/internal/process"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

// sharePatience bounds the waits for a share group, whose first member waits for its
// second heartbeat.
const sharePatience = 60 * time.Second

func (s *stream) shareOptions(in *pginbox.Inbox) pginbox.ShareConsumerOptions {
	return pginbox.ShareConsumerOptions{
		Client:       []kgo.Opt{kgo.SeedBrokers(sandboxtest.Brokers(s.t)...)},
		Group:        s.group,
		Topics:       []string{s.topic},
		BatchSize:    40,
		RetryBackoff: time.Millisecond,
		Identify:     identify,
		Process:      in.Process,
		Logger:       slog.New(slog.NewTextHandler(s.t.Output(), nil)),
	}
}

func startShare(t *testing.T, o pginbox.ShareConsumerOptions) *running {
	t.Helper()
	consumer, err := pginbox.NewShareConsumer(o)
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

// shareLag is how many records of topics the share group has neither acknowledged nor
// dropped; -1 if unknown.
func (s *stream) shareLag(partitions int, topics ...string) (lag int64) {
	req := kmsg.NewPtrDescribeShareGroupOffsetsRequest()
	group := kmsg.NewDescribeShareGroupOffsetsRequestGroup()
	group.GroupID = s.group
	for _, topic := range topics {
		asked := kmsg.NewDescribeShareGroupOffsetsRequestGroupTopic()
		asked.Topic = topic
		for p := range partitions {
			asked.Partitions = append(asked.Partitions, int32(p))
		}
		group.Topics = append(group.Topics, asked)
	}
	req.Groups = append(req.Groups, group)
	resp, err := req.RequestWith(s.t.Context(), s.client)
	if err != nil {
		return -1
	}
	for _, g := range resp.Groups {
		for _, topic := range g.Topics {
			for _, p := range topic.Partitions {
				if p.Lag < 0 || p.ErrorCode != 0 || p.StartOffset < 0 {
					return -1
				}
				lag += p.Lag
			}
		}
	}
	return lag
}

func (s *stream) awaitShareDone(partitions int, topics ...string) {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return s.shareLag(partitions, topics...) == 0 }, sharePatience, 10*time.Millisecond,
		"the share group does not get to the end of %v", topics)
}

// Two members share one topic, partitions or not; what was sent before the group's
// first member came is not skipped.
func TestShareGroupEveryEventOnce(t *testing.T) {
	for _, partitions := range []int32{1, 3} {
		t.Run(strconv.Itoa(int(partitions)), func(t *testing.T) {
			db, s := newDatabase(t), newStream(t, partitions)
			in := db.inbox(pginbox.Options{Handlers: []pginbox.Handler{worker("warehouse"), worker("loyalty")}})
			ids := numbered(500)
			s.send(ids[:300]...)
			a := startShare(t, s.shareOptions(in))
			b := startShare(t, s.shareOptions(in))
			s.awaitShareDone(int(partitions), s.topic)
			s.send(append(ids[300:], ids[290:310]...)...) // some of them twice
			s.awaitShareDone(int(partitions), s.topic)
			a.end()
			b.end()
			require.ElementsMatch(t, ids, db.done("warehouse"))
			require.ElementsMatch(t, ids, db.done("loyalty"))
			require.Empty(t, db.letters())
		})
	}
}

// A batch that a member could not finish in time when it was told to stop goes to
// another one at once: long before the lock expires.
func TestShareGroupReleasesWhatIsNotFinished(t *testing.T) {
	db, s := newDatabase(t), newStream(t, 1)
	s.send(numbered(30)...)
	working := make(chan struct{})
	var once sync.Once
	o := s.shareOptions(db.inbox(pginbox.Options{Handlers: []pginbox.Handler{worker("warehouse")}}))
	o.StopGrace = time.Millisecond
	o.Process = func(ctx context.Context, _ []pginbox.Event) error {
		once.Do(func() { close(working) })
		<-ctx.Done()
		return ctx.Err()
	}
	first := startShare(t, o)
	<-working
	first.end()

	var counts []int32
	o = s.shareOptions(db.inbox(pginbox.Options{Handlers: []pginbox.Handler{worker("warehouse")}}))
	process := o.Process
	o.Process = func(ctx context.Context, events []pginbox.Event) error {
		for _, e := range events {
			counts = append(counts, e.Record.DeliveryCount())
		}
		return process(ctx, events)
	}
	begin := time.Now()
	second := startShare(t, o)
	s.awaitShareDone(1, s.topic)
	second.end()
	require.Less(t, time.Since(begin), 25*time.Second, "the lock lasts 30 s")
	require.ElementsMatch(t, numbered(30), db.done("warehouse"))
	require.Contains(t, counts, int32(2), "a release counts as a delivery")
}

func TestShareGroupGracefulStopFinishesTheBatchInHand(t *testing.T) {
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
	consumer := startShare(t, s.shareOptions(in))
	<-working
	consumer.stop()
	close(stopped)
	require.NoError(t, consumer.wait())
	require.Len(t, db.done("warehouse"), 30-int(s.shareLag(1, s.topic)), "what is done is acknowledged, and nothing else")
	require.NotEmpty(t, db.done("warehouse"))
}

func TestShareGroupHookFailures(t *testing.T) {
	for _, step := range []pginbox.Step{pginbox.Polled, pginbox.Acknowledged} {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			db, s := newDatabase(t), newStream(t, 2)
			s.send(numbered(100)...)
			var passed counter
			acknowledged := tally{}
			o := s.shareOptions(db.inbox(pginbox.Options{Handlers: []pginbox.Handler{worker("warehouse")}}))
			o.Hook = func(_ context.Context, p pginbox.Passage) error {
				if p.Step == step && passed.next()%2 == 1 {
					return errBoom
				}
				if p.Step == pginbox.Acknowledged {
					for _, e := range p.Events {
						acknowledged.add(e.ID)
					}
				}
				return nil
			}
			consumer := startShare(t, o)
			s.awaitShareDone(2, s.topic)
			consumer.end()
			require.ElementsMatch(t, numbered(100), db.done("warehouse"))
			for _, id := range numbered(100) {
				require.Equal(t, 1, acknowledged.get(id), id)
			}
		})
	}
}

func TestShareGroupErrorOfProcess(t *testing.T) {
	db, s := newDatabase(t), newStream(t, 1)
	s.send("evt_1")
	in := db.inbox(pginbox.Options{Handlers: []pginbox.Handler{worker("warehouse")}})
	db.exec(`DROP TABLE processed_messages`)
	err := startShare(t, s.shareOptions(in)).wait()
	require.ErrorContains(t, err, "share group "+s.group)
	require.ErrorContains(t, err, "42P01")
	require.EqualValues(t, 1, s.shareLag(1, s.topic))
}

func TestShareGroupOfAnotherKind(t *testing.T) {
	db, s := newDatabase(t), newStream(t, 1)
	s.send("evt_1")
	in := db.inbox(pginbox.Options{Handlers: []pginbox.Handler{worker("warehouse")}})
	classic := start(t, s.options(in))
	s.awaitAcknowledged()
	err := startShare(t, s.shareOptions(in)).wait()
	require.ErrorIs(t, err, kerr.InconsistentGroupProtocol)
	require.ErrorContains(t, err, "choose another group")
	classic.end()
}

func TestShareConsumerOptions(t *testing.T) {
	complete := pginbox.ShareConsumerOptions{Group: "g", Topics: []string{"t"}, Identify: identify, Process: (&pginbox.Inbox{}).Process}
	for want, change := range map[string]func(*pginbox.ShareConsumerOptions){
		"the consumer group has no name":         func(o *pginbox.ShareConsumerOptions) { o.Group = "" },
		"there is no topic to consume":           func(o *pginbox.ShareConsumerOptions) { o.Topics = nil },
		"nothing tells the identity of a record": func(o *pginbox.ShareConsumerOptions) { o.Identify = nil },
		"nothing processes the records":          func(o *pginbox.ShareConsumerOptions) { o.Process = nil },
		"batch size is -1":                       func(o *pginbox.ShareConsumerOptions) { o.BatchSize = -1 },
		"must be positive":                       func(o *pginbox.ShareConsumerOptions) { o.StopGrace = -1 },
		"retry topic t is also a topic":          func(o *pginbox.ShareConsumerOptions) { o.RetryTopic = "t" },
	} {
		o := complete
		change(&o)
		_, err := pginbox.NewShareConsumer(o)
		require.ErrorContains(t, err, want)
	}
	_, err := pginbox.NewShareConsumer(complete)
	require.NoError(t, err)
}

// mortalShare is a share consumer in a process of its own, which kills itself at the
// n-th passing of a step.
const mortalShare = "mortal-share-consumer"

func init() { process.Register(mortalShare, mortalShareMain) }

func mortalShareMain(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := shareUntilKilled(ctx, args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func shareUntilKilled(ctx context.Context, args []string) error {
	brokers, databaseURL, topic, group, retryTopic, step := args[0], args[1], args[2], args[3], args[4], pginbox.Step(args[5])
	passing, err := strconv.Atoi(args[6])
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
	in, err := pginbox.New(pool, pginbox.Options{Handlers: []pginbox.Handler{worker("warehouse"), worker("loyalty")}, Hook: hook})
	if err != nil {
		return err
	}
	consumer, err := pginbox.NewShareConsumer(pginbox.ShareConsumerOptions{
		Client:     []kgo.Opt{kgo.SeedBrokers(strings.Split(brokers, ",")...)},
		Group:      group,
		Topics:     []string{topic},
		RetryTopic: retryTopic,
		BatchSize:  40,
		Identify:   identify,
		Process:    in.Process,
		Hook:       hook,
		Logger:     slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	return consumer.Run(ctx)
}

func (s *stream) startMortalShare(db *database, retryTopic string, step pginbox.Step, passing int) *process.Cmd {
	s.t.Helper()
	cmd := process.Command(mortalShare, strings.Join(sandboxtest.Brokers(s.t), ","), db.url, s.topic, s.group, retryTopic, string(step), strconv.Itoa(passing))
	cmd.Stderr = s.t.Output()
	require.NoError(s.t, cmd.Start())
	s.t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return cmd
}

func requireKilled(t *testing.T, cmd *process.Cmd) {
	t.Helper()
	requireSIGKILL(t, cmd.Wait())
}

func requireSIGKILL(t *testing.T, err error) {
	t.Helper()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, syscall.SIGKILL, exit.Sys().(syscall.WaitStatus).Signal())
}

// Two members, one of which dies at a step; then one alone, which dies as well, and
// its successor. With one partition, which every member gets: with more, a dead member
// keeps some until its session timeout.
func TestShareGroupKilledAtEveryStep(t *testing.T) {
	for _, step := range pginbox.Steps() {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			db, s := newDatabase(t), newStream(t, 1)
			survivor := s.startMortalShare(db, "", "", 0)
			victim := s.startMortalShare(db, "", step, 2)
			died := make(chan error, 1)
			go func() { died <- victim.Wait() }()
			ids := numbered(300)
			for next, dead := 0, false; !dead; next++ { // until it has got its second batch
				id := fmt.Sprintf("more_%d", next)
				ids = append(ids, id)
				s.send(id)
				select {
				case err := <-died:
					requireSIGKILL(t, err)
					dead = true
				default:
				}
			}
			s.awaitShareDone(1, s.topic)
			require.NoError(t, survivor.Process.Signal(syscall.SIGTERM))
			require.NoError(t, survivor.Wait())

			s.send(ids[:300]...)
			requireKilled(t, s.startMortalShare(db, "", step, 3))
			last := s.startMortalShare(db, "", "", 0)
			s.awaitShareDone(1, s.topic)
			require.NoError(t, last.Process.Signal(syscall.SIGTERM))
			require.NoError(t, last.Wait())
			require.ElementsMatch(t, ids, db.done("warehouse"))
			require.ElementsMatch(t, ids, db.done("loyalty"))
			require.Empty(t, db.letters())
		})
	}
}

// A record that was delivered too often is gone, whoever was to blame.
func TestWhereTheShareGroupStops(t *testing.T) {
	db, s := newDatabase(t), newStream(t, 1)
	s.send("evt_1")
	// The broker drops the record a while after the last of its consumers has died, maybe
	// when the next one is there already, which then gets nothing, and does not die of it.
	for gone := false; !gone; {
		victim := s.startMortalShare(db, "", pginbox.Worked, 1)
		died := make(chan error, 1)
		go func() { died <- victim.Wait() }()
		require.Eventually(t, func() bool {
			gone = s.shareLag(1, s.topic) == 0
			return gone || len(died) > 0
		}, sharePatience, 10*time.Millisecond, "nobody gets the record, and it is not dropped")
		if gone {
			_ = victim.Process.Kill() // if it is there
		}
		requireSIGKILL(t, <-died)
	}
	last := s.startMortalShare(db, "", "", 0)
	s.send("evt_2")
	require.Eventually(t, func() bool { return len(db.done("warehouse")) > 0 }, sharePatience, 10*time.Millisecond)
	require.NoError(t, last.Process.Signal(syscall.SIGTERM))
	require.NoError(t, last.Wait())
	require.Equal(t, []string{"evt_2"}, db.done("warehouse"))
}

// With a retry topic nothing is lost, however often a record is delivered in vain, and
// it keeps its identity, although the broker moves it without its headers.
func TestShareGroupDeliveredMoreOftenThanTheLimit(t *testing.T) {
	db, s := newDatabase(t), newStream(t, 1)
	o := s.shareOptions(db.inbox(pginbox.Options{Handlers: []pginbox.Handler{worker("warehouse")}}))
	o.RetryTopic = "dlq." + s.topic
	t.Cleanup(func() { _, _ = s.admin.DeleteTopic(context.Background(), o.RetryTopic) })
	ids := numbered(5)
	s.send(ids...)
	if kafka, _ := sandboxtest.Versions(t); strings.HasPrefix(kafka, "kfake") {
		require.ErrorIs(t, startShare(t, o).wait(), pginbox.ErrNoRetryTopic)
		return
	}
	var moved bool
	for round := 0; round < 60 && !moved; round++ {
		delivered := make(chan bool, 1)
		vain := o
		vain.StopGrace = time.Millisecond
		vain.Process = func(ctx context.Context, events []pginbox.Event) error {
			again := false
			for _, e := range events { // a record that was read where it was is not acquired
				again = again || e.Record.DeliveryCount() == 0
			}
			select {
			case delivered <- again:
			default:
			}
			<-ctx.Done()
			return ctx.Err()
		}
		consumer := startShare(t, vain)
		select {
		case again := <-delivered:
			moved = again
		case <-time.After(sharePatience):
			require.Fail(t, "no record comes", "round %d", round)
		}
		consumer.end()
	}
	last := startShare(t, o)
	require.Eventually(t, func() bool { return len(db.done("warehouse")) >= len(ids) }, sharePatience, 10*time.Millisecond)
	last.end()
	require.True(t, moved)
	require.ElementsMatch(t, ids, db.done("warehouse"))
}

// broker is a Kafka of the test's own.
func broker(t *testing.T, configs map[string]string) (*kfake.Cluster, *stream) {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"), kfake.BrokerConfigs(configs))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return cluster, &stream{t: t, topic: "orders", group: "g", client: client}
}

// A batch takes longer than the lock lasts: the lock is renewed, and nobody gets the
// records a second time.
func TestShareGroupRenewsLocks(t *testing.T) {
	cluster, s := broker(t, map[string]string{
		"group.share.record.lock.duration.ms": "1000",
		"share.record.lock.sweep.interval.ms": "100",
	})
	renewals := make(chan struct{}, 100)
	cluster.ControlKey(int16(kmsg.ShareAcknowledge), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		if req.(*kmsg.ShareAcknowledgeRequest).IsRenewAck {
			renewals <- struct{}{}
		}
		return nil, nil, false
	})
	s.send(numbered(10)...)
	delivered := tally{}
	acknowledged := make(chan int, 10)
	o := s.shareOptions(&pginbox.Inbox{})
	o.Client = []kgo.Opt{kgo.SeedBrokers(cluster.ListenAddrs()...)}
	o.Process = func(_ context.Context, events []pginbox.Event) error {
		for _, e := range events {
			delivered.add(e.ID)
		}
		for range 6 { // each about a third of the lock later
			<-renewals
		}
		return nil
	}
	o.Hook = func(_ context.Context, p pginbox.Passage) error {
		if p.Step == pginbox.Acknowledged {
			acknowledged <- len(p.Events)
		}
		return nil
	}
	consumer := startShare(t, o)
	for n := 0; n < 10; {
		select {
		case more := <-acknowledged:
			n += more
		case <-time.After(sharePatience):
			require.Fail(t, "nothing is acknowledged")
		}
	}
	consumer.end()
	for _, id := range numbered(10) {
		require.Equal(t, 1, delivered.get(id), id)
	}
}

// The connection is cut when the acknowledgement is on its way: the records come again
// and are absorbed.
func TestShareGroupAcknowledgementLost(t *testing.T) {
	cluster, s := broker(t, nil)
	var cuts counter
	cluster.ControlKey(int16(kmsg.ShareAcknowledge), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		if cuts.next() <= 2 {
			return nil, errors.New("cut"), true // closes the connection
		}
		return nil, nil, false
	})
	db := newDatabase(t)
	in := db.inbox(pginbox.Options{Handlers: []pginbox.Handler{worker("warehouse")}})
	s.send(numbered(100)...)
	o := s.shareOptions(in)
	o.Client = []kgo.Opt{kgo.SeedBrokers(cluster.ListenAddrs()...)}
	consumer := startShare(t, o)
	s.awaitShareDone(1, s.topic)
	consumer.end()
	require.ElementsMatch(t, numbered(100), db.done("warehouse"))
	require.Greater(t, cuts.Load(), int64(2))
}

// Whatever may not be set is said before anything is consumed.
func TestShareGroupConfigsNotPermitted(t *testing.T) {
	cluster, s := broker(t, nil)
	cluster.ControlKey(int16(kmsg.IncrementalAlterConfigs), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		resp := req.ResponseKind().(*kmsg.IncrementalAlterConfigsResponse)
		for _, asked := range req.(*kmsg.IncrementalAlterConfigsRequest).Resources {
			refused := kmsg.NewIncrementalAlterConfigsResponseResource()
			refused.ResourceType, refused.ResourceName = asked.ResourceType, asked.ResourceName
			refused.ErrorCode = kerr.GroupAuthorizationFailed.Code
			resp.Resources = append(resp.Resources, refused)
		}
		return resp, nil, true
	})
	o := s.shareOptions(&pginbox.Inbox{})
	o.Client = []kgo.Opt{kgo.SeedBrokers(cluster.ListenAddrs()...)}
	err := startShare(t, o).wait()
	require.ErrorIs(t, err, kerr.GroupAuthorizationFailed)
	require.ErrorContains(t, err, "share.auto.offset.reset:earliest")
	require.ErrorContains(t, err, "AlterConfigs on the group")
}
