package webhook_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	stripe "github.com/stripe/stripe-go/v85/webhook"

	"github.com/delivered-twice/delivered-twice/internal/webhook"
)

// sender sends as fast as it can.
func sender(t *testing.T, scheme webhook.Scheme, s webhook.Secret, urls ...string) *webhook.Sender {
	t.Helper()
	return senderWith(t, webhook.SenderOptions{URLs: urls, Scheme: scheme, Secret: s, Timeout: patience})
}

func senderWith(t *testing.T, o webhook.SenderOptions) *webhook.Sender {
	t.Helper()
	o.FirstPause, o.MaxPause = time.Millisecond, time.Millisecond
	s, err := webhook.NewSender(o)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// script answers one request after the other, and then with 200.
type script struct {
	mu      sync.Mutex
	answers []http.HandlerFunc
	got     []string // bodies
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	s.got = append(s.got, string(body))
	answer := func(http.ResponseWriter, *http.Request) {}
	if len(s.answers) > 0 {
		answer, s.answers = s.answers[0], s.answers[1:]
	}
	s.mu.Unlock()
	answer(w, r)
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// It sends again whatever was not answered with 2xx for a reason that may pass.
func TestSenderRetries(t *testing.T) {
	s := &script{answers: []http.HandlerFunc{
		status(http.StatusInternalServerError),
		status(http.StatusTooManyRequests),
		status(http.StatusRequestTimeout),
		func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, // the connection breaks
		func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusServiceUnavailable)
		},
		status(http.StatusNoContent),
	}}
	server := httptest.NewServer(s)
	defer server.Close()
	require.NoError(t, sender(t, webhook.None, "", server.URL).Send(t.Context(), "evt_1", []byte("body")))
	require.Equal(t, []string{"body", "body", "body", "body", "body", "body"}, s.got)
}

// It gives up waiting, although the receiver is still working on it.
func TestSenderTimesOut(t *testing.T) {
	s := &script{answers: []http.HandlerFunc{func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }}}
	server := httptest.NewServer(s)
	defer server.Close()
	impatient := senderWith(t, webhook.SenderOptions{URLs: []string{server.URL}, Scheme: webhook.None, Timeout: 50 * time.Millisecond})
	require.NoError(t, impatient.Send(t.Context(), "evt_1", []byte("body")))
	require.GreaterOrEqual(t, len(s.got), 2)
}

func TestSenderRefused(t *testing.T) {
	for _, code := range []int{http.StatusBadRequest, http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusFound} {
		s := &script{answers: []http.HandlerFunc{func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(code)
		}}}
		server := httptest.NewServer(s)
		err := sender(t, webhook.None, "", server.URL+"/token-open-sesame").Send(t.Context(), "evt_1", []byte("body"))
		server.Close()
		require.ErrorIs(t, err, webhook.ErrRefused)
		require.ErrorContains(t, err, fmt.Sprint(code))
		require.NotContains(t, err.Error(), "sesame")
		require.Len(t, s.got, 1)
	}
}

// Retry-After is waited for, in seconds and as a date: until ctx ends, if it is so far.
func TestSenderHonoursRetryAfter(t *testing.T) {
	for _, after := range []string{"3600", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat), "4294967295"} {
		answered := make(chan struct{})
		s := &script{answers: []http.HandlerFunc{func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", after)
			w.WriteHeader(http.StatusServiceUnavailable)
			close(answered)
		}}}
		server := httptest.NewServer(s)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond) // many pauses of its own
		err := sender(t, webhook.None, "", server.URL).Send(ctx, "evt_1", []byte("body"))
		cancel()
		server.Close()
		<-answered
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "503")
		require.Len(t, s.got, 1)
	}
}

// Where one receiver is down, the next attempt goes to another.
func TestSenderTakesTurns(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	down := "http://" + listener.Addr().String()
	require.NoError(t, listener.Close())
	var one, two script
	first, second := httptest.NewServer(&one), httptest.NewServer(&two)
	defer first.Close()
	defer second.Close()
	s := sender(t, webhook.None, "", first.URL, down, second.URL)
	for n := range 6 {
		require.NoError(t, s.Send(t.Context(), "evt", fmt.Append(nil, n)))
	}
	require.Len(t, one.got, 2)
	require.Len(t, two.got, 4, "its own, and those of the one that is down")
}

