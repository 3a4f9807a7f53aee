package cli_test

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/delivered-twice/delivered-twice/internal/audit"
	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/kafkatx"
	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

// strange are records as they come in the wild, among good ones.
type strange struct {
	record *kgo.Record
	// id by which the event is known, where it is done.
	id string
	// cause is part of the reason of the dead letter, where it is not: by the eos
	// pipeline, and by the inbox pipeline.
	eos, inbox string
}

func strangeRecords(topic string) map[string]strange {
	event := func(n int) order.Event {
		return order.Event{ID: fmt.Sprintf("evt_%d", n), OrderID: fmt.Sprintf("ord_%d", n), Customer: "cus_1", AmountMinor: 1, Sequence: 1}
	}
	of := func(e order.Event, change func(*kgo.Record)) *kgo.Record {
		r := e.Record(topic)
		change(r)
		return r
	}
	withoutID := of(event(1), func(r *kgo.Record) { r.Headers = nil })
	large := of(event(6), func(r *kgo.Record) {
		r.Value = fmt.Appendf(nil, `{"padding":%q,%s`, strings.Repeat("x", 1_000_000), r.Value[1:])
	})
	id := func(id string) func(*kgo.Record) {
		return func(r *kgo.Record) { r.Headers[0].Value = []byte(id) }
	}
	nul := event(9)
	nul.OrderID, nul.Customer = "ord_\x00", "cus_\x00"
	return map[string]strange{
		"no id header":           {record: withoutID, id: order.ID(withoutID)},
		"no key":                 {record: of(event(2), func(r *kgo.Record) { r.Key = nil }), id: "evt_2"},
		"a tombstone":            {record: of(event(3), func(r *kgo.Record) { r.Value = nil }), eos: "tombstone", inbox: "tombstone"},
		"no JSON":                {record: of(event(4), func(r *kgo.Record) { r.Value = []byte("hello") }), eos: "'h'", inbox: "'h'"},
		"invalid UTF-8":          {record: of(event(5), func(r *kgo.Record) { r.Value[20] = 0xff }), eos: "UTF-8", inbox: "UTF-8"},
		"1 MB":                   {record: large, id: "evt_6"},
		"1 MB of nothing":        {record: of(event(7), func(r *kgo.Record) { r.Value = make([]byte, 1_048_000) }), eos: `'\x00'`, inbox: `'\x00'`},
		"an id with a NUL":       {record: of(event(8), id("evt\x008")), eos: "22021", inbox: "NUL byte"},
		"an order with a NUL":    {record: nul.Record(topic), eos: "22021", inbox: "22021"},
		"an id that is no UTF-8": {record: of(event(10), id("evt\xff10")), eos: "22021", inbox: "UTF-8"},
		"an id that is too long": {record: of(event(11), id(strings.Repeat("x", 5_000))), id: strings.Repeat("x", 5_000), inbox: "can be indexed"},
	}
}

// sendStrange sends strange records among good events, and returns what is to be
// done and which causes of dead letters are expected.
func sendStrange(b *bench, cause func(strange) string) (done audit.Expected, causes []string) {
	o := order.StreamOptions{Events: 100, Seed: 7}
	done = audit.Expect(o)
	records := strangeRecords(b.input)
	var all []*kgo.Record
	for e := range order.Stream(o) {
		all = append(all, e.Record(b.input))
	}
	for _, s := range records {
		all = append(all, s.record)
		if c := cause(s); c != "" {
			causes = append(causes, c)
		} else {
			done[s.id] = struct{}{}
		}
	}
	for e := range order.Stream(order.StreamOptions{Events: 100, Seed: 8}) {
		all = append(all, e.Record(b.input))
		done[e.ID] = struct{}{}
	}
	client := sandboxtest.Client(b.t, kgo.ProducerBatchMaxBytes(1_048_588))
	require.NoError(b.t, client.ProduceSync(b.t.Context(), all...).FirstErr())
	return done, causes
}

// requireCauses asserts that there is one dead letter for each cause.
func requireCauses(t *testing.T, causes, letters []string) {
	t.Helper()
	require.Len(t, letters, len(causes), "%q", letters)
	for _, cause := range causes {
		found := false
		for i, letter := range letters {
			if strings.Contains(letter, cause) {
				letters, found = append(letters[:i], letters[i+1:]...), true
				break
			}
		}
		require.True(t, found, "no dead letter says %q; left are %q", cause, letters)
	}
}

