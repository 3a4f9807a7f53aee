package webhook_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	stripe "github.com/stripe/stripe-go/v85/webhook"

	"github.com/delivered-twice/delivered-twice/internal/webhook"
)

const (
	secret = "whsec_open-sesame"
	older  = "whsec_before"
)

var now = time.Date(2026, time.January, 5, 14, 2, 11, 0, time.UTC)

// verify is what a verifier says of one request.
func verify(t *testing.T, scheme webhook.Scheme, secrets []webhook.Secret, header map[string]string, body string) (id string, err error) {
	t.Helper()
	v, err := webhook.NewVerifier(scheme, secrets...)
	require.NoError(t, err)
	h := http.Header{}
	for name, value := range header {
		h.Set(name, value)
	}
	return v.Verify(h, []byte(body), now)
}

func stripeMAC(body string, secret string, at time.Time) string {
	return hex.EncodeToString(stripe.ComputeSignature(at, []byte(body), secret))
}

// What the library that is sent with Stripe signs is valid here, as far as it is to be.
func TestStripe(t *testing.T) {
	const body = `{"id":"evt_9f3k","object":"event"}`
	signed := func(at time.Time, secrets ...string) string {
		value := fmt.Sprintf("t=%d", at.Unix())
		for _, s := range secrets {
			value += ",v1=" + stripeMAC(body, s, at)
		}
		return value
	}
	right := stripeMAC(body, secret, now)
	for name, c := range map[string]struct {
		header string
		says   string // "" where it is valid
	}{
		"valid":                          {signed(now, secret), ""},
		"with the older secret":          {signed(now, older), ""},
		"with several, one of them ours": {signed(now, "whsec_other", secret), ""},
		"with versions nobody knows":     {"v2=x,v0=abc,scheme=," + signed(now, secret), ""},
		"with a broken one beside":       {signed(now, secret) + ",v1=zz", ""},
		"as old as may be":               {signed(now.Add(-webhook.Tolerance), secret), ""},
		"ahead as far as may be":         {signed(now.Add(webhook.Tolerance), secret), ""},

		"none":                       {"", "is missing"},
		"another secret's":           {signed(now, "whsec_other"), "no signature"},
		"an empty secret's":          {signed(now, ""), "no signature"},
		"of the wrong version":       {fmt.Sprintf("t=%d,v0=%s", now.Unix(), right), "must have"},
		"cut off":                    {fmt.Sprintf("t=%d,v1=%s", now.Unix(), right[:62]), "no signature"},
		"no signature":               {fmt.Sprintf("t=%d", now.Unix()), "must have"},
		"no timestamp":               {"v1=" + right, "must have"},
		"another timestamp":          {fmt.Sprintf("t=%d,v1=%s", now.Unix()+1, right), "no signature"},
		"two timestamps":             {fmt.Sprintf("t=%d,t=%d,v1=%s", now.Unix(), now.Unix(), right), "several timestamps"},
		"a timestamp that is none":   {"t=yesterday,v1=" + right, "no number"},
		"a timestamp beyond numbers": {"t=99999999999999999999,v1=" + right, "no number"},
		"too old":                    {signed(now.Add(-webhook.Tolerance-time.Second), secret), "5m0s"},
		"from the future":            {signed(now.Add(webhook.Tolerance+time.Second), secret), "5m0s"},
		"nonsense":                   {"=,=,,v1,t", "must have"},
	} {
		t.Run(name, func(t *testing.T) {
			id, err := verify(t, webhook.Stripe, []webhook.Secret{secret, older}, map[string]string{"Stripe-Signature": c.header}, body)
			if c.says == "" {
				require.NoError(t, err)
				require.Equal(t, "evt_9f3k", id)
				return
			}
			require.ErrorIs(t, err, webhook.ErrSignature)
			require.ErrorContains(t, err, c.says)
			require.Empty(t, id)
			require.NotContains(t, err.Error(), right[:8])
			require.NotContains(t, err.Error(), "sesame")
		})
	}
	t.Run("of another body", func(t *testing.T) {
		_, err := verify(t, webhook.Stripe, []webhook.Secret{secret}, map[string]string{"Stripe-Signature": signed(now, secret)}, body+" ")
		require.ErrorIs(t, err, webhook.ErrSignature)
	})
}

