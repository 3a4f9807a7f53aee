package outbox_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/delivered-twice/delivered-twice/internal/outbox"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

// refused returns the causes of what was refused, by event id.
func (p *place) refused() map[string]string {
	p.t.Helper()
	rows, err := p.pool.Query(p.t.Context(), `SELECT convert_from(event_id, 'UTF8'), refusal FROM outbox WHERE refused_at IS NOT NULL AND published_at IS NULL`)
	require.NoError(p.t, err)
	causes := make(map[string]string)
	var id, cause string
	_, err = pgx.ForEachRow(rows, []any{&id, &cause}, func() error {
		causes[id] = cause
		return nil
	})
	require.NoError(p.t, err)
	return causes
}

// What Kafka refuses for what it is, is kept with the cause and stops nobody: those of
// its key and of its batch are published, in their order.
func TestRefusedRecords(t *testing.T) {
	large := strings.Repeat("x", 2<<20)
	for name, c := range map[string]struct {
		configs map[string]string
		spoil   func(*kgo.Record)
		cause   string
	}{
		"larger than the client sends": {nil, func(r *kgo.Record) { r.Value = []byte(large) }, "MESSAGE_TOO_LARGE"},
		"larger than the topic takes":  {map[string]string{"max.message.bytes": "20000"}, func(r *kgo.Record) { r.Value = []byte(large[:40_000]) }, "MESSAGE_TOO_LARGE"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, c.configs)
			var (
				messages []outbox.Message
				want     = make(map[string][]string) // by key
				spoiled  = []int{0, 7, 8, 29}
			)
			for n := range 30 {
				key, id := fmt.Sprintf("k%d", n%3), fmt.Sprintf("%02d", n)
				m := p.message(key, id)
				m.Record.Value = fmt.Append(nil, id)
				messages = append(messages, m)
				want[key] = append(want[key], id)
			}
			for _, n := range spoiled {
				c.spoil(messages[n].Record)
				key := string(messages[n].Record.Key)
				for i, id := range want[key] {
					if id == messages[n].ID {
						want[key] = append(want[key][:i], want[key][i+1:]...)
						break
					}
				}
			}
			p.enqueue(messages...)
			r := p.start(outbox.Options{Client: []kgo.Opt{
				kgo.SeedBrokers(sandboxtest.Brokers(t)...),
				kgo.ProducerBatchCompression(kgo.NoCompression()), // an x many times is small
			}})
			p.awaitEmpty()
			published := p.reader().until(26)
			for key, ids := range want {
				require.Equal(t, ids, of(published, key))
			}
			found := p.refused()
			require.Len(t, found, len(spoiled))
			for _, n := range spoiled {
				require.Contains(t, found[messages[n].ID], c.cause)
				require.True(t, r.log.mentions("level=ERROR", "event="+messages[n].ID))
			}
			require.EqualValues(t, len(spoiled), p.backlog().Refused)
		})
	}
}

// A topic that is missing holds back its own rows and nobody else's, loudly, and they
// are published in their order when it is there.
func TestMissingTopic(t *testing.T) {
	p := newPlace(t)
	missing := sandboxtest.Name(t)
	var messages []outbox.Message
	for n := range 20 {
		m, other := p.message("k", fmt.Sprintf("missing %02d", n)), p.message("k", fmt.Sprintf("%02d", n))
		m.Record.Topic = missing
		messages = append(messages, m, other)
	}
	p.enqueue(messages...)
	r := p.start(outbox.Options{PublishTimeout: time.Second})
	require.Len(t, of(p.reader().until(20), "k"), 20)
	require.Eventually(t, func() bool { return r.log.mentions("level=ERROR", missing) }, patience, time.Millisecond)
	require.Eventually(t, func() bool { return p.backlog().Pending == 20 }, patience, time.Millisecond)
	require.Empty(t, p.refused())

	admin := kadm.NewClient(sandboxtest.Client(t))
	_, err := admin.CreateTopic(t.Context(), 3, -1, nil, missing)
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = admin.DeleteTopic(context.Background(), missing) })
	p.awaitEmpty()
	p.topic = missing
	ids := of(p.reader().until(20), "k")
	require.Len(t, ids, 20)
	require.IsIncreasing(t, ids)
}

// Where Kafka does not take a row for now, it does not get the next one of its topic
// either, though it would take that one.
func TestStopsAtTheFirstFailure(t *testing.T) {
	const topic = "forbidden-at-first"
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, topic))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	var once sync.Once
	cluster.ControlKey(int16(kmsg.Produce), func(request kmsg.Request) (answer kmsg.Response, err error, handled bool) {
		cluster.KeepControl()
		once.Do(func() {
			forbidden := request.ResponseKind().(*kmsg.ProduceResponse)
			for _, asked := range request.(*kmsg.ProduceRequest).Topics {
				topic := kmsg.NewProduceResponseTopic()
				topic.Topic, topic.TopicID = asked.Topic, asked.TopicID
				for _, p := range asked.Partitions {
					partition := kmsg.NewProduceResponseTopicPartition()
					partition.Partition, partition.ErrorCode = p.Partition, kerr.TopicAuthorizationFailed.Code
					topic.Partitions = append(topic.Partitions, partition)
				}
				forbidden.Topics = append(forbidden.Topics, topic)
			}
			answer, handled = forbidden, true
		})
		return answer, nil, handled
	})
	p := newPlace(t)
	p.topic = topic
	var messages []outbox.Message
	for n := range 20 {
		messages = append(messages, p.message("k", fmt.Sprintf("%02d", n)))
	}
	p.enqueue(messages...)
	r := p.start(outbox.Options{Client: []kgo.Opt{kgo.SeedBrokers(cluster.ListenAddrs()...)}})
	p.awaitEmpty()
	require.True(t, r.log.mentions("level=ERROR", topic, "TOPIC_AUTHORIZATION_FAILED"))
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics(topic))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	require.IsIncreasing(t, of((&reader{t: t, client: client}).until(20), "k"))
}

// A broker that takes records and does not answer costs no row and no order: the
// relay lets go of what it has in hand, and begins again where it was.
func TestKafkaDoesNotAnswer(t *testing.T) {
	const topic = "silence"
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, topic))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	given := make(chan struct{})
	cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.SleepControl(func() { <-given }) // and then the broker takes it after all
		return nil, nil, false
	})
	p := newPlace(t)
	p.topic = topic
	var messages []outbox.Message
	for n := range 50 {
		messages = append(messages, p.message("k", fmt.Sprintf("%02d", n)))
	}
	p.enqueue(messages...)
	r := p.start(outbox.Options{Client: []kgo.Opt{kgo.SeedBrokers(cluster.ListenAddrs()...)}, PublishTimeout: 200 * time.Millisecond})
	require.Eventually(t, func() bool { return r.log.mentions("level=ERROR", topic) }, patience, time.Millisecond)
	require.EqualValues(t, 50, p.backlog().Pending)
	p.enqueue(p.message("k", "50"))
	close(given)
	p.awaitEmpty()
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics(topic))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	all := &reader{t: t, client: client}
	for len(firsts(of(all.read, "k"))) < 51 {
		all.until(len(all.read) + 1)
	}
	ids := firsts(of(all.read, "k"))
	require.IsIncreasing(t, ids)
}
