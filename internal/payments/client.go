package payments

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/sony/gobreaker/v2"
)

const (
	// MaxInFlight is how many calls of one batch are on their way at a time.
	MaxInFlight = 16
	// tripAfter is how many calls must fail in a row to open the circuit. It is more
	// than are in flight: connections that all break at once are no outage yet.
	tripAfter = MaxInFlight + 4

	// maxRetryAfter bounds what the API may ask for with Retry-After.
	maxRetryAfter = 10 * time.Second
	// maxPause bounds the pauses that the API did not ask for.
	maxPause = 2 * time.Second
	// dialPatience bounds one connection attempt.
	dialPatience = 3 * time.Second
	// maxReplyBytes bounds what is read of an answer.
	maxReplyBytes = 1 << 20
)

// ClientOptions say which API a client calls, and how patient it is.
type ClientOptions struct {
	// URL is the API's base address, such as http://127.0.0.1:8420. It must hold no
	// user, no password and no query: it is shown in errors.
	URL string
	// Key is the secret that says who is calling. It is never shown.
	Key string
	// Timeout bounds one request, from the first byte sent to the last one read; the
	// default is 10 s.
	Timeout time.Duration
	// Patience bounds one call with all its repeats, of which the last may take Timeout
	// longer; the default is 30 s.
	Patience time.Duration
	// RetryBackoff is about how long the pause before the first repeat is; it doubles,
	// up to 2 s. The default is 100 ms.
	RetryBackoff time.Duration
	// OpenFor is how long an open circuit lets no call through; the default is 1 s.
	OpenFor time.Duration
	// Logger, where set, hears when the circuit opens and closes.
	Logger *slog.Logger
}

func (o ClientOptions) withDefaults() ClientOptions {
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	if o.Patience == 0 {
		o.Patience = 30 * time.Second
	}
	if o.RetryBackoff == 0 {
		o.RetryBackoff = 100 * time.Millisecond
	}
	if o.OpenFor == 0 {
		o.OpenFor = time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// validate never quotes the address nor the key: either may hold a secret.
func (o ClientOptions) validate() error {
	base, err := url.Parse(o.URL)
	switch {
	case err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "":
		return errors.New("the API's address is not readable: write http://host:port or https://host")
	case base.User != nil || base.RawQuery != "" || base.Fragment != "":
		return errors.New("the API's address has a user, a query or a fragment: write http://host:port or https://host, and keep the key apart from it")
	case o.Key == "":
		return errors.New("there is no API key")
	case strings.ContainsFunc(o.Key, func(r rune) bool { return r <= ' ' || r > '~' }):
		return errors.New("the API key has blanks, or characters that are not ASCII")
	case o.Timeout < 0 || o.Patience < 0 || o.RetryBackoff < 0 || o.OpenFor < 0:
		return errors.New("timeout, patience, retry backoff and the time that a circuit is open must be positive")
	}
	return nil
}

// Client calls the payments API. It is safe for concurrent use.
//
// A call that may yet succeed is repeated, with the same key and the same body, after
// a pause that doubles and is stretched or shortened at random: after 408, 409, 429
// and 5xx, and after a connection that could not be made, broke, or was silent for
// longer than the timeout. What Retry-After asks for (RFC 9110, section 10.2.3) is
// waited for on top, up to 10 s.
//
// Nobody knows what came of a call whose answer is lost. It is repeated all the same,
// because the client promises at least once: with a key the API answers the repeat
// with what it answered, or would have answered, before. Without one, the repeat is
// another charge.
//
// Calls pass a circuit breaker. It opens when 20 in a row had no answer, or a 5xx:
// from then on calls fail at once, until one that changes nothing ([Client.Ready]) was
// answered.
type Client struct {
	options ClientOptions
	base    string
	http    *http.Client
	circuit *gobreaker.CircuitBreaker[*reply]
}

// NewClient returns a client. It connects to nothing; an error says what is wrong with
// the options.
func NewClient(o ClientOptions) (*Client, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("payments: %w", err)
	}
	c := &Client{options: o, base: strings.TrimRight(o.URL, "/")}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = (&net.Dialer{Timeout: dialPatience}).DialContext
	transport.TLSHandshakeTimeout = dialPatience
	// As many as are in flight, or each batch would close connections and open others.
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = MaxInFlight, MaxInFlight
	c.http = &http.Client{
		Transport: transport,
		// A redirect would carry the charge to an address that nobody has named.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	c.circuit = gobreaker.NewCircuitBreaker[*reply](gobreaker.Settings{
		Timeout:       o.OpenFor,
		ReadyToTrip:   func(counts gobreaker.Counts) bool { return counts.ConsecutiveFailures >= tripAfter },
		IsExcluded:    func(err error) bool { return errors.Is(err, errGivenUp) },
		OnStateChange: c.circuitChanged,
	})
	return c, nil
}

