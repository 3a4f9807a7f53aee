package cli_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/audit"
	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/kafkatx"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/payments"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

// thirdParty is a payments API that remembers every request, and knows keys.
type thirdParty struct {
	t *testing.T
	*httptest.Server

	// What it does to a request, where set; "" is that it makes the charge.
	refuse func(event string) (declined string)
	delay  time.Duration // before a charge

	mu       sync.Mutex
	down     bool
	turned   int                 // requests turned away while it was down
	ledger   map[string]int      // charges by event
	attempts map[string][]string // who asked, by event
	keys     map[string]string   // what was asked for under a key
}

const apiKey = "sk_open-sesame"

func newThirdParty(t *testing.T) *thirdParty {
	p := &thirdParty{t: t, ledger: make(map[string]int), attempts: make(map[string][]string), keys: make(map[string]string)}
	p.Server = httptest.NewServer(http.HandlerFunc(p.serve))
	t.Cleanup(p.Close)
	return p
}

// env is what a pipeline has to know of it.
func (p *thirdParty) env() []string {
	return []string{"PAYMENTS_URL=" + p.URL, "PAYMENTS_KEY=" + apiKey}
}

func (p *thirdParty) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		time.Sleep(p.delay)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	event, attempt, key := r.FormValue("metadata[event_id]"), r.FormValue("metadata[attempt]"), r.Header.Get("Idempotency-Key")
	r.Form.Del("metadata[attempt]")
	asked, known := p.keys[key]
	switch {
	case p.down:
		p.turned++
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case r.Header.Get("Authorization") != "Bearer "+apiKey:
		complain(w, http.StatusUnauthorized, "Invalid API Key provided")
		return
	case r.Method != http.MethodPost || r.URL.Path != "/v1/charges":
		complain(w, http.StatusNotFound, "No such charge")
		return
	}
	p.attempts[event] = append(p.attempts[event], attempt)
	if p.refuse != nil {
		if declined := p.refuse(event); declined != "" {
			complain(w, http.StatusPaymentRequired, declined)
			return
		}
	}
	switch {
	case known && asked != r.Form.Encode():
		complain(w, http.StatusBadRequest, "another request had this key")
		return
	case known:
		w.Header().Set("Idempotent-Replayed", "true")
	default:
		if key != "" {
			p.keys[key] = r.Form.Encode()
		}
		p.ledger[event]++
	}
	_ = json.NewEncoder(w).Encode(map[string]string{"id": "ch_" + event, "object": "charge"})
}

func complain(w http.ResponseWriter, status int, message string) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]string{"type": "card_error", "message": message}})
}

// charged counts the events by how often they were charged for, and asserts that there
// are no others.
func (p *thirdParty) charged(expected audit.Expected) lane.Counts {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	counts := lane.Counts{Expected: len(expected)}
	for id := range expected {
		switch n := p.ledger[id]; {
		case n == 0:
			counts.Lost++
		case n == 1:
			counts.Once++
		default:
			counts.Duplicated++
		}
	}
	for id := range p.ledger {
		require.Contains(p.t, expected, id)
	}
	return counts
}

// askedAgain counts the events that more than one incarnation has asked for.
func (p *thirdParty) askedAgain() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	again := 0
	for _, attempts := range p.attempts {
		if attempts[0] != attempts[len(attempts)-1] {
			again++
		}
	}
	return again
}

func (p *thirdParty) setDown(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
}

func (p *thirdParty) turnedAway() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.turned
}