// GitHub's documentation, "Testing the webhook payload validation".
func TestGitHub(t *testing.T) {
	const (
		body  = "Hello, World!"
		ours  = "It's a Secret to Everybody"
		right = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
	)
	for name, c := range map[string]struct {
		signature string
		says      string
	}{
		"valid":                {"sha256=" + right, ""},
		"valid in upper case":  {"sha256=" + strings.ToUpper(right), ""},
		"none":                 {"", "is missing"},
		"without its name":     {right, "must be sha256="},
		"of another algorithm": {"sha1=" + right[:40], "must be sha256="},
		"no number":            {"sha256=" + right[:63] + "g", "must be sha256="},
		"cut off":              {"sha256=" + right[:62], "is not that of the body"},
		"empty":                {"sha256=", "is not that of the body"},
		"another":              {"sha256=" + strings.Repeat("0", 64), "is not that of the body"},
	} {
		t.Run(name, func(t *testing.T) {
			header := map[string]string{"X-Hub-Signature-256": c.signature, "X-GitHub-Delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958"}
			id, err := verify(t, webhook.GitHub, []webhook.Secret{ours}, header, body)
			if c.says == "" {
				require.NoError(t, err)
				require.Equal(t, "72d3162e-cc78-11e3-81ab-4c9367dc0958", id)
				return
			}
			require.ErrorIs(t, err, webhook.ErrSignature)
			require.ErrorContains(t, err, c.says)
			require.Empty(t, id)
		})
	}
}

// Which event a body is: by its id, as received, or else by its bytes.
func TestIdentity(t *testing.T) {
	hash := func(body string) string {
		id, err := verify(t, webhook.None, nil, nil, body)
		require.NoError(t, err)
		require.Regexp(t, "^sha256:[0-9a-f]{64}$", id)
		return id
	}
	for body, want := range map[string]string{
		`{"id":"evt_1"}`:                       "evt_1",
		`{"data":{"id":"x"},"id":"evt_1"}`:     "evt_1",
		`{"id":" evt\u00001 "}`:                " evt\x001 ", // as received: the inbox says what it can't keep
		`{"id":"evt_1","ID":"evt_2","Id":"x"}`: "evt_1",
		`{"id":"evt_1","id":"evt_2"}`:          "evt_2",
		`{}`:                                   hash(`{}`),
		`{"ID":"evt_1"}`:                       hash(`{"ID":"evt_1"}`),
		`{"id":""}`:                            hash(`{"id":""}`),
		`{"id":7}`:                             hash(`{"id":7}`),
		`{"id":null}`:                          hash(`{"id":null}`),
		`{"id":"evt_1"`:                        hash(`{"id":"evt_1"`),
		`["evt_1"]`:                            hash(`["evt_1"]`),
		"{\"id\":\"evt\xff\"}":                 hash("{\"id\":\"evt\xff\"}"),
		`{"id":"evt\ud800"}`:                   hash(`{"id":"evt\ud800"}`),
		`{"id":"` + strings.Repeat("x", 9_000) + `"}`: strings.Repeat("x", 9_000),
	} {
		signature := fmt.Sprintf("t=%d,v1=%s", now.Unix(), stripeMAC(body, secret, now))
		id, err := verify(t, webhook.Stripe, []webhook.Secret{secret}, map[string]string{"Stripe-Signature": signature}, body)
		require.NoError(t, err)
		require.Equal(t, want, id, "%.60q", body)
	}
	require.NotEqual(t, hash("{\"id\":\"evt\xff\"}"), hash("{\"id\":\"evt\xfe\"}"))
}

// A copy that was decoded and encoded again is the same event, and has another hash.
func TestReserializedCopy(t *testing.T) {
	const received = `{"order_id":"ord_1","customer":"cus_1","amount":4990.0}`
	var decoded map[string]any
	require.NoError(t, json.Unmarshal([]byte(received), &decoded))
	copied, err := json.Marshal(decoded)
	require.NoError(t, err)
	require.JSONEq(t, received, string(copied))

	id, err := verify(t, webhook.None, nil, nil, received)
	require.NoError(t, err)
	other, err := verify(t, webhook.None, nil, nil, string(copied))
	require.NoError(t, err)
	require.NotEqual(t, id, other)
}

func TestVerifierUnusable(t *testing.T) {
	for name, c := range map[string]struct {
		scheme  webhook.Scheme
		secrets []webhook.Secret
		says    string
	}{
		"no secret":           {webhook.Stripe, nil, "need a secret"},
		"an empty secret":     {webhook.GitHub, []webhook.Secret{secret, ""}, "everybody could sign"},
		"a secret for nobody": {webhook.None, []webhook.Secret{secret}, "protect nothing"},
		"another scheme":      {"slack", []webhook.Secret{secret}, `unknown scheme "slack"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := webhook.NewVerifier(c.scheme, c.secrets...)
			require.ErrorContains(t, err, c.says)
			require.NotContains(t, err.Error(), "sesame")
		})
	}
}

func TestSecretIsNotPrinted(t *testing.T) {
	options := webhook.SenderOptions{Secret: secret}
	encoded, err := json.Marshal(options)
	require.NoError(t, err)
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("", "options", options, "secret", options.Secret)
	for _, printed := range []string{
		fmt.Sprint(options), fmt.Sprintf("%+v %#v %s %q", options, options, options.Secret, options.Secret), string(encoded), log.String(),
	} {
		require.NotContains(t, printed, "sesame")
	}
}
