package payments_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/payments"
)

// clientPatience bounds every wait. It is no part of any claim: reaching it is a failure.
const clientPatience = 30 * time.Second

// clientKey is the secret that must never be shown.
const clientKey = "sk_open-sesame"

const madeCharge = `{"id":"ch_1","object":"charge","amount":1999}`

// script is an API that answers as it is told, one answer a request; the last one
// again and again.
type script struct {
	*httptest.Server
	mu       sync.Mutex
	answers  []http.HandlerFunc
	requests []clientRequest
}

type clientRequest struct{ method, path, key, authorization, body string }

func newScript(t *testing.T, answers ...http.HandlerFunc) *script {
	s := &script{answers: answers}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

func (s *script) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	s.requests = append(s.requests, clientRequest{r.Method, r.URL.Path, r.Header.Get("Idempotency-Key"), r.Header.Get("Authorization"), string(body)})
	next := s.answers[min(len(s.requests), len(s.answers))-1]
	s.mu.Unlock()
	next(w, r)
}

func (s *script) seen() []clientRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]clientRequest(nil), s.requests...)
}

func (s *script) client(t *testing.T, change func(*payments.ClientOptions)) *payments.Client {
	t.Helper()
	o := payments.ClientOptions{URL: s.URL, Key: clientKey, RetryBackoff: time.Millisecond}
	if change != nil {
		change(&o)
	}
	c, err := payments.NewClient(o)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// says answers with a status, a body and headers, name and value by turns.
func says(status int, body string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func stripeError(kind, message string) string {
	return fmt.Sprintf(`{"error":{"type":%q,"message":%q}}`, kind, message)
}

// dropped closes the connection in the place of an answer.
func dropped(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// cutShort closes it in the middle of one.
func cutShort(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "1000")
	_, _ = io.WriteString(w, madeCharge)
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// silent answers nothing until the client has gone.
func silent(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

var order1 = payments.ChargeParams{
	Amount: 1999, Currency: "EUR", Description: "order 1",
	Metadata: map[string]string{"event_id": "evt_1", "attempt": "a"}, IdempotencyKey: "evt_1/payment",
}

// What may pass is repeated: with the same key, and with the same body to the byte.
func TestChargeIsRepeated(t *testing.T) {
	for name, first := range map[string]http.HandlerFunc{
		"the key is in flight":       says(409, stripeError("idempotency_error", "in use")),
		"too many requests":          says(429, stripeError("api_error", "slow down")),
		"a failure":                  says(500, stripeError("api_error", "oops")),
		"a proxy without an API":     says(503, "<html>"),
		"the API lost its patience":  says(408, ""),
		"no answer":                  dropped,
		"half an answer":             cutShort,
		"a silence":                  silent,
		"a date that has passed":     says(503, "", "Retry-After", "Wed, 21 Oct 2015 07:28:00 GMT"),
		"a Retry-After in no format": says(503, "", "Retry-After", "soon"),
	} {
		t.Run(name, func(t *testing.T) {
			api := newScript(t, first, first, says(200, madeCharge, "Idempotent-Replayed", "true"))
			client := api.client(t, func(o *payments.ClientOptions) {
				if name == "a silence" {
					o.Timeout = time.Second
				}
			})
			made, err := client.Charge(t.Context(), order1)
			require.NoError(t, err)
			require.Equal(t, payments.Charge{ID: "ch_1", Replayed: true}, made)
			seen := api.seen()
			require.Len(t, seen, 3)
			require.Equal(t, clientRequest{"POST", "/v1/charges", "evt_1/payment", "Bearer " + clientKey,
				"amount=1999&currency=eur&description=order+1&metadata%5Battempt%5D=a&metadata%5Bevent_id%5D=evt_1"}, seen[0])
			require.Equal(t, seen[0], seen[1])
			require.Equal(t, seen[0], seen[2])
		})
	}
}

// Without a key a call whose answer was lost is repeated, too, and the API can't know.
func TestChargeWithoutKeyIsRepeated(t *testing.T) {
	api := newScript(t, dropped, says(200, madeCharge))
	keyless := order1
	keyless.IdempotencyKey = ""
	_, err := api.client(t, nil).Charge(t.Context(), keyless)
	require.NoError(t, err)
	require.Len(t, api.seen(), 2)
	require.Empty(t, api.seen()[1].key)
}

// What the API will never take is the request's fault, is not repeated, and says why.
func TestChargeIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   payments.RequestError
	}{
		"a wrong field": {says(400, `{"error":{"type":"invalid_request_error","code":"parameter_missing","param":"amount","message":"no amount"}}`),
			payments.RequestError{Status: 400, Type: "invalid_request_error", Code: "parameter_missing", Param: "amount", Message: "no amount"}},
		"another body under the key": {says(400, stripeError("idempotency_error", "Keys can only be used with the same parameters")),
			payments.RequestError{Status: 400, Type: "idempotency_error", Message: "Keys can only be used with the same parameters"}},
		"a declined card": {says(402, `{"error":{"type":"card_error","code":"card_declined","message":"declined"}}`),
			payments.RequestError{Status: 402, Type: "card_error", Code: "card_declined", Message: "declined"}},
		"no error object": {says(422, "no"), payments.RequestError{Status: 422}},
		"a failure that is kept for the key": {says(500, stripeError("api_error", "oops"), "Idempotent-Replayed", "true"),
			payments.RequestError{Status: 500, Type: "api_error", Message: "oops", Replayed: true}},
	} {
		t.Run(name, func(t *testing.T) {
			api := newScript(t, c.answer)
			_, err := api.client(t, nil).Charge(t.Context(), order1)
			var fault *payments.RequestError
			require.ErrorAs(t, err, &fault)
			c.want.To, c.want.Key = "POST "+api.URL+"/v1/charges", order1.IdempotencyKey
			require.Equal(t, c.want, *fault)
			for _, part := range []string{api.URL, fmt.Sprint(c.want.Status), order1.IdempotencyKey, c.want.Message} {
				require.ErrorContains(t, err, part)
			}
			require.Len(t, api.seen(), 1)
		})
	}
}

// A wrong address and a wrong API key are no fault of any charge.
func TestNoChargeIsAtFault(t *testing.T) {
	elsewhere := newScript(t, says(200, madeCharge))
	for name, answer := range map[string]http.HandlerFunc{
		"the API key is refused": says(401, stripeError("invalid_request_error", "Invalid API Key provided: "+clientKey)),
		"it has no such right":   says(403, stripeError("invalid_request_error", "not yours")),
		"no such path":           says(404, "not found"),
		"no such method":         says(405, ""),
		"a redirect":             says(307, "", "Location", elsewhere.URL),
		"a page for people":      says(200, "<html>"),
		"another object":         says(200, `{"id":"em_1","object":"email"}`),
	} {
		t.Run(name, func(t *testing.T) {
			api := newScript(t, answer)
			_, err := api.client(t, nil).Charge(t.Context(), order1)
			require.ErrorContains(t, err, api.URL)
			var fault *payments.RequestError
			require.NotErrorAs(t, err, &fault)
			require.NotContains(t, err.Error(), clientKey)
			require.Len(t, api.seen(), 1, "it is not worth repeating at once")
		})
	}
	require.Empty(t, elsewhere.seen())
}

// When patience ends, the last answer is told, and it is nobody's fault.
func TestChargePatience(t *testing.T) {
	api := newScript(t, says(503, stripeError("api_error", "down for repairs")))
	_, err := api.client(t, func(o *payments.ClientOptions) { o.Patience = time.Nanosecond }).Charge(t.Context(), order1)
	require.ErrorContains(t, err, "down for repairs")
	var fault *payments.RequestError
	require.NotErrorAs(t, err, &fault)
}

func TestRetryAfterIsWaitedFor(t *testing.T) {
	api := newScript(t, says(429, "", "Retry-After", "1"), says(200, madeCharge))
	begin := time.Now()
	_, err := api.client(t, nil).Charge(t.Context(), order1)
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(begin), time.Second)
}

// When the context ends, a call ends: in the middle of a request, and between two.
func TestChargeEndsWithItsContext(t *testing.T) {
	t.Run("in a request", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		api := newScript(t, func(w http.ResponseWriter, r *http.Request) { cancel(); silent(w, r) })
		_, err := api.client(t, func(o *payments.ClientOptions) { o.Timeout = time.Hour }).Charge(ctx, order1)
		require.ErrorIs(t, err, context.Canceled)
	})
	t.Run("between two", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		api := newScript(t, func(w http.ResponseWriter, r *http.Request) {
			says(503, "", "Retry-After", "3600")(w, r)
			time.AfterFunc(50*time.Millisecond, cancel)
		})
		_, err := api.client(t, nil).Charge(ctx, order1)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "503", "the last attempt")
		require.Len(t, api.seen(), 1)
	})
}