// Killed when it has called and nothing is committed yet, a pipeline calls again, and
// no guard of its own helps. A key does.
func TestCallsKilled(t *testing.T) {
	for name, c := range map[string]struct {
		program, step string
		args          []string
		postgres      string // which rows there are besides
	}{
		"inbox":               {cli.InboxPipelineName, "worked@payment", []string{"--batch-size=100"}, "once"},
		"inbox + direct":      {cli.InboxPipelineName, "worked@payment", []string{"--batch-size=100", "--publish=direct"}, "once"},
		"offsets":             {cli.InboxPipelineName, "worked@payment", []string{"--batch-size=100", "--guard=offsets"}, "once"},
		"no guard":            {cli.InboxPipelineName, "worked@payment", []string{"--batch-size=100", "--guard=none"}, "once"},
		"payment alone":       {cli.InboxPipelineName, "worked@payment", []string{"--batch-size=100", "--handlers=payment"}, ""},
		"eos":                 {cli.EOSPipelineName, "handled", []string{farOff, oneInFlight, "--max-transaction-records=100"}, ""},
		"eos + postgres":      {cli.EOSPipelineName, "handled", []string{farOff, oneInFlight, "--max-transaction-records=100", "--touch=postgres"}, "duplicated"},
		"eos + inbox":         {cli.EOSPipelineName, "produced", []string{farOff, oneInFlight, "--max-transaction-records=100", "--touch=inbox"}, "once"},
		"kafka at least once": {cli.EOSPipelineName, "produced", []string{"--max-transaction-records=100", oneInFlight, "--guarantee=at-least-once"}, ""},
	} {
		for _, key := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/key=%v", name, key), func(t *testing.T) {
				t.Parallel()
				api := newThirdParty(t)
				b := newBench(t)
				b.env = api.env()
				expected := b.publish(order.StreamOptions{Events: 400, Seed: 7})
				args := append([]string{"--call=payments"}, c.args...)
				if key {
					args = append(args, "--idempotency-key")
				}
				b.killed(c.program, c.step, args...)

				charged, again := api.charged(expected), api.askedAgain()
				require.Positive(t, again, "the successor has to ask again")
				require.LessOrEqual(t, again, 100, "more than one batch")
				if !key {
					require.Equal(t, lane.Counts{Expected: 400, Once: 400 - again, Duplicated: again}, charged)
					require.Empty(t, api.keys)
				} else {
					require.Equal(t, lane.Counts{Expected: 400, Once: 400}, charged)
					require.Len(t, api.keys, 400)
					for id := range expected {
						require.Contains(t, api.keys, payments.Key(id, "payment"))
					}
				}
				switch c.postgres {
				case "once":
					require.Equal(t, lane.Counts{Expected: 400, Once: 400}, b.auditTables(expected).Rows)
				case "duplicated":
					requireDuplicated(t, b.auditTables(expected).Rows)
				}
				if c.program == cli.EOSPipelineName && !strings.Contains(strings.Join(c.args, " "), "at-least-once") {
					require.Equal(t, lane.Counts{Expected: 400, Once: 400}, b.auditTopic(expected).Committed)
				}
			})
		}
	}
}

