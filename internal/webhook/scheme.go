package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Scheme is how a provider signs a body, and where it puts the event's id.
type Scheme string

const (
	// Stripe signs a timestamp and the body; the id is the field "id" of the body
	// (Stripe's documentation, "Verify webhook signatures manually").
	Stripe Scheme = "stripe"
	// GitHub signs the body; the id is in the header X-GitHub-Delivery, which is the
	// same when a delivery is repeated (GitHub's documentation, "Validating webhook
	// deliveries").
	GitHub Scheme = "github"
	// None signs nothing; the id is the SHA-256 of the body.
	None Scheme = "none"
)

// Schemes returns all there are.
func Schemes() []Scheme { return []Scheme{Stripe, GitHub, None} }

const (
	stripeSignature = "Stripe-Signature"    // t=1767621731,v1=5257a8…
	githubSignature = "X-Hub-Signature-256" // sha256=757107…
	githubDelivery  = "X-GitHub-Delivery"

	githubPrefix = "sha256="
)

// Tolerance is how far the timestamp of a signature may be from the receiver's clock,
// in either direction. Whoever has recorded a request can send it again for so long.
const Tolerance = 5 * time.Minute

// ErrSignature is wrapped by every error of [Verifier.Verify].
var ErrSignature = errors.New("the signature is not valid")

// Secret is what sender and receiver share. It is never printed.
type Secret string

const hidden = "(secret)"

// String keeps it out of what fmt prints.
func (Secret) String() string { return hidden }

// GoString keeps it out of %#v.
func (Secret) GoString() string { return hidden }

// MarshalText keeps it out of JSON and of logs.
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// Verifier checks signatures. It is safe for concurrent use.
type Verifier struct {
	scheme  Scheme
	secrets []Secret
}

// NewVerifier returns a verifier that accepts a signature with any of the secrets:
// there are several while one is being replaced. None takes no secret, the others take
// at least one.
func NewVerifier(scheme Scheme, secrets ...Secret) (*Verifier, error) {
	if err := check(scheme, secrets); err != nil {
		return nil, fmt.Errorf("webhook: %w", err)
	}
	return &Verifier{scheme, secrets}, nil
}

func check(scheme Scheme, secrets []Secret) error {
	switch scheme {
	case Stripe, GitHub:
		if len(secrets) == 0 {
			return fmt.Errorf("signatures of the scheme %q need a secret", scheme)
		}
	case None:
		if len(secrets) > 0 {
			return fmt.Errorf("the scheme %q has no signature: a secret for it would protect nothing", scheme)
		}
	default:
		return fmt.Errorf("unknown scheme %q: choose %q, %q or %q", scheme, Stripe, GitHub, None)
	}
	for _, s := range secrets {
		if s == "" {
			return errors.New("a secret is empty: everybody could sign with it")
		}
	}
	return nil
}

// Verify returns the id of the event that a request with this header and this body, as
// received, brings; at is the receiver's time. An error wraps [ErrSignature].
//
// Where a signed request has no id, or the scheme is None, the id is "sha256:" and the
// hexadecimal SHA-256 of the body.
func (v *Verifier) Verify(header http.Header, body []byte, at time.Time) (id string, err error) {
	switch v.scheme {
	case Stripe:
		err = v.stripe(header, body, at)
	case GitHub:
		err = v.github(header, body)
	}
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrSignature, err)
	}
	switch v.scheme {
	case Stripe:
		id = idInside(body)
	case GitHub:
		id = header.Get(githubDelivery)
	}
	if id == "" {
		id = digest(body)
	}
	return id, nil
}

