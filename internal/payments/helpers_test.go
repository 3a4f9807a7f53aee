package payments_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/payments"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

// patience bounds every wait. It is no part of any claim: reaching it is a failure.
const patience = 60 * time.Second

const (
	shopSecret  = "sk_test_shop"
	otherSecret = "sk_test_other"
)

func secrets(t testing.TB) payments.Secrets {
	t.Helper()
	s, err := payments.ParseSecrets("shop=" + shopSecret + ",other=" + otherSecret)
	require.NoError(t, err)
	return s
}

// api is a server in this process.
type api struct {
	*client
	pool   *pgxpool.Pool
	server *payments.Server
	logs   *logBuffer
}

// database returns the address of a schema that has the tables.
func database(t testing.TB) string {
	t.Helper()
	address := sandboxtest.Database(t)
	require.NoError(t, payments.Migrate(t.Context(), address))
	return address
}

func connect(t testing.TB, address string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(address)
	require.NoError(t, err)
	config.MaxConns = 60
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func newAPI(t testing.TB, adjust ...func(*payments.Options)) *api {
	t.Helper()
	return newAPIOn(t, connect(t, database(t)), adjust...)
}

func newAPIOn(t testing.TB, pool *pgxpool.Pool, adjust ...func(*payments.Options)) *api {
	t.Helper()
	logs := &logBuffer{}
	options := payments.Options{Secrets: secrets(t), Logger: slog.New(slog.NewTextHandler(logs, nil))}
	for _, f := range adjust {
		f(&options)
	}
	server, err := payments.NewServer(pool, options)
	require.NoError(t, err)
	listening := httptest.NewServer(server)
	t.Cleanup(listening.Close)
	return &api{client: newClient(t, listening.URL), pool: pool, server: server, logs: logs}
}

// client sends single requests. Connections are not kept: over a kept one that turns
// out to be closed, net/http sends a request with an Idempotency-Key again by itself.
type client struct {
	t      testing.TB
	url    string
	secret string
	http   *http.Client
}

func newClient(t testing.TB, url string) *client {
	return &client{t: t, url: url, secret: shopSecret, http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}}
}

func (c *client) as(secret string) *client {
	other := *c
	other.secret = secret
	return &other
}

type reply struct {
	status int
	header http.Header
	body   string
}

// replayed says whether the answer was a stored one.
func (r reply) replayed() bool { return r.header.Get("Idempotent-Replayed") == "true" }

// field returns a member of a JSON body, or of its error object.
func (r reply) field(t testing.TB, name string) any {
	t.Helper()
	var body map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.body), &body), r.body)
	if refused, ok := body["error"].(map[string]any); ok {
		return refused[name]
	}
	return body[name]
}

// try sends a request. headers are names and values in turn.
func (c *client) try(ctx context.Context, method, path, body string, headers ...string) (reply, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.url+path, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	request.Header.Set("Authorization", "Bearer "+c.secret)
	if body != "" {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := c.http.Do(request)
	if err != nil {
		return reply{}, err
	}
	defer response.Body.Close()
	all, err := io.ReadAll(response.Body)
	return reply{response.StatusCode, response.Header, string(all)}, err
}

func (c *client) send(method, path, body string, headers ...string) reply {
	c.t.Helper()
	r, err := c.try(c.t.Context(), method, path, body, headers...)
	require.NoError(c.t, err)
	return r
}

func (c *client) post(path, body string, headers ...string) reply {
	c.t.Helper()
	return c.send(http.MethodPost, path, body, headers...)
}

const (
	idempotencyKey = "Idempotency-Key"
	asJSON         = "application/json"
	good           = "amount=1999&currency=eur&source=tok_visa&metadata[event_id]=evt_1&metadata[attempt]=a.1"
)

// charge posts a good charge with a key.
func (c *client) charge(key string) reply {
	c.t.Helper()
	return c.post("/v1/charges", good, idempotencyKey, key)
}

type entry struct {
	Object, ObjectID, ClientID string
	IdemKey, EventID, Attempt  *string
}

// ledger returns what was accepted, in the order in which it was.
func ledger(t testing.TB, pool *pgxpool.Pool) []entry {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT object, object_id, client_id, idem_key, event_id, attempt FROM ledger ORDER BY id`)
	require.NoError(t, err)
	entries, err := pgx.CollectRows(rows, pgx.RowToStructByPos[entry])
	require.NoError(t, err)
	return entries
}

func (a *api) ledger() []entry {
	a.t.Helper()
	return ledger(a.t, a.pool)
}

func (a *api) count(table string) (n int) {
	a.t.Helper()
	require.NoError(a.t, a.pool.QueryRow(a.t.Context(), "SELECT count(*) FROM "+table).Scan(&n))
	return n
}

func (a *api) exec(sql string, args ...any) {
	a.t.Helper()
	_, err := a.pool.Exec(a.t.Context(), sql, args...)
	require.NoError(a.t, err)
}

func text(s string) *string { return &s }

type logBuffer struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}

// gate is a hook that holds the first request that comes to a step, until it is
// opened.
type gate struct {
	step    payments.Step
	taken   atomic.Bool // not a sync.Once, which would hold the others, too
	reached chan struct{}
	opened  chan struct{}
}

func newGate(step payments.Step) *gate {
	return &gate{step: step, reached: make(chan struct{}), opened: make(chan struct{})}
}

func (g *gate) hook(_ context.Context, p payments.Passage) error {
	if p.Step == g.step && g.taken.CompareAndSwap(false, true) {
		close(g.reached)
		<-g.opened
	}
	return nil
}

// later sends a request and returns a channel with its reply.
func (c *client) later(key string) <-chan reply {
	replies := make(chan reply, 1)
	go func() {
		defer close(replies)
		if r, err := c.try(context.WithoutCancel(c.t.Context()), http.MethodPost, "/v1/charges", good, idempotencyKey, key); err == nil {
			replies <- r
		}
	}()
	return replies
}