// An API that is away opens the circuit: the rest of a batch is not even sent, and
// nothing is, until it is time to look again.
func TestCircuitOpens(t *testing.T) {
	api := newScript(t, says(503, ""))
	var log bytes.Buffer
	client := api.client(t, func(o *payments.ClientOptions) {
		o.OpenFor = time.Hour
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	require.NoError(t, client.Ready(t.Context()), "closed at first")
	errs := client.ChargeAll(t.Context(), make([]payments.ChargeParams, 1000))
	for _, err := range errs {
		require.Error(t, err)
		var fault *payments.RequestError
		require.NotErrorAs(t, err, &fault)
	}
	calls := len(api.seen())
	require.Less(t, calls, 100)

	require.ErrorContains(t, client.Ready(t.Context()), "the circuit is open")
	_, err := client.Charge(t.Context(), order1)
	require.ErrorContains(t, err, "the circuit is open")
	require.Len(t, api.seen(), calls, "nothing was sent")
	require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
	require.Contains(t, log.String(), "the circuit is open")
	require.NotContains(t, log.String(), clientKey)
}

// A circuit that is open is closed by a request that charges nobody.
func TestCircuitCloses(t *testing.T) {
	var (
		up  sync.Mutex
		was = http.StatusServiceUnavailable
	)
	api := newScript(t, func(w http.ResponseWriter, r *http.Request) {
		up.Lock()
		defer up.Unlock()
		switch {
		case was != http.StatusOK:
			says(was, "")(w, r)
		case r.Method == http.MethodGet:
			says(404, stripeError("invalid_request_error", "No such charge"))(w, r)
		default:
			says(200, madeCharge)(w, r)
		}
	})
	var log bytes.Buffer
	client := api.client(t, func(o *payments.ClientOptions) {
		o.OpenFor = time.Millisecond
		o.Patience = time.Nanosecond
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	require.Eventually(t, func() bool {
		client.ChargeAll(t.Context(), make([]payments.ChargeParams, 16))
		return strings.Contains(log.String(), "the circuit is open")
	}, clientPatience, time.Millisecond)
	for range 3 { // it stays open, and that is not said again
		require.Error(t, client.Ready(t.Context()))
	}

	before := len(api.seen())
	up.Lock()
	was = http.StatusOK
	up.Unlock()
	require.Eventually(t, func() bool { return client.Ready(t.Context()) == nil }, clientPatience, time.Millisecond)
	for _, r := range api.seen()[before:] {
		require.Equal(t, http.MethodGet, r.method)
	}
	_, err := client.Charge(t.Context(), order1)
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(log.String(), "\n"), log.String())
	require.Contains(t, log.String(), "the circuit is closed")
}

// Answers that are no success, and of which the API is well, do not open it.
func TestCircuitStaysClosed(t *testing.T) {
	api := newScript(t, says(402, stripeError("card_error", "declined")))
	client := api.client(t, func(o *payments.ClientOptions) { o.OpenFor = time.Hour })
	for _, err := range client.ChargeAll(t.Context(), make([]payments.ChargeParams, 100)) {
		require.ErrorContains(t, err, "declined")
	}
	require.Len(t, api.seen(), 100, "a refusal keeps nobody else from being charged")

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	client.ChargeAll(ended, make([]payments.ChargeParams, 100))
	require.NoError(t, client.Ready(t.Context()))
}

// A batch has so many calls in flight and no more, over connections that are kept.
func TestChargeAll(t *testing.T) {
	var (
		mu                     sync.Mutex
		inFlight, most, opened int
		full                   = make(chan struct{})
	)
	api := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		inFlight++
		most = max(most, inFlight)
		if inFlight == payments.MaxInFlight && most == inFlight {
			select {
			case <-full:
			default:
				close(full)
			}
		}
		mu.Unlock()
		<-full
		mu.Lock()
		inFlight--
		mu.Unlock()
		if amount := r.FormValue("amount"); amount == "7" || amount == "9" {
			says(402, stripeError("card_error", "declined "+amount))(w, r)
			return
		}
		says(200, madeCharge)(w, r)
	}))
	api.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			mu.Lock()
			opened++
			mu.Unlock()
		}
	}
	api.Start()
	t.Cleanup(api.Close)
	client, err := payments.NewClient(payments.ClientOptions{URL: api.URL, Key: clientKey})
	require.NoError(t, err)
	t.Cleanup(client.Close)

	charges := make([]payments.ChargeParams, 200)
	for i := range charges {
		charges[i] = payments.ChargeParams{Amount: int64(i + 1), Currency: "eur"}
	}
	for range 3 {
		for i, err := range client.ChargeAll(t.Context(), charges) {
			if n := i + 1; n == 7 || n == 9 {
				require.ErrorContains(t, err, fmt.Sprint("declined ", n))
			} else {
				require.NoError(t, err)
			}
		}
	}
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, payments.MaxInFlight, most)
	require.LessOrEqual(t, opened, 2*payments.MaxInFlight, "connections are kept between batches")
}