// An event that the API refuses is a dead letter with the API's reason; its neighbours
// are charged for.
func TestRefusedCharges(t *testing.T) {
	// declineThree makes the API decline three of 400 events.
	declineThree := func(api *thirdParty, expected audit.Expected) (declined map[string]bool) {
		declined = make(map[string]bool)
		for e := range order.Stream(order.StreamOptions{Events: 400, Seed: 7}) {
			if len(declined) < 3 && e.Sequence == 1 {
				declined[e.ID] = true
				delete(expected, e.ID)
			}
		}
		api.refuse = func(event string) string {
			if declined[event] {
				return "the card of " + event + " was declined"
			}
			return ""
		}
		return declined
	}
	requireLetters := func(t *testing.T, declined map[string]bool, letters []string) {
		var causes []string
		for id := range declined {
			causes = append(causes, "event "+id+": charge: POST")
		}
		for _, letter := range letters {
			require.Contains(t, letter, "was declined")
			require.NotContains(t, letter, "open-sesame")
		}
		requireCauses(t, causes, letters)
	}
	for _, guard := range []string{"inbox", "offsets", "inbox+offsets", "none"} {
		t.Run(guard, func(t *testing.T) {
			t.Parallel()
			api, b := newThirdParty(t), newBench(t)
			all := b.publish(order.StreamOptions{Events: 400, Seed: 7})
			charged := audit.Expect(order.StreamOptions{Events: 400, Seed: 7})
			declined := declineThree(api, charged)
			p := b.start(cli.InboxPipelineName, api.env(), "--guard="+guard, "--call=payments", "--idempotency-key")
			b.awaitConsumed()
			p.end()
			require.Equal(t, lane.Counts{Expected: 397, Once: 397}, api.charged(charged))
			requireLetters(t, declined, b.deadLetters("payment"))
			require.Equal(t, lane.Counts{Expected: 400, Once: 400}, b.auditTables(all).Rows, "the other handlers' work")
		})
	}
	t.Run("eos", func(t *testing.T) {
		api, b := newThirdParty(t), newBench(t)
		b.publish(order.StreamOptions{Events: 400, Seed: 7})
		charged := audit.Expect(order.StreamOptions{Events: 400, Seed: 7})
		declined := declineThree(api, charged)
		p := b.start(cli.EOSPipelineName, api.env(), "--call=payments", "--idempotency-key")
		b.awaitConsumed()
		p.end()
		require.Equal(t, lane.Counts{Expected: 397, Once: 397}, api.charged(charged))
		require.Equal(t, lane.Counts{Expected: 397, Once: 397}, b.auditTopic(charged).Committed)
		reader := sandboxtest.Client(t, kgo.ConsumeTopics(b.letters), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
		var letters []string
		for len(letters) < len(declined) {
			fetches := reader.PollFetches(t.Context())
			require.NoError(t, fetches.Err())
			fetches.EachRecord(func(r *kgo.Record) { letters = append(letters, order.Header(r, kafkatx.HeaderError)) })
		}
		requireLetters(t, declined, letters)
	})
}

// While the API is away nothing is taken in, nothing is a dead letter, and the log says
// so once. When it is back, everything is done.
func TestPaymentsAPIAway(t *testing.T) {
	for name, c := range map[string]struct {
		program string
		args    []string
	}{
		"inbox":          {cli.InboxPipelineName, nil},
		"no guard":       {cli.InboxPipelineName, []string{"--guard=none"}},
		"eos":            {cli.EOSPipelineName, nil},
		"eos + postgres": {cli.EOSPipelineName, []string{"--touch=postgres"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api, b := newThirdParty(t), newBench(t)
			expected := b.publish(order.StreamOptions{Events: 10, Seed: 8})
			p := b.start(c.program, api.env(), append([]string{"--call=payments", "--idempotency-key"}, c.args...)...)
			b.awaitConsumed()

			api.setDown(true)
			more := order.StreamOptions{Events: 400, Seed: 7}
			for id := range b.publish(more) {
				expected[id] = struct{}{}
			}
			// 20 failures in a row open the circuit.
			require.Eventually(t, func() bool { return api.turnedAway() > 20 }, patience, 10*time.Millisecond,
				"the circuit opens, and the API is asked again now and then")
			require.Less(t, api.turnedAway(), 100, "the rest of the batch was sent, too")
			require.False(t, b.consumed())
			api.setDown(false)

			b.awaitConsumed()
			p.end()
			require.Equal(t, lane.Counts{Expected: 410, Once: 410}, api.charged(expected))
			require.Equal(t, 1, strings.Count(p.stderr.String(), "no charge is made until it answers again"), p.stderr.String())
			require.Equal(t, 1, strings.Count(p.stderr.String(), "the payments API answers again"), p.stderr.String())
			require.NotContains(t, p.stderr.String(), "open-sesame")
			if c.program == cli.InboxPipelineName {
				require.Empty(t, b.deadLetters("payment"))
				require.Equal(t, lane.Counts{Expected: 410, Once: 410}, b.auditTables(expected).Rows)
			} else {
				require.Equal(t, lane.Counts{Expected: 410, Once: 410}, b.auditTopic(expected).Committed)
			}
		})
	}
}

// Calls that take longer than a transaction may stand idle do not lose it.
func TestSlowCalls(t *testing.T) {
	t.Parallel()
	api, b := newThirdParty(t), newBench(t)
	api.delay = 7 * time.Second // the session timeout is 6
	expected := b.publish(order.StreamOptions{Events: 4, Seed: 7})
	p := b.start(cli.InboxPipelineName, api.env(), "--call=payments", "--handlers=payment")
	b.awaitConsumed()
	p.end()
	require.Equal(t, lane.Counts{Expected: 4, Once: 4}, api.charged(expected))
}

// Calls that mean nothing are refused before anything starts, and no key is shown.
func TestPaymentsUnusable(t *testing.T) {
	api := newThirdParty(t)
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	const usage = "usage: "
	for name, c := range map[string]struct {
		program string
		args    []string
		env     []string
		says    []string
	}{
		"an unknown call":          {cli.EOSPipelineName, []string{"--call=mum"}, nil, []string{"payments", usage}},
		"an unknown call, inbox":   {cli.InboxPipelineName, []string{"--call=mum"}, nil, []string{"payments", usage}},
		"a key for no call":        {cli.EOSPipelineName, []string{"--idempotency-key"}, nil, []string{"--call=payments", usage}},
		"a key for no call, inbox": {cli.InboxPipelineName, []string{"--idempotency-key"}, nil, []string{"--call=payments", usage}},
		"no address":               {cli.InboxPipelineName, []string{"--call=payments"}, []string{"PAYMENTS_URL="}, []string{"PAYMENTS_URL", usage}},
		"no API key":               {cli.EOSPipelineName, []string{"--call=payments"}, []string{"PAYMENTS_KEY="}, []string{"PAYMENTS_KEY", usage}},
		"an unreadable address":    {cli.InboxPipelineName, []string{"--call=payments"}, []string{"PAYMENTS_URL=open-sesame"}, []string{"PAYMENTS_URL", usage}},
		"a password in it":         {cli.EOSPipelineName, []string{"--call=payments"}, []string{"PAYMENTS_URL=http://u:open-sesame@h"}, []string{"PAYMENTS_URL", usage}},
		"a handler without a call": {cli.InboxPipelineName, []string{"--handlers=payment"}, nil, []string{"--call=payments", usage}},
		"a call without a handler": {cli.InboxPipelineName, []string{"--call=payments", "--handlers=loyalty"}, nil, []string{"payment", usage}},
		"under a shortcut":         {cli.InboxPipelineName, []string{"--call=payments", "--guard=memory"}, nil, []string{"not for --guard=memory", usage}},
		"its step without it":      {cli.InboxPipelineName, nil, []string{"FAILPOINT=worked@payment"}, []string{"worked@", usage}},
		"an API that is away":      {cli.InboxPipelineName, []string{"--call=payments"}, []string{"PAYMENTS_URL=" + gone.URL}, []string{gone.URL, "PAYMENTS_URL"}},
		"an API that is away, eos": {cli.EOSPipelineName, []string{"--call=payments"}, []string{"PAYMENTS_URL=" + gone.URL}, []string{gone.URL, "PAYMENTS_URL"}},
		"another program's API":    {cli.EOSPipelineName, []string{"--call=payments"}, []string{"PAYMENTS_URL=" + otherProgram(t)}, []string{"check the address"}},
		"a wrong API key":          {cli.InboxPipelineName, []string{"--call=payments"}, []string{"PAYMENTS_KEY=pk_open-sesame"}, []string{"check the API key"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			p := b.start(c.program, append(api.env(), c.env...), c.args...)
			require.Equal(t, cli.ExitUnusable, p.wait(), p.stderr.String())
			for _, says := range c.says {
				require.Contains(t, p.stderr.String(), says)
			}
			if !strings.Contains(p.stderr.String(), usage) {
				require.Equal(t, 1, strings.Count(p.stderr.String(), "\n"), p.stderr.String())
			}
			require.NotContains(t, p.stderr.String(), "open-sesame")
		})
	}
}

func otherProgram(t *testing.T) string {
	other := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(other.Close)
	return other.URL
}
