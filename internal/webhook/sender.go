package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// SenderOptions say where events are sent, and how patiently.
type SenderOptions struct {
	// URLs are those of the receivers. They are asked in turn, as by a load balancer: an
	// event begins with the one after that of the event before, and its next attempt goes
	// to the next.
	URLs []string
	// Scheme and Secret sign. Scheme None takes no secret.
	Scheme Scheme
	Secret Secret
	// Timeout is how long one attempt may take; the default is 10 s.
	Timeout time.Duration
	// FirstPause is about how long the pause before a second attempt is, and MaxPause the
	// longest: it doubles. The defaults are 1 s and 1 h.
	FirstPause, MaxPause time.Duration
}

func (o SenderOptions) withDefaults() SenderOptions {
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	if o.FirstPause == 0 {
		o.FirstPause = time.Second
	}
	if o.MaxPause == 0 {
		o.MaxPause = time.Hour
	}
	return o
}

// Sender is the provider's side of a webhook: it sends an event until it is told that
// it is done. So an event is delivered at least once, and twice whenever an answer was
// lost or too slow. It is safe for concurrent use.
type Sender struct {
	options SenderOptions
	urls    []*url.URL
	client  *http.Client
	turn    atomic.Uint64 // whose it is to begin with
}

// NewSender returns a sender. An error says what is wrong with the options.
func NewSender(o SenderOptions) (*Sender, error) {
	o = o.withDefaults()
	var secrets []Secret
	if o.Secret != "" {
		secrets = []Secret{o.Secret}
	}
	if err := check(o.Scheme, secrets); err != nil {
		return nil, fmt.Errorf("webhook: %w", err)
	}
	if len(o.URLs) == 0 {
		return nil, errors.New("webhook: there is no URL to send to")
	}
	s := &Sender{options: o}
	for _, given := range o.URLs {
		u, err := url.Parse(given)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, errors.New("webhook: a URL cannot be read; write https://host/path") // the error would quote it, and it may hold a token
		}
		s.urls = append(s.urls, u)
	}
	s.client = &http.Client{
		Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			MaxIdleConnsPerHost: 64,
			IdleConnTimeout:     time.Minute,
		},
		// A receiver that has moved is to be told to the provider.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       o.Timeout,
	}
	return s, nil
}

// Close closes connections that stand idle.
func (s *Sender) Close() { s.client.CloseIdleConnections() }

// ErrRefused is wrapped by the error of an event that a receiver does not take as it
// is.
var ErrRefused = errors.New("refused")

// Send sends an event until a receiver answers with 2xx. It tries again when no answer
// comes in time, when the connection breaks, and when the answer is 408, 429 or 5xx; not
// before the time that Retry-After names. Any other answer is an error that wraps
// [ErrRefused]. When ctx ends, its error is returned together with the last one: the event
// may or may not have been received.
//
// Each attempt is signed anew, with the time of its own.
func (s *Sender) Send(ctx context.Context, id string, body []byte) error {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.Multiplier, pauses.MaxInterval = s.options.FirstPause, 2, s.options.MaxPause
	turn := s.turn.Add(1)
	var last error
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		to := s.urls[turn%uint64(len(s.urls))]
		turn++
		last = s.attempt(ctx, to, id, body)
		return struct{}{}, last
	}, backoff.WithBackOff(pauses), backoff.WithMaxElapsedTime(0))
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("%w, the last attempt: %w", err, last)
	}
	return fmt.Errorf("send event %s: %w", id, err)
}

// attempt sends it once.
func (s *Sender) attempt(ctx context.Context, to *url.URL, id string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to.String(), bytes.NewReader(body))
	if err != nil {
		return backoff.Permanent(err)
	}
	req.Header.Set("Content-Type", "application/json")
	s.options.Scheme.sign(req.Header, s.options.Secret, id, body, time.Now())
	resp, err := s.client.Do(req)
	if err != nil {
		if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
			err = wrapped.Err // the rest is the address, and whatever token is in it
		}
		return fmt.Errorf("post to %s: %w", to.Host, err)
	}
	defer resp.Body.Close()
	said, _ := io.ReadAll(io.LimitReader(resp.Body, maxSaid))
	if resp.StatusCode/100 == 2 {
		return nil
	}
	err = fmt.Errorf("%s answered %s: %s", to.Host, resp.Status, bytes.TrimSpace(said))
	switch {
	case resp.StatusCode/100 != 5 && resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusRequestTimeout:
		return backoff.Permanent(fmt.Errorf("%w: %w", ErrRefused, err))
	case resp.Header.Get("Retry-After") != "":
		if pause, ok := pauseFor(resp.Header.Get("Retry-After"), time.Now()); ok {
			return fmt.Errorf("%w (%w)", err, &backoff.RetryAfterError{Duration: pause})
		}
	}
	return err
}

const (
	// maxSaid is how much of an answer is read, in bytes.
	maxSaid = 1 << 10
	// maxRetryAfter is how long a receiver can make the sender wait.
	maxRetryAfter = time.Hour
)

// pauseFor reads Retry-After: seconds, or a date (RFC 9110, section 10.2.3).
func pauseFor(value string, now time.Time) (time.Duration, bool) {
	if seconds, err := strconv.ParseUint(value, 10, 32); err == nil {
		return min(time.Duration(seconds)*time.Second, maxRetryAfter), true
	}
	if date, err := http.ParseTime(value); err == nil {
		return min(max(date.Sub(now), 0), maxRetryAfter), true
	}
	return 0, false
}