// circuitChanged says once that the circuit has opened, however often it is tried
// whether it can be closed again.
func (c *Client) circuitChanged(_ string, from, to gobreaker.State) {
	switch {
	case from == gobreaker.StateClosed && to == gobreaker.StateOpen:
		c.options.Logger.Warn("the payments API does not answer: the circuit is open, and no charge is made until it answers again", "api", c.base)
	case to == gobreaker.StateClosed:
		c.options.Logger.Info("the payments API answers again: the circuit is closed", "api", c.base)
	}
}

// Close closes the connections that stand idle.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Ready says whether it is worth making calls: nil while the circuit is closed, without
// asking anybody. While it is open there is an error at once. When it has been open for
// a while the API is asked, with a request that changes nothing, and if it answers the
// circuit is closed.
func (c *Client) Ready(ctx context.Context) error {
	if c.circuit.State() == gobreaker.StateClosed {
		return nil
	}
	return c.probe(ctx)
}

// Ping asks the API, with a request that changes nothing, whether it is there and takes
// the key. It is repeated like any other call.
func (c *Client) Ping(ctx context.Context) error {
	return c.repeat(ctx, func() error { return c.probe(ctx) })
}

// probe asks for a charge that there is not.
func (c *Client) probe(ctx context.Context) error {
	r, err := c.send(ctx, http.MethodGet, "/v1/charges/none", "", "")
	switch {
	case err != nil:
		return err
	case r.status == http.StatusNotFound && r.failure().Type != "":
		return nil
	case r.status == http.StatusNotFound:
		return fmt.Errorf("%s: 404, and not in the words of a payments API: check the address", r.to)
	}
	return r.judge()
}

// repeat does something until it succeeds, fails for good, or patience or ctx end.
func (c *Client) repeat(ctx context.Context, do func() error) error {
	pauses := &pauses{ExponentialBackOff: backoff.NewExponentialBackOff()}
	pauses.InitialInterval, pauses.Multiplier, pauses.MaxInterval = c.options.RetryBackoff, 2, maxPause
	var passing *transient
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := do()
		switch {
		case errors.As(err, &passing):
			pauses.asked = passing.after
		case err != nil:
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(pauses), backoff.WithMaxElapsedTime(c.options.Patience))
	if ended := context.Cause(ctx); ended != nil && errors.Is(err, ended) && passing != nil {
		return fmt.Errorf("%w, the last attempt: %w", ended, passing)
	}
	return err
}

// pauses grow, and what the API has asked for comes on top, once. On top, so that
// callers that were all told the same do not come again at the same moment.
type pauses struct {
	*backoff.ExponentialBackOff
	asked time.Duration
}

func (p *pauses) NextBackOff() time.Duration {
	next := p.ExponentialBackOff.NextBackOff() + p.asked
	p.asked = 0
	return next
}

// send makes one request through the circuit.
func (c *Client) send(ctx context.Context, method, path, key, body string) (*reply, error) {
	a, err := c.circuit.Execute(func() (*reply, error) { return c.exchange(ctx, method, path, key, body) })
	switch {
	case errors.Is(err, gobreaker.ErrOpenState):
		return nil, fmt.Errorf("the payments API at %s does not answer: the circuit is open", c.base)
	case errors.Is(err, gobreaker.ErrTooManyRequests): // somebody else is finding out whether it can be closed
		return nil, &transient{err: fmt.Errorf("the payments API at %s did not answer: it is being asked whether it does again", c.base)}
	}
	return a, err
}

// exchange sends one request and reads its answer. What the circuit counts as a failure
// is an error.
func (c *Client) exchange(ctx context.Context, method, path, key, body string) (*reply, error) {
	limited, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(limited, method, c.base+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+c.options.Key)
	if method == http.MethodPost {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if key != "" {
		// It also tells net/http that it may send the request again by itself when a
		// connection breaks that was kept alive.
		request.Header.Set("Idempotency-Key", key)
	}
	r := &reply{to: method + " " + c.base + path, key: key, secret: c.options.Key}
	response, err := c.http.Do(request)
	if err == nil {
		defer response.Body.Close()
		r.status, r.header = response.StatusCode, response.Header
		r.body, err = io.ReadAll(io.LimitReader(response.Body, maxReplyBytes))
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("%s: %w: %w", r.to, errGivenUp, context.Cause(ctx))
	case err != nil && limited.Err() != nil:
		return nil, &transient{err: fmt.Errorf("%s: no answer within %v", r.to, c.options.Timeout)}
	case err != nil:
		return nil, &transient{err: fmt.Errorf("%s: %w", r.to, bare(err))}
	case r.status >= http.StatusInternalServerError && !r.replayed():
		return nil, &transient{err: r.failure(), after: r.retryAfter(time.Now())}
	}
	return r, nil
}

// bare takes off what repeats the request's method and address.
func bare(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}

// errGivenUp: the caller's context has ended, which says nothing about the API.
var errGivenUp = errors.New("the call was given up")
