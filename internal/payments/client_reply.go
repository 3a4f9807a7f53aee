package payments

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// RequestError is an answer that is an error in Stripe's form
// (https://docs.stripe.com/api/errors). A call whose error is one was at fault itself:
// no repetition changes it.
type RequestError struct {
	// To says what was refused: method and address.
	To string
	// Key is the Idempotency-Key that was sent, if any.
	Key string
	// Status is the HTTP status.
	Status int
	// Type, Code, Param and Message are what the API says; "" for what it doesn't.
	Type, Code, Param, Message string
	// Replayed says that it is what the API answered to the key at first. Of a failure
	// of the API itself (5xx) it is not known whether the charge was made; only
	// another key could tell, and might charge again.
	Replayed bool
}

func (e *RequestError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d", e.To, e.Status)
	for _, word := range []string{e.Type, e.Code, e.Param} {
		if word != "" {
			b.WriteString(" " + word)
		}
	}
	if e.Key != "" {
		fmt.Fprintf(&b, ", Idempotency-Key %s", e.Key)
	}
	if e.Replayed {
		b.WriteString(", replayed")
	}
	if e.Message != "" {
		b.WriteString(": " + e.Message)
	}
	return b.String()
}

// transient is an error after which the same call may be made again. It does not
// unwrap: a [RequestError] in it is not the call's fault.
type transient struct {
	err   error
	after time.Duration // how long the API asks to wait
}

func (t *transient) Error() string { return t.err.Error() }

// reply is what came of one request.
type reply struct {
	to, key, secret string
	status          int
	header          http.Header
	body            []byte
}

// replayed says that the API has given this answer before, and gives it whenever the
// key comes again.
func (r *reply) replayed() bool { return r.header.Get("Idempotent-Replayed") == "true" }

// judge returns nil for a success. Of the errors, only a [RequestError] is the call's fault.
func (r *reply) judge() error {
	failure := r.failure()
	switch {
	case r.status >= 200 && r.status < 300:
		return nil
	case r.status == http.StatusRequestTimeout, r.status == http.StatusConflict, r.status == http.StatusTooManyRequests:
		return &transient{err: failure, after: r.retryAfter(time.Now())}
	// What follows is wrong with the address or the key, for every call alike.
	case r.status < 400:
		return fmt.Errorf("%v: it redirects, and no charge follows: check the address", failure)
	case r.status == http.StatusUnauthorized, r.status == http.StatusForbidden:
		return fmt.Errorf("%v: check the API key", failure)
	case r.status == http.StatusNotFound, r.status == http.StatusMethodNotAllowed:
		return fmt.Errorf("%v: it makes no charges there: check the address", failure)
	}
	return failure
}

// failure reads the answer as an error.
func (r *reply) failure() *RequestError {
	var body struct {
		Error struct{ Type, Code, Param, Message string }
	}
	// What is no such object has a status all the same.
	_ = json.Unmarshal(r.body, &body)
	said := body.Error
	return &RequestError{
		To: r.to, Key: r.key, Status: r.status, Replayed: r.replayed(),
		Type: said.Type, Code: said.Code, Param: said.Param,
		// Some APIs quote the key that they refuse.
		Message: strings.ReplaceAll(said.Message, r.secret, "…"),
	}
}

// retryAfter is how long the API asks to wait, in seconds or until a date (RFC 9110,
// section 10.2.3), within bounds.
func (r *reply) retryAfter(now time.Time) time.Duration {
	value := r.header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(value, 10, 64); err == nil {
		return time.Duration(min(seconds, uint64(maxRetryAfter/time.Second))) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(at.Sub(now), 0), maxRetryAfter)
	}
	return 0
}