func TestPing(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		says   string
	}{
		"there is no such charge": {says(404, stripeError("invalid_request_error", "No such charge")), ""},
		"there is one":            {says(200, madeCharge), ""},
		"another program":         {says(404, "<html>"), "check the address"},
		"the API key is refused":  {says(401, stripeError("invalid_request_error", "Invalid: "+clientKey)), "check the API key"},
		"it fails":                {says(500, stripeError("api_error", "oops")), "oops"},
	} {
		t.Run(name, func(t *testing.T) {
			api := newScript(t, c.answer)
			err := api.client(t, func(o *payments.ClientOptions) { o.Patience = time.Nanosecond }).Ping(t.Context())
			if c.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.says)
			require.ErrorContains(t, err, api.URL)
			require.NotContains(t, err.Error(), clientKey)
		})
	}
}

// Two requests have one key exactly if they are for one event and one handler.
func TestKey(t *testing.T) {
	const hash = "id-sha256:"
	long := strings.Repeat("x", 255-len("/payment"))
	hashOfA := payments.Key(long+"a", "payment")
	for _, c := range []struct{ id, key string }{
		{"evt_1", "evt_1/payment"},
		{"sha256:00", "sha256:00/payment"},
		{long, long + "/payment"},
		{long + "a", hash},
		{"evt 1", hash},   // a blank at its end would not arrive
		{"evt\x00", hash}, // nor would this one
		{"évt", hash},
		{"evt\xff", hash},
		{strings.TrimSuffix(hashOfA, "/payment"), hash}, // somebody's id is somebody else's hash
	} {
		key := payments.Key(c.id, "payment")
		if c.key == hash {
			require.Regexp(t, "^id-sha256:[0-9a-f]{64}/payment$", key)
			require.NotEqual(t, hashOfA, payments.Key(c.id+"b", "payment"))
		} else {
			require.Equal(t, c.key, key)
		}
		require.LessOrEqual(t, len(key), 255)
		require.Equal(t, key, payments.Key(c.id, "payment"), "the same again")
		require.NotEqual(t, key, payments.Key(c.id, "email"))
		if c.id != long+"a" {
			require.NotEqual(t, hashOfA, key)
		}
	}
}

func TestClientOptionsAreRefused(t *testing.T) {
	for name, o := range map[string]payments.ClientOptions{
		"no address":            {Key: clientKey},
		"no scheme":             {URL: "h:8420", Key: clientKey},
		"another scheme":        {URL: "ftp://h", Key: clientKey},
		"no host":               {URL: "http://", Key: clientKey},
		"a password in it":      {URL: "http://u:open-sesame@h", Key: "k"},
		"a query":               {URL: "http://h?key=open-sesame", Key: "k"},
		"an unreadable address": {URL: "http://open-sesame@h:port", Key: "k"},
		"no key":                {URL: "http://h"},
		"a key of two lines":    {URL: "http://h", Key: "open-sesame\n"},
		"a negative timeout":    {URL: "http://h", Key: "k", Timeout: -1},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := payments.NewClient(o)
			require.Error(t, err)
			require.NotContains(t, err.Error(), "open-sesame")
		})
	}
}