func TestStrangeRecordsInKafkaTransactions(t *testing.T) {
	b := newBench(t)
	done, causes := sendStrange(b, func(s strange) string { return s.eos })
	p := b.start(cli.EOSPipelineName, nil, "--touch=postgres")
	b.awaitConsumed()
	p.end()

	found := b.auditTopic(done)
	require.Empty(t, found.Unexpected)
	require.Equal(t, len(done), found.Committed.Once, "%+v", found.Committed)

	reader := sandboxtest.Client(t, kgo.ConsumeTopics(b.letters), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	var letters []string
	for len(letters) < len(causes) {
		fetches := reader.PollFetches(t.Context())
		require.NoError(t, fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) { letters = append(letters, order.Header(r, kafkatx.HeaderError)) })
	}
	requireCauses(t, causes, letters)
}

func TestStrangeRecordsInTheInbox(t *testing.T) {
	b := newBench(t)
	done, causes := sendStrange(b, func(s strange) string { return s.inbox })
	p := b.start(cli.InboxPipelineName, nil)
	b.awaitConsumed()
	p.end()

	requireDone(t, b, done, causes)
}

func TestUnusable(t *testing.T) {
	closed := func() string {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer listener.Close()
		return listener.Addr().String()
	}()
	database, err := url.Parse(sandboxtest.Database(t))
	require.NoError(t, err)
	brokers := strings.Join(sandboxtest.Brokers(t), ",")
	wrong := *database
	wrong.User = url.UserPassword(database.User.Username(), "open-sesame")
	const usage = "usage: "
	for name, c := range map[string]struct {
		program string
		args    []string
		env     []string
		says    []string
	}{
		"no number":            {cli.InboxPipelineName, []string{"--batch-size=x"}, nil, []string{`--batch-size is "x", must be a whole number`, usage}},
		"no unit":              {cli.EOSPipelineName, []string{"--commit-interval=5"}, nil, []string{"must be a time with its unit", usage}},
		"no share":             {cli.PaymentsAPIName, []string{"--fail-rate=x"}, nil, []string{`--fail-rate is "x", must be a number`, usage}},
		"negative records":     {cli.EOSPipelineName, []string{"--max-transaction-records=-1"}, nil, []string{"--max-transaction-records is -1", usage}},
		"too long a session":   {cli.InboxPipelineName, []string{"--session-timeout=1000000h"}, nil, []string{"--session-timeout is 1000000h0m0s", usage}},
		"no transaction time":  {cli.EOSPipelineName, []string{"--transaction-timeout=0"}, nil, []string{"--transaction-timeout is 0s", usage}},
		"no address":           {cli.EOSPipelineName, []string{"--touch=postgres"}, []string{"DATABASE_URL=postgres://u:open-sesame@h:x/d"}, []string{"the database address is not readable"}},
		"no address either":    {cli.PaymentsAPIName, nil, []string{"DATABASE_URL=postgres://u:open-sesame@h:x/d", "PAYMENTS_KEYS=c=open-sesame"}, []string{"the database address is not readable"}},
		"unknown flag":         {cli.EOSPipelineName, []string{"--garantee=x"}, nil, []string{"--garantee", usage}},
		"an argument":          {cli.InboxPipelineName, []string{"now"}, nil, []string{`"now"`, usage}},
		"unknown guarantee":    {cli.EOSPipelineName, []string{"--guarantee=twice"}, nil, []string{"exactly-once", usage}},
		"unknown touch":        {cli.EOSPipelineName, []string{"--touch=me"}, nil, []string{"postgres", usage}},
		"unknown guard":        {cli.InboxPipelineName, []string{"--guard=dog"}, nil, []string{"inbox", usage}},
		"unknown handler":      {cli.InboxPipelineName, []string{"--handlers=email"}, nil, []string{"warehouse", usage}},
		"unknown key":          {cli.InboxPipelineName, []string{"--event-key=rsa"}, nil, []string{"hash", usage}},
		"nobody to publish":    {cli.InboxPipelineName, []string{"--publish=direct", "--handlers=loyalty"}, nil, []string{"warehouse", usage}},
		"no attempts":          {cli.EOSPipelineName, []string{"--max-attempts=0"}, nil, []string{"at least 1", usage}},
		"negative interval":    {cli.EOSPipelineName, []string{"--commit-interval=-1s"}, nil, []string{"negative", usage}},
		"no batch":             {cli.InboxPipelineName, []string{"--batch-size=0"}, nil, []string{"at least 1", usage}},
		"a short window":       {cli.InboxPipelineName, []string{"--purge-after=1h"}, nil, []string{"1h0m0s", "72h0m0s", usage}},
		"no brokers":           {cli.EOSPipelineName, nil, []string{"KAFKA_BROKERS="}, []string{"KAFKA_BROKERS", usage}},
		"no database":          {cli.InboxPipelineName, nil, []string{"DATABASE_URL="}, []string{"DATABASE_URL", usage}},
		"unknown failpoint":    {cli.EOSPipelineName, nil, []string{"FAILPOINT=comitted"}, []string{"committed", usage}},
		"unreachable brokers":  {cli.EOSPipelineName, nil, []string{"KAFKA_BROKERS=" + closed}, []string{closed}},
		"unreachable database": {cli.InboxPipelineName, nil, []string{"DATABASE_URL=postgres://u:open-sesame@" + closed + "/d"}, []string{closed}},
		"wrong password":       {cli.InboxPipelineName, nil, []string{"DATABASE_URL=" + wrong.String()}, []string{database.Host}},
		"unreadable password":  {cli.EOSPipelineName, []string{"--touch=postgres"}, []string{"DATABASE_URL=postgres://u:pw?open-sesame/@" + closed + "/d"}, []string{"percent-encoded"}},
		"too long a timeout":   {cli.EOSPipelineName, []string{"--transaction-timeout=24h"}, nil, []string{"transaction.max.timeout.ms"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := append([]string{"KAFKA_BROKERS=" + brokers, "DATABASE_URL=" + database.String()}, c.env...)
			group := sandboxtest.Name(t)
			begin := time.Now()
			args := c.args
			if c.program != cli.PaymentsAPIName {
				args = append([]string{"--group=" + group, "--input=" + group}, args...)
			}
			p := startProgram(t, c.program, env, args...)
			require.Equal(t, cli.ExitUnusable, p.wait(), p.stderr.String())
			require.Less(t, time.Since(begin), 15*time.Second)
			lines := strings.Split(strings.TrimSpace(p.stderr.String()), "\n")
			// There is no input topic: which of the two is found first is a matter of chance,
			// and a topic that may still come is logged and waited for.
			lines = slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(line, "time=") })
			if !strings.Contains(p.stderr.String(), usage) {
				require.Len(t, lines, 1)
			}
			for _, says := range c.says {
				require.Contains(t, p.stderr.String(), says)
			}
			require.NotContains(t, p.stderr.String(), "open-sesame")
			require.NotContains(t, p.stderr.String(), "strconv")
		})
	}
}

