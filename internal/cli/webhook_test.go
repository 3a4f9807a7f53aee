package cli_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/delivered-twice/delivered-twice/internal/audit"
	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/failpoint"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/sandbox"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
	"github.com/delivered-twice/delivered-twice/internal/webhook"
	"github.com/delivered-twice/delivered-twice/internal/wire"
)

const webhookSecret = "whsec_open-sesame"

// hook is a database, and an address at which webhooks are received. There is no Kafka.
type hook struct {
	*bench
	address string
	scheme  webhook.Scheme
}

func newHook(t *testing.T, scheme webhook.Scheme) *hook {
	port, err := sandbox.FixedPort()
	require.NoError(t, err)
	return &hook{&bench{t: t, database: sandboxtest.Database(t)}, net.JoinHostPort("127.0.0.1", fmt.Sprint(port)), scheme}
}

// receive starts a receiver and waits until it says that it listens.
func (h *hook) receive(env []string, args ...string) *pipeline {
	h.t.Helper()
	env = append([]string{"KAFKA_BROKERS=", "DATABASE_URL=" + h.database, h.secretVariable()}, env...)
	p := newProgram(h.t, cli.InboxPipelineName, env, append([]string{
		"--source=webhook", "--listen=" + h.address, "--signature=" + string(h.scheme),
	}, args...)...)
	stdout, err := p.cmd.StdoutPipe()
	require.NoError(h.t, err)
	p.start()
	first, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(h.t, err, "it said nothing")
	require.Equal(h.t, h.address+"\n", first)
	return p
}

func (h *hook) secret() webhook.Secret {
	if h.scheme == webhook.None {
		return ""
	}
	return webhookSecret
}

func (h *hook) secretVariable() string { return cli.WebhookSecretVariable + "=" + string(h.secret()) }

// sender sends to the receiver until it is told that an event is done.
func (h *hook) sender() *webhook.Sender {
	h.t.Helper()
	s, err := webhook.NewSender(webhook.SenderOptions{
		URLs: []string{"http://" + h.address}, Scheme: h.scheme, Secret: h.secret(), FirstPause: 5 * time.Millisecond, MaxPause: 100 * time.Millisecond,
	})
	require.NoError(h.t, err)
	h.t.Cleanup(s.Close)
	return s
}

// sendAll sends a stream of events, many at a time. The result waits for their end.
func (h *hook) sendAll(o order.StreamOptions) (audit.Expected, func()) {
	h.t.Helper()
	var all errgroup.Group
	all.SetLimit(20)
	ended := make(chan error, 1)
	s := h.sender()
	go func() {
		for e := range order.Stream(o) {
			all.Go(func() error { return s.Send(h.t.Context(), e.ID, e.Encode()) })
		}
		ended <- all.Wait()
	}()
	return audit.Expect(o), func() { require.NoError(h.t, <-ended) }
}

// Killed at any step, a receiver has done the work of every event once.
func TestWebhookKilledAtEveryStep(t *testing.T) {
	for _, step := range webhook.Steps() {
		t.Run(string(step), func(t *testing.T) {
			h := newHook(t, webhook.Stripe)
			victim := h.receive([]string{failpoint.Variable + "=" + string(step) + ":2:kill"}, "--batch-size=10")
			expected, done := h.sendAll(order.StreamOptions{Events: 100, Seed: 7, PublisherDuplicates: 0.1})
			require.Equal(t, sigkill, victim.wait(), victim.stderr.String())
			successor := h.receive(nil, "--batch-size=10")
			done()
			successor.end()
			require.Equal(t, lane.Counts{Expected: 100, Once: 100}, h.auditTables(expected).Rows)
		})
	}
}

