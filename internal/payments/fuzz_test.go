package payments_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/payments"
)

// fuzzed is a server that is called without a network, which would refuse part of
// what it must stand.
func fuzzed(f *testing.F) func(t *testing.T, path, contentType, body string, keys ...string) *httptest.ResponseRecorder {
	f.Helper()
	a := newAPI(f, func(o *payments.Options) { o.Stall = patience })
	return func(t *testing.T, path, contentType, body string, keys ...string) *httptest.ResponseRecorder {
		request := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
		request.Header = http.Header{"Authorization": {"Bearer " + shopSecret}, "Content-Type": {contentType}}
		if keys != nil {
			request.Header[idempotencyKey] = keys
		}
		answer := httptest.NewRecorder()
		a.server.ServeHTTP(answer, request)
		require.Less(t, answer.Code, http.StatusInternalServerError, answer.Body)
		require.True(t, json.Valid(answer.Body.Bytes()), answer.Body)
		return answer
	}
}

// Whatever the key is: no panic, no 5xx. What is taken once is replayed when it comes
// again, and what is refused is refused again.
func FuzzIdempotencyKey(f *testing.F) {
	for _, key := range []string{
		"", " ", "evt_9f3k/payment", `"8e03978e-40d5-43e8-bc93-6894a57f9324"`, "a\x00b", "\xff", "caf\u00e9", "a\nb", "\u0085", "\u200b", "\U0010ffff",
		strings.Repeat("x", 255), strings.Repeat("x", 256), "shop\",\"k", "'; DROP TABLE ledger; --",
	} {
		f.Add(key)
	}
	post := fuzzed(f)
	f.Fuzz(func(t *testing.T, key string) {
		first := post(t, "/v1/charges", formType, good, key)
		again := post(t, "/v1/charges", formType, good, key)
		require.Equal(t, first.Code, again.Code)
		if first.Code != http.StatusOK {
			require.Equal(t, http.StatusBadRequest, first.Code)
			return
		}
		require.Equal(t, first.Body.String(), again.Body.String())
		require.Equal(t, "true", again.Header().Get("Idempotent-Replayed"))
	})
}

const formType = "application/x-www-form-urlencoded"

func FuzzFormBody(f *testing.F) {
	for _, body := range []string{
		"", good, "amount=1", "amount=1&amount=2", "amount=%00&currency=eur", "%zz", "a;b", "metadata[", "metadata[]=", "metadata[a]=%ff", "amount=٣&currency=eur",
		"to=kim%40example.com&subject=a", "to=%22%00%22%40a&subject=a", "to=kim%40example.com&subject=%0d%0aBcc:x", "\xff=\xfe", strings.Repeat("a&", 1000),
	} {
		f.Add(body)
	}
	post := fuzzed(f)
	f.Fuzz(func(t *testing.T, body string) { both(t, post, formType, body) })
}

func FuzzJSONBody(f *testing.F) {
	for _, body := range []string{
		"", "{}", "[]", "null", `{"amount":1999,"currency":"eur","source":"tok_visa","metadata":{"event_id":"evt_1"}}`, `{"amount":1e2,"currency":"eur"}`,
		`{"amount":1,"amount":1}`, `{"a":{"b":{"c":{"d":{"e":{"f":{"g":{"h":{"i":1}}}}}}}}}`, `{"amount":1,"currency":"eur","description":"\ud800"}`,
		`{"amount":1,"currency":"eur","description":"\u0000"}`, `{"metadata":[1,true,null]}`, `{"amount":1}x`, `{"":""}`, "{\"\xff\":1}", `{"a"`, `{"a":}`, `{1:2}`, `{"a":1,}`,
		`{"to":"kim@example.com","subject":"a","text":"b"}`,
	} {
		f.Add(body)
	}
	post := fuzzed(f)
	f.Fuzz(func(t *testing.T, body string) { both(t, post, asJSON, body) })
}

// both sends a body to both endpoints, twice.
func both(t *testing.T, post func(t *testing.T, path, contentType, body string, keys ...string) *httptest.ResponseRecorder, contentType, body string) {
	for _, path := range []string{"/v1/charges", "/v1/emails"} {
		first := post(t, path, contentType, body)
		require.Equal(t, first.Code, post(t, path, contentType, body).Code, "it depends on the body alone")
	}
}
