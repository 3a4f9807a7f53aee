package webhook_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/webhook"
)

// Whatever comes, a verifier says yes only to a signature that it would make itself.
func FuzzVerify(f *testing.F) {
	body := `{"id":"evt_1"}`
	f.Add(fmt.Sprintf("t=%d,v1=%s", now.Unix(), stripeMAC(body, secret, now)), "", "", body)
	f.Add(fmt.Sprintf("t=%d,v1=%s,v1=00,v0=x", now.Unix(), stripeMAC(body, older, now)), "", "", body)
	f.Add("t=-9223372036854775808,v1=00", "sha256=00", "guid", body)
	f.Add("t=1,t=2,v1=,,=", "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17", "", "Hello, World!")
	f.Add("", "", "", "{\"id\":\"\xff\"}")
	stripe, err := webhook.NewVerifier(webhook.Stripe, secret, older)
	require.NoError(f, err)
	github, err := webhook.NewVerifier(webhook.GitHub, "It's a Secret to Everybody")
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, stripeSignature, githubSignature, delivery, body string) {
		header := http.Header{"Stripe-Signature": {stripeSignature}, "X-Hub-Signature-256": {githubSignature}, "X-Github-Delivery": {delivery}}
		for _, v := range []*webhook.Verifier{stripe, github} {
			id, err := v.Verify(header, []byte(body), now)
			require.Equal(t, err == nil, id != "")
			if err != nil && !errors.Is(err, webhook.ErrSignature) {
				t.Errorf("%v is no error of a signature", err)
			}
		}
		if _, err := stripe.Verify(header, []byte(body), now); err == nil &&
			!strings.Contains(strings.ToLower(stripeSignature), stripeMAC(body, secret, timestamp(stripeSignature))) &&
			!strings.Contains(strings.ToLower(stripeSignature), stripeMAC(body, older, timestamp(stripeSignature))) {
			t.Errorf("%q is taken for a signature", stripeSignature)
		}
	})
}

// timestamp is that of a valid signature.
func timestamp(signature string) time.Time {
	for part := range strings.SplitSeq(signature, ",") {
		var seconds int64
		if _, err := fmt.Sscanf(part, "t=%d", &seconds); err == nil {
			return time.Unix(seconds, 0)
		}
	}
	return time.Time{}
}

// Whatever comes, the receiver does not panic, and answers with a status that says whose
// fault it is: never its own.
func FuzzReceiver(f *testing.F) {
	f.Add("POST", "application/json", "", "t=1,v1=00", `{"id":"evt_1"}`, uint8(0))
	f.Add("POST", "application/json; charset=utf-8", "identity", "", "Hello, World!", uint8(1))
	f.Add("POST", "application/json;;", "gzip", "", "\xff\x00", uint8(2))
	f.Add("GET", "", "", "", "", uint8(0))
	f.Add("POST", "application/json", "", "", `{"id":{"id":[[[[]]]]}}`, uint8(2))
	var receivers []*webhook.Receiver
	for _, scheme := range webhook.Schemes() {
		var secrets []webhook.Secret
		if scheme != webhook.None {
			secrets = append(secrets, secret)
		}
		verifier, err := webhook.NewVerifier(scheme, secrets...)
		require.NoError(f, err)
		var got inbox
		receivers = append(receivers, receiver(f, func(o *webhook.Options) { o.Verifier, o.Process, o.MaxBody = verifier, got.process, 1_000 }))
	}
	f.Fuzz(func(t *testing.T, method, contentType, encoding, signature, body string, scheme uint8) {
		req := post(body)
		req.Method = method
		req.Header = http.Header{
			"Content-Type":        {contentType},
			"Content-Encoding":    {encoding},
			"Stripe-Signature":    {signature},
			"X-Hub-Signature-256": {signature},
		}
		status := do(receivers[int(scheme)%len(receivers)], req).StatusCode
		require.True(t, status == http.StatusOK || status/100 == 4, "status %d", status)
	})
}