// Told to end while requests are in hand, it finishes them and exits with 0.
func TestWebhookOrderlyEnd(t *testing.T) {
	h := newHook(t, webhook.Stripe)
	first := h.receive([]string{failpoint.Variable + "=worked:2:pause"})
	expected, done := h.sendAll(order.StreamOptions{Events: 200, Seed: 7})
	var status syscall.WaitStatus
	_, err := syscall.Wait4(first.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
	require.NoError(t, err)
	require.True(t, status.Stopped())
	require.NoError(t, first.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, first.cmd.Process.Signal(syscall.SIGCONT))
	require.Equal(t, cli.ExitOK, first.wait(), first.stderr.String())
	second := h.receive(nil)
	done()
	second.end()
	require.Equal(t, lane.Counts{Expected: 200, Once: 200}, h.auditTables(expected).Rows)
}

// post sends one request, once. header are pairs.
func (h *hook) post(body []byte, header ...string) *http.Response {
	h.t.Helper()
	req, err := http.NewRequestWithContext(h.t.Context(), http.MethodPost, "http://"+h.address, bytes.NewReader(body))
	require.NoError(h.t, err)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(h.t, err)
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(h.t, err)
	require.NoError(h.t, resp.Body.Close())
	return resp
}

// rows counts the rows of a table.
func (h *hook) rows(table string) (n int) {
	h.t.Helper()
	require.NoError(h.t, h.pool().QueryRow(h.t.Context(), "SELECT count(*) FROM "+table).Scan(&n))
	return n
}

var paid = order.Event{ID: "evt_9f3k", OrderID: "ord_1", Customer: "cus_1", AmountMinor: 1, Currency: "EUR", Sequence: 1}

// A bad signature is no event; a redelivery gets its answer and no second task.
func TestWebhookSigned(t *testing.T) {
	h := newHook(t, webhook.Stripe)
	p := h.receive(nil)
	require.Equal(t, http.StatusBadRequest, h.post(paid.Encode(), "Stripe-Signature", fmt.Sprintf("t=%d,v1=00", time.Now().Unix())).StatusCode)
	require.Zero(t, h.rows("processed_messages"))
	require.Zero(t, h.rows("pick_tasks"))
	s := h.sender()
	for range 5 {
		require.NoError(t, s.Send(t.Context(), paid.ID, paid.Encode()))
	}
	require.Equal(t, 1, h.rows("pick_tasks"))
	another := paid
	another.ID, another.Sequence = "evt_9f3l", 2
	require.NoError(t, s.Send(t.Context(), another.ID, another.Encode()))
	require.Equal(t, 2, h.rows("pick_tasks"))
	p.end()
	require.NotContains(t, p.stderr.String(), "sesame")
}

// The id of GitHub's scheme is in a header: what is sent again under it is not done again,
// whatever the body says of an id.
func TestWebhookOfGitHub(t *testing.T) {
	h := newHook(t, webhook.GitHub)
	p := h.receive(nil)
	s := h.sender()
	for _, delivery := range []string{"guid-1", "guid-1", "guid-2"} {
		require.NoError(t, s.Send(t.Context(), delivery, paid.Encode()))
	}
	p.end()
	require.Equal(t, lane.Counts{Expected: 2, Once: 2}, h.auditTables(audit.Expected{"guid-1": {}, "guid-2": {}}).Rows)
}

// Why a copy that was decoded and encoded again must not be hashed: it is the same
// event, and by its hash it is another one, and done again. By its id it is not.
func TestWebhookReserialized(t *testing.T) {
	received := paid.Encode()
	var decoded map[string]any
	require.NoError(t, json.Unmarshal(received, &decoded))
	copied, err := json.Marshal(decoded) // the keys are sorted now
	require.NoError(t, err)
	require.JSONEq(t, string(received), string(copied))
	require.NotEqual(t, received, copied)
	for scheme, tasks := range map[webhook.Scheme]int{webhook.None: 2, webhook.Stripe: 1} {
		t.Run(string(scheme), func(t *testing.T) {
			h := newHook(t, scheme)
			p := h.receive(nil)
			s := h.sender()
			for _, body := range [][]byte{received, received, copied} {
				require.NoError(t, s.Send(t.Context(), paid.ID, body))
			}
			p.end()
			require.Equal(t, tasks, h.rows("pick_tasks"))
		})
	}
}

// What no handler can take is answered with 2xx, so that the sender stops, and kept.
func TestWebhookDeadLetters(t *testing.T) {
	h := newHook(t, webhook.None)
	p := h.receive(nil)
	for _, body := range []string{"Hello, World!", `{"order_id":"ord_1"}`, "\xff\x00", `{"order_id":"ord_\u0000","customer":"c","sequence":1}`} {
		for range 2 {
			require.Equal(t, http.StatusOK, h.post([]byte(body)).StatusCode, "%q", body)
		}
	}
	p.end()
	requireCauses(t, []string{"'H'", "customer is missing", "UTF-8", "22021"}, h.deadLetters("warehouse"))
	require.Zero(t, h.rows("pick_tasks"))
}

// While Postgres is away a request is answered long before its sender gives up, and the
// sender comes again.
func TestWebhookWithoutPostgres(t *testing.T) {
	h := newHook(t, webhook.None)
	direct, err := url.Parse(h.database)
	require.NoError(t, err)
	proxy, err := wire.Postgres(direct.Host)
	require.NoError(t, err)
	away := *direct
	away.Host = proxy.Addrs()[0]
	p := h.receive([]string{"DATABASE_URL=" + away.String()}, "--answer-within=200ms")
	require.NoError(t, proxy.Close())
	resp := h.post(paid.Encode())
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	require.Equal(t, "1", resp.Header.Get("Retry-After"))
	p.end()
	p = h.receive(nil)
	require.Equal(t, http.StatusOK, h.post(paid.Encode()).StatusCode)
	p.end()
	require.Equal(t, 1, h.rows("pick_tasks"))
}

// Flags and an environment that mean nothing with a webhook, or without one, are refused.
func TestWebhookUnusable(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = taken.Close() }) // not before the parallel tests below
	database := sandboxtest.Database(t)
	const usage = "usage: "
	for name, c := range map[string]struct {
		args   []string
		secret string
		says   []string
	}{
		"no secret":            {nil, "", []string{"WEBHOOK_SECRET", usage}},
		"no secret in a list":  {nil, ", ,", []string{"WEBHOOK_SECRET", usage}},
		"an unasked secret":    {[]string{"--signature=none"}, webhookSecret, []string{"would not ask for it", usage}},
		"unknown signature":    {[]string{"--signature=slack"}, webhookSecret, []string{`"slack"`, "github", usage}},
		"no patience":          {[]string{"--answer-within=0s"}, webhookSecret, []string{"at least 1ms", usage}},
		"stored offsets":       {[]string{"--guard=inbox+offsets"}, webhookSecret, []string{"no offsets", usage}},
		"ack-first":            {[]string{"--guard=ack-first"}, webhookSecret, []string{"--source=group", usage}},
		"asynchronous commits": {[]string{"--async-commit"}, webhookSecret, []string{"not on disk", usage}},
		"flushed commits":      {[]string{"--async-commit", "--ack-after-flush"}, webhookSecret, []string{"--async-commit", usage}},
		"direct produce":       {[]string{"--publish=direct"}, webhookSecret, []string{"needs Kafka", usage}},
		"a group":              {[]string{"--group=g"}, webhookSecret, []string{"--group does nothing", usage}},
		"brokers":              {[]string{"--brokers=localhost:9092"}, webhookSecret, []string{"there is no Kafka", usage}},
		"a topic":              {[]string{"--input=orders"}, webhookSecret, []string{"--input does nothing", usage}},
		"a retry topic":        {[]string{"--retry-topic=again"}, webhookSecret, []string{"--retry-topic", usage}},
		"a session timeout":    {[]string{"--session-timeout=1s"}, webhookSecret, []string{"--session-timeout does nothing", usage}},
		"listening to Kafka":   {[]string{"--source=group", "--brokers=h:1", "--listen=:1"}, webhookSecret, []string{"--listen is for --source=webhook", usage}},
		"unknown failpoint":    {nil, webhookSecret, []string{`"polled"`, "received", usage}},
		"an address in use":    {[]string{"--listen=" + taken.Addr().String()}, webhookSecret, []string{taken.Addr().String(), "nobody uses"}},
		"no address":           {[]string{"--listen=localhost"}, webhookSecret, []string{"localhost", "nobody uses"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := []string{"KAFKA_BROKERS=", "DATABASE_URL=" + database, "WEBHOOK_SECRET=" + c.secret}
			if name == "unknown failpoint" {
				env = append(env, failpoint.Variable+"=polled")
			}
			p := startProgram(t, cli.InboxPipelineName, env, append([]string{"--source=webhook"}, c.args...)...)
			require.Equal(t, cli.ExitUnusable, p.wait(), p.stderr.String())
			for _, says := range c.says {
				require.Contains(t, p.stderr.String(), says)
			}
			require.NotContains(t, p.stderr.String(), "sesame")
			if !strings.Contains(p.stderr.String(), usage) {
				require.Len(t, strings.Split(strings.TrimSpace(p.stderr.String()), "\n"), 1)
			}
		})
	}
}