// What cannot be read of an address may be the password.
func TestPaymentsAPIShowsNoPassword(t *testing.T) {
	p := startProgram(t, cli.PaymentsAPIName, []string{"PAYMENTS_KEYS=shop=s", "DATABASE_URL=postgres://u:pw?open-sesame/@127.0.0.1:1/d"})
	require.Equal(t, cli.ExitUnusable, p.wait(), p.stderr.String())
	require.Contains(t, p.stderr.String(), "percent-encoded")
	require.NotContains(t, p.stderr.String(), "open-sesame")
}

// A group whose members would share the input without doing the same with it, and
// one with a member for every partition already.
func TestGroupInUse(t *testing.T) {
	b := newBench(t)
	first := b.start(cli.EOSPipelineName, nil, "--instance=a")
	b.awaitMembers(1)

	stranger := b.start(cli.InboxPipelineName, nil, "--instance=b")
	require.Equal(t, cli.ExitUnusable, stranger.wait())
	require.Contains(t, stranger.stderr.String(), b.group)
	require.Contains(t, stranger.stderr.String(), cli.EOSPipelineName)

	second := b.start(cli.EOSPipelineName, nil, "--instance=b")
	b.awaitMembers(2)
	third := b.start(cli.EOSPipelineName, nil, "--instance=c")
	require.Equal(t, cli.ExitUnusable, third.wait())
	require.Contains(t, third.stderr.String(), "2 partitions, too few")
	first.end()
	second.end()
}

func (b *bench) awaitMembers(n int) {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		groups, err := b.admin.DescribeGroups(b.t.Context(), b.group)
		return err == nil && groups[b.group].State == "Stable" && len(groups[b.group].Members) == n
	}, patience, 10*time.Millisecond)
}

func TestMissingTopicThatCannotBeCreated(t *testing.T) {
	broker := kfake.MustCluster(kfake.NumBrokers(1))
	defer broker.Close()
	broker.ControlKey(int16(kmsg.CreateTopics), func(req kmsg.Request) (kmsg.Response, error, bool) {
		broker.KeepControl()
		resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
		for _, asked := range req.(*kmsg.CreateTopicsRequest).Topics {
			refused := kmsg.NewCreateTopicsResponseTopic()
			refused.Topic, refused.ErrorCode = asked.Topic, kerr.TopicAuthorizationFailed.Code
			resp.Topics = append(resp.Topics, refused)
		}
		return resp, nil, true
	})
	p := startProgram(t, cli.EOSPipelineName, []string{"KAFKA_BROKERS=" + strings.Join(broker.ListenAddrs(), ",")}, "--input=orders.unknown")
	require.Equal(t, cli.ExitUnusable, p.wait())
	require.Contains(t, p.stderr.String(), "topic orders.unknown is missing and cannot be created")
	require.Contains(t, p.stderr.String(), "TOPIC_AUTHORIZATION_FAILED")
}