func digest(body []byte) string {
	sum := sha256.Sum256(body)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (v *Verifier) stripe(header http.Header, body []byte, at time.Time) error {
	timestamp, signatures, err := parseStripe(strings.Join(header.Values(stripeSignature), ","))
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil {
		return fmt.Errorf("the timestamp in %s is no number", stripeSignature)
	}
	if !v.signed(signatures, []byte(timestamp+"."), body) {
		return fmt.Errorf("no signature in %s is that of the body", stripeSignature)
	}
	// Compared as seconds: the difference of times as far apart as a number can say is
	// no duration any more.
	limit := int64(Tolerance / time.Second)
	if seconds < at.Unix()-limit || seconds > at.Unix()+limit {
		return fmt.Errorf("it was made more than %v ago, or is from the future: check the clocks, and that requests do not wait for long", Tolerance)
	}
	return nil
}

// parseStripe takes the header apart: one timestamp, and at least one signature of the
// version v1. Of what else there is, nothing is known.
func parseStripe(value string) (timestamp string, signatures [][]byte, err error) {
	if value == "" {
		return "", nil, fmt.Errorf("the header %s is missing", stripeSignature)
	}
	for part := range strings.SplitSeq(value, ",") {
		key, value, _ := strings.Cut(part, "=")
		switch {
		case key == "t" && timestamp != "":
			return "", nil, fmt.Errorf("%s has several timestamps", stripeSignature)
		case key == "t":
			timestamp = value
		case key == "v1":
			if signature, err := hex.DecodeString(value); err == nil {
				signatures = append(signatures, signature)
			}
		}
	}
	if timestamp == "" || len(signatures) == 0 {
		return "", nil, fmt.Errorf("%s must have a timestamp and a signature: t=…,v1=…", stripeSignature)
	}
	return timestamp, signatures, nil
}

func (v *Verifier) github(header http.Header, body []byte) error {
	value := header.Get(githubSignature)
	if value == "" {
		return fmt.Errorf("the header %s is missing", githubSignature)
	}
	text, found := strings.CutPrefix(value, githubPrefix)
	signature, err := hex.DecodeString(text)
	if !found || err != nil {
		return fmt.Errorf("%s must be %s and a hexadecimal number", githubSignature, githubPrefix)
	}
	if !v.signed([][]byte{signature}, body) {
		return fmt.Errorf("%s is not that of the body", githubSignature)
	}
	return nil
}

// signed says whether one of the signatures is that of the parts with one of the
// secrets. How long it takes does not depend on how much of a signature is right.
func (v *Verifier) signed(signatures [][]byte, parts ...[]byte) bool {
	for _, secret := range v.secrets {
		mac := secret.mac(parts...)
		for _, signature := range signatures {
			if hmac.Equal(mac, signature) {
				return true
			}
		}
	}
	return false
}

// mac is the HMAC-SHA256 (RFC 2104) of the parts, one after the other.
func (s Secret) mac(parts ...[]byte) []byte {
	h := hmac.New(sha256.New, []byte(s))
	for _, part := range parts {
		h.Write(part)
	}
	return h.Sum(nil)
}

// idInside returns the field "id" of a body, "" where there is none.
//
// What cannot be decoded without loss is none either: encoding/json puts U+FFFD in the
// place of what it cannot read, and two ids could become one.
func idInside(body []byte) string {
	var fields map[string]json.RawMessage // a struct would take "ID" and "Id" as well
	var id string
	if json.Unmarshal(body, &fields) != nil || json.Unmarshal(fields["id"], &id) != nil {
		return ""
	}
	if strings.ContainsRune(id, utf8.RuneError) {
		return ""
	}
	return id
}

// sign sets the headers with which a body is sent under an id.
func (s Scheme) sign(header http.Header, secret Secret, id string, body []byte, at time.Time) {
	switch s {
	case Stripe:
		timestamp := strconv.FormatInt(at.Unix(), 10)
		header.Set(stripeSignature, "t="+timestamp+",v1="+hex.EncodeToString(secret.mac([]byte(timestamp+"."), body)))
	case GitHub:
		header.Set(githubSignature, githubPrefix+hex.EncodeToString(secret.mac(body)))
		header.Set(githubDelivery, id)
	}
}