// Stripe's own library takes what the sender signs, and the receiver takes what it signs.
func TestStripesLibrary(t *testing.T) {
	const body = `{"id":"evt_9f3k","object":"event","type":"charge.succeeded"}`
	t.Run("as the receiver", func(t *testing.T) {
		var event string
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			got, _ := io.ReadAll(r.Body)
			e, err := stripe.ConstructEventWithOptions(got, r.Header.Get("Stripe-Signature"), secret, stripe.ConstructEventOptions{IgnoreAPIVersionMismatch: true})
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			event = e.ID
		}))
		defer server.Close()
		require.NoError(t, sender(t, webhook.Stripe, secret, server.URL).Send(t.Context(), "evt_9f3k", []byte(body)))
		require.Equal(t, "evt_9f3k", event)
		err := sender(t, webhook.Stripe, "whsec_other", server.URL).Send(t.Context(), "evt_9f3k", []byte(body))
		require.ErrorContains(t, err, stripe.ErrNoValidSignature.Error())
	})
	t.Run("as the sender", func(t *testing.T) {
		var got inbox
		verifier, err := webhook.NewVerifier(webhook.Stripe, secret)
		require.NoError(t, err)
		r := receiver(t, func(o *webhook.Options) { o.Verifier, o.Process = verifier, got.process })
		for at, status := range map[time.Time]int{
			time.Now(): http.StatusOK,
			time.Now().Add(-webhook.Tolerance - 10*time.Second): http.StatusBadRequest,
		} {
			signed := stripe.GenerateTestSignedPayload(&stripe.UnsignedPayload{Payload: []byte(body), Secret: secret, Timestamp: at})
			req := post(string(signed.Payload))
			req.Header.Set("Stripe-Signature", signed.Header)
			require.Equal(t, status, do(r, req).StatusCode)
		}
		require.Equal(t, []string{"evt_9f3k"}, got.ids())
	})
}

// Sender and receiver understand each other under every scheme.
func TestRoundTrip(t *testing.T) {
	body, err := json.Marshal(map[string]string{"id": "evt_9f3k"})
	require.NoError(t, err)
	for scheme, want := range map[webhook.Scheme]string{
		webhook.Stripe: "evt_9f3k",
		webhook.GitHub: "guid",
		webhook.None:   fmt.Sprintf("sha256:%x", sha256.Sum256(body)),
	} {
		t.Run(string(scheme), func(t *testing.T) {
			var got inbox
			var secrets []webhook.Secret
			if scheme != webhook.None {
				secrets = append(secrets, older, secret)
			}
			verifier, err := webhook.NewVerifier(scheme, secrets...)
			require.NoError(t, err)
			address, _ := serve(t, receiver(t, func(o *webhook.Options) { o.Verifier, o.Process = verifier, got.process }))
			var own webhook.Secret
			if scheme != webhook.None {
				own = secret
			}
			require.NoError(t, sender(t, scheme, own, "http://"+address).Send(t.Context(), "guid", body))
			require.Equal(t, []string{want}, got.ids())
		})
	}
}

func TestSenderUnusable(t *testing.T) {
	for says, o := range map[string]webhook.SenderOptions{
		"no URL":            {Scheme: webhook.None},
		"cannot be read":    {Scheme: webhook.None, URLs: []string{"ftp://u:open-sesame@host"}},
		"need a secret":     {Scheme: webhook.Stripe, URLs: []string{"http://h"}},
		"protect nothing":   {Scheme: webhook.None, Secret: secret, URLs: []string{"http://h"}},
		"unknown scheme \"": {Scheme: "x", URLs: []string{"http://h"}},
	} {
		_, err := webhook.NewSender(o)
		require.ErrorContains(t, err, says)
		require.NotContains(t, err.Error(), "sesame")
	}
}
