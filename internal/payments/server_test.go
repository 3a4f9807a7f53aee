package payments_test

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/payments"
)

func TestACharge(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	made := a.post("/v1/charges", good+"&description=two+%26+a+half")
	require.Equal(t, http.StatusOK, made.status, made.body)
	require.Equal(t, "application/json", made.header.Get("Content-Type"))
	require.NotEmpty(t, made.header.Get("Request-Id"))
	for name, want := range map[string]any{
		"object": "charge", "amount": 1999.0, "amount_captured": 1999.0, "currency": "eur", "description": "two & a half", "failure_code": nil,
		"captured": true, "paid": true, "livemode": false, "status": "succeeded",
		"metadata": map[string]any{"event_id": "evt_1", "attempt": "a.1"},
	} {
		require.Equal(t, want, made.field(t, name), name)
	}
	id := made.field(t, "id").(string)
	require.True(t, strings.HasPrefix(id, "ch_"))

	found := a.send(http.MethodGet, "/v1/charges/"+id, "")
	require.Equal(t, http.StatusOK, found.status)
	require.Equal(t, made.body, found.body)
	for _, missing := range []reply{
		a.as(otherSecret).send(http.MethodGet, "/v1/charges/"+id, ""),
		a.send(http.MethodGet, "/v1/charges/ch_none", ""),
		a.send(http.MethodGet, "/v1/charges/%00%ff", ""),
	} {
		require.Equal(t, http.StatusNotFound, missing.status)
		require.Equal(t, "resource_missing", missing.field(t, "code"))
	}
}

func TestAnEmail(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	const body = "to=kim%40example.com&subject=Paid&text=Thank+you&metadata[event_id]=evt_1"
	sent := a.post("/v1/emails", body, idempotencyKey, "evt_1/email")
	require.Equal(t, http.StatusOK, sent.status, sent.body)
	require.Equal(t, "email", sent.field(t, "object"))
	require.Equal(t, "kim@example.com", sent.field(t, "to"))
	require.True(t, a.post("/v1/emails", body, idempotencyKey, "evt_1/email").replayed())
	require.Equal(t, []entry{{"email", sent.field(t, "id").(string), "shop", text("evt_1/email"), text("evt_1"), nil}}, a.ledger())
	for param, wrong := range map[string]string{
		"to":      "subject=a",
		"subject": "to=kim%40example.com",
	} {
		r := a.post("/v1/emails", wrong)
		require.Equal(t, http.StatusBadRequest, r.status)
		require.Equal(t, param, r.field(t, "param"))
	}
	require.Equal(t, "email_invalid", a.post("/v1/emails", "to=Kim+<kim@example.com>&subject=a").field(t, "code"))
}

func TestRequestsThatAreRefused(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	const form = "application/x-www-form-urlencoded"
	var tooMany strings.Builder
	for i := range 51 {
		fmt.Fprintf(&tooMany, "&metadata[k%d]=v", i)
	}
	for _, c := range []struct {
		contentType, body, code, param string
		status                         int
	}{
		{form, "currency=eur", "parameter_missing", "amount", 400},
		{form, "amount=1", "parameter_missing", "currency", 400},
		{form, "amount=0&currency=eur", "parameter_invalid_integer", "amount", 400},
		{form, "amount=-5&currency=eur", "parameter_invalid_integer", "amount", 400},
		{form, "amount=%2B5&currency=eur", "parameter_invalid_integer", "amount", 400},
		{form, "amount=1.5&currency=eur", "parameter_invalid_integer", "amount", 400},
		{form, "amount=100000000&currency=eur", "parameter_invalid_integer", "amount", 400},
		{form, "amount=99999999999999999999&currency=eur", "parameter_invalid_integer", "amount", 400},
		{form, "amount=1&currency=euro", "", "currency", 400},
		{form, "amount=1&currency=eur&source=tok_stolen", "resource_missing", "source", 400},
		{form, "amount=1&currency=eur&capture=false", "parameter_unknown", "capture", 400},
		{form, "amount=1&currency=eur&metadata[a][b]=c", "parameter_unknown", "metadata[a][b]", 400},
		{form, "amount=1&currency=eur&metadata=c", "parameter_unknown", "metadata", 400},
		{form, "amount=1&currency=eur&metadata[a=c", "parameter_unknown", "metadata[a", 400},
		{form, "amount=1&currency=eur&metadata[]=c", "", "metadata[]", 400},
		{form, "amount=1&currency=eur&metadata[" + strings.Repeat("k", 41) + "]=c", "", "metadata[" + strings.Repeat("k", 41) + "]", 400},
		{form, "amount=1&currency=eur&metadata[a]=" + strings.Repeat("v", 501), "", "metadata[a]", 400},
		{form, "amount=1&currency=eur" + tooMany.String(), "", "metadata", 400},
		{form, "amount=1&amount=1&currency=eur", "", "", 400},
		{form, "amount=1&currency=eur&description=%00", "", "", 400},
		{form, "amount=1&currency=eur&description=%ff", "", "", 400},
		{form, "amount=1&currency=eur&description=\xff", "", "", 400},
		{form, "amount=1;currency=eur", "", "", 400},
		{form, strings.Repeat("x", 64<<10+1), "", "", 413},
		{asJSON, `{"amount":1,"currency":"eur","amount":2}`, "", "", 400},
		{asJSON, `{"amount":1,"metadata[a]":"b","metadata":{"a":"c"},"currency":"eur"}`, "", "", 400},
		{asJSON, `{"amount":1.0,"currency":"eur"}`, "parameter_invalid_integer", "amount", 400},
		{asJSON, `{"amount":1,"currency":"eur","description":"\u0000"}`, "", "", 400},
		{asJSON, `{"amount":1,"currency":"eur","tags":["a"]}`, "parameter_unknown", "tags[0]", 400},
		{asJSON, `{"amount":1,"currency":"eur"}{}`, "", "", 400},
		{asJSON, `{"amount":1,"currency":"eur"`, "", "", 400},
		{asJSON, `[{"amount":1}]`, "", "", 400},
		{asJSON, strings.Repeat(`{"a":`, 20), "", "", 400},
		{asJSON, ``, "", "", 400},
		{asJSON, good, "", "", 400},
		{"text/plain", good, "", "", 415},
		{"form;;", good, "", "", 415},
	} {
		r := a.post("/v1/charges", c.body, "Content-Type", c.contentType)
		name := c.contentType + " " + c.body
		require.Equal(t, c.status, r.status, name)
		require.Equal(t, "invalid_request_error", r.field(t, "type"), name)
		require.NotEmpty(t, r.field(t, "message"), name)
		for field, want := range map[string]string{"code": c.code, "param": c.param} {
			got, _ := r.field(t, field).(string)
			require.Equal(t, want, got, name)
		}
	}
	require.Equal(t, http.StatusBadRequest, a.post("/v1/charges?amount=1", "currency=eur").status)
	require.Equal(t, http.StatusNotFound, a.post("/v1/refunds", good).status)
	require.Equal(t, "invalid_request_error", a.send(http.MethodPut, "/v1/charges", "").field(t, "type"))
	require.Empty(t, a.ledger())
	require.Zero(t, a.count("charges"))
}

func TestWhoIsLetIn(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for _, authorization := range []string{"", "Bearer", "Bearer ", "Bearer sk_test_nobody", shopSecret, "Basic " + shopSecret, "Bearer " + shopSecret + "x"} {
		for method, path := range map[string]string{http.MethodPost: "/v1/charges", http.MethodGet: "/v1/charges/ch_1"} {
			r := a.send(method, path, good, "Authorization", authorization)
			require.Equal(t, http.StatusUnauthorized, r.status, authorization)
			require.Equal(t, `Bearer realm="payments"`, r.header.Get("WWW-Authenticate"))
			require.Equal(t, "invalid_request_error", r.field(t, "type"))
		}
	}
	require.Equal(t, http.StatusOK, a.send(http.MethodPost, "/v1/charges", good, "Authorization", "bearer "+shopSecret).status)
}

func TestParseSecrets(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"":                           "entry 1 is not client=secret; write client=secret,client2=secret2",
		"sk_test_s3cret":             "entry 1 is not client=secret; write client=secret,client2=secret2",
		"a=x,=sk_test_s3cret":        "entry 2 is not client=secret; write client=secret,client2=secret2",
		"a=sk_test_s3cret,b=":        "entry 2 is not client=secret; write client=secret,client2=secret2",
		"a=s3cret,b=y,c=s3cret":      "entry 3 has the secret of another client",
		"a=s3cret=with=signs, a = x": "",
	} {
		parsed, err := payments.ParseSecrets(given)
		if want != "" {
			require.EqualError(t, err, want)
			continue
		}
		require.NoError(t, err)
		require.NotContains(t, fmt.Sprintf("%v %+v %#v", parsed, parsed, parsed), "s3cret")
	}
}

// No secret, and nothing of what a request is about, is told to anyone.
func TestSecretsAreNotTold(t *testing.T) {
	t.Parallel()
	fails := atomic.Bool{}
	a := newAPI(t, func(o *payments.Options) {
		o.Hook = func(context.Context, payments.Passage) error {
			if fails.Load() {
				return fmt.Errorf("on purpose")
			}
			return nil
		}
	})
	const private = "p4ssw0rd"
	var told strings.Builder
	for _, broken := range []bool{false, true} {
		fails.Store(broken)
		for _, secret := range []string{shopSecret, "sk_live_" + private} {
			for _, body := range []string{good, "amount=" + private, "source=" + private + "&amount=1&currency=eur", "currency=" + private + "&amount=1", "%zz" + private} {
				r := a.as(secret).post("/v1/charges", body, idempotencyKey, "k")
				told.WriteString(r.body + fmt.Sprint(r.header))
			}
			told.WriteString(a.as(secret).send(http.MethodGet, "/v1/charges/x", "").body)
		}
	}
	a.exec(`DROP TABLE ledger`)
	fails.Store(false)
	r := a.charge("another")
	require.Equal(t, http.StatusInternalServerError, r.status)
	told.WriteString(r.body)
	require.NotContains(t, r.body, "ledger", "what is broken inside is for the log")
	require.Contains(t, a.logs.String(), "ledger")
	for _, where := range []string{told.String(), a.logs.String()} {
		require.NotContains(t, where, shopSecret)
		require.NotContains(t, where, private)
	}
}

func TestFailRate(t *testing.T) {
	t.Parallel()
	ran := func(seed uint64) (failed []bool) {
		a := newAPI(t, func(o *payments.Options) { o.Network = payments.Network{FailRate: 0.5, Seed: seed} })
		for i := range 20 {
			key := fmt.Sprintf("k%d", i)
			r := a.charge(key)
			failed = append(failed, r.status == http.StatusInternalServerError)
			for r.status == http.StatusInternalServerError {
				require.Equal(t, "api_error", r.field(t, "type"))
				r = a.charge(key)
			}
			require.Equal(t, http.StatusOK, r.status)
			require.False(t, r.replayed(), "a failure before the work is not kept")
		}
		require.Len(t, a.ledger(), 20)
		return failed
	}
	first := ran(7)
	require.Contains(t, first, true)
	require.Contains(t, first, false)
	require.Equal(t, first, ran(7), "the same seed makes the same choices")
	require.NotEqual(t, first, ran(8))
}

func TestDropResponseRate(t *testing.T) {
	t.Parallel()
	a := newAPI(t, func(o *payments.Options) { o.Network = payments.Network{DropResponseRate: 0.5, Seed: 1} })
	dropped := 0
	for i := range 20 {
		key := fmt.Sprintf("k%d", i)
		for try := 1; ; try++ {
			r, err := a.try(t.Context(), http.MethodPost, "/v1/charges", good, idempotencyKey, key)
			if err != nil {
				dropped++
				continue
			}
			require.Equal(t, http.StatusOK, r.status)
			require.Equal(t, try > 1, r.replayed())
			break
		}
	}
	require.NotZero(t, dropped)
	require.Len(t, a.ledger(), 20)

	worst := newAPI(t, func(o *payments.Options) { o.Network.DropResponseRate = 1 })
	_, err := worst.try(t.Context(), http.MethodPost, "/v1/charges", good)
	require.ErrorContains(t, err, "EOF")
	require.Len(t, worst.ledger(), 1, "the charge is done, and its answer is lost")
}

// Latency is spent while the key is in flight, and does not count as standing still.
func TestLatencyIsInFlight(t *testing.T) {
	t.Parallel()
	address := database(t)
	claimed := make(chan struct{}, 1)
	slow := newAPIOn(t, connect(t, address), func(o *payments.Options) {
		o.Network.Latency = 2 * time.Second
		o.Stall = time.Second
		o.Hook = func(_ context.Context, p payments.Passage) error {
			if p.Step == payments.Claimed {
				select {
				case claimed <- struct{}{}:
				default:
				}
			}
			return nil
		}
	})
	other := newAPIOn(t, connect(t, address))
	first := slow.later("k")
	<-claimed
	require.Equal(t, http.StatusConflict, other.charge("k").status)
	answer := <-first
	require.Equal(t, http.StatusOK, answer.status, answer.body)
	require.Equal(t, answer.body, other.charge("k").body)
}

func TestSteps(t *testing.T) {
	t.Parallel()
	var passed []payments.Passage
	a := newAPI(t, func(o *payments.Options) {
		o.Hook = func(_ context.Context, p payments.Passage) error {
			passed = append(passed, p)
			return nil
		}
	})
	passages := func() (steps []payments.Step) {
		for _, p := range passed {
			require.Equal(t, "evt_1", p.EventID)
			steps = append(steps, p.Step)
		}
		passed = nil
		return steps
	}
	serve := func(body, key string) {
		request := httptest.NewRequest(http.MethodPost, "/v1/charges", strings.NewReader(body))
		request.Header.Set("Authorization", "Bearer "+shopSecret)
		if key != "" {
			request.Header.Set(idempotencyKey, key)
		}
		a.server.ServeHTTP(httptest.NewRecorder(), request)
	}
	serve(good, "k")
	require.Equal(t, payments.Steps(), passages())
	serve(good, "k")
	require.Equal(t, []payments.Step{payments.Received, payments.Answered}, passages())
	serve(good, "")
	require.Equal(t, payments.Steps(), passages())
	serve("amount=0&metadata[event_id]=evt_1", "k2")
	require.Equal(t, []payments.Step{payments.Received, payments.Answered}, passages())
	serve("%zz", "k3")
	require.Empty(t, passed)
}

func TestPostgresIsAway(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never says a word
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	for name, at := range map[string]net.Addr{"closed": closed.Addr(), "silent": silent.Addr()} {
		t.Run(name, func(t *testing.T) {
			config, err := pgxpool.ParseConfig("postgres://u:s3cret@" + at.String() + "/db?sslmode=disable")
			require.NoError(t, err)
			config.ConnConfig.ConnectTimeout = 100 * time.Millisecond
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			require.NoError(t, err)
			t.Cleanup(pool.Close)
			a := newAPIOn(t, pool)
			for _, r := range []reply{a.charge("k"), a.post("/v1/emails", "to=a@b.c&subject=d"), a.send(http.MethodGet, "/v1/charges/ch_1", "")} {
				require.Equal(t, http.StatusServiceUnavailable, r.status)
				require.Equal(t, "1", r.header.Get("Retry-After"))
				require.Equal(t, "api_error", r.field(t, "type"))
			}
			require.NotContains(t, a.logs.String(), "s3cret")
		})
	}
}

// A database that loses its connections is asked again by the retry.
func TestConnectionsAreLost(t *testing.T) {
	t.Parallel()
	address := database(t)
	steps := []payments.Step{payments.Claimed, payments.Charged}
	for _, step := range steps {
		pool := connect(t, address)
		own := connect(t, address)
		var cut atomic.Bool
		cut.Store(true)
		a := newAPIOn(t, pool, func(o *payments.Options) {
			o.Hook = func(ctx context.Context, p payments.Passage) error {
				if p.Step != step || !cut.CompareAndSwap(true, false) {
					return nil
				}
				_, err := own.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND pid <> pg_backend_pid()
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND pid IN (SELECT pid FROM pg_locks WHERE relation = 'idempotency_keys'::regclass)`)
				return err
			}
		})
		key := "k" + string(step)
		r := a.charge(key)
		require.Equal(t, http.StatusServiceUnavailable, r.status)
		require.Eventually(t, func() bool { r = a.charge(key); return r.status == http.StatusOK }, patience, 5*time.Millisecond)
		require.False(t, r.replayed())
	}
	require.Len(t, ledger(t, connect(t, address)), len(steps))
}

func TestNewServerRefuses(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]payments.Options{
		"payments: there is no client: no request could be let in":        {},
		"payments: retention is -1ns, must not be negative":               {Secrets: secrets(t), Retention: -1},
		"payments: stall is -1ns, must not be negative":                   {Secrets: secrets(t), Stall: -1},
		"payments: latency is -1ns, must not be negative":                 {Secrets: secrets(t), Network: payments.Network{Latency: -1}},
		"payments: fail rate is 1.5, must be from 0 to 1":                 {Secrets: secrets(t), Network: payments.Network{FailRate: 1.5}},
		"payments: rate of dropped responses is NaN, must be from 0 to 1": {Secrets: secrets(t), Network: payments.Network{DropResponseRate: math.NaN()}},
	} {
		_, err := payments.NewServer(nil, o)
		require.EqualError(t, err, want)
	}
}

func TestMigrateAgain(t *testing.T) {
	t.Parallel()
	address := database(t)
	pool := connect(t, address)
	require.NoError(t, payments.Migrate(t.Context(), address))
	done, err := payments.UpToDate(t.Context(), pool)
	require.NoError(t, err)
	require.True(t, done)
	rows, err := pool.Query(t.Context(), `SELECT tablename FROM pg_tables WHERE schemaname = current_schema()`)
	require.NoError(t, err)
	var tables []string
	for rows.Next() {
		var table string
		require.NoError(t, rows.Scan(&table))
		tables = append(tables, table)
	}
	require.NoError(t, rows.Err())
	slices.Sort(tables)
	require.Equal(t, []string{"charges", "emails", "idempotency_keys", "ledger", "payments_versions"}, tables)
}

func TestMigrateTellsNoPassword(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"postgres://u:s3cret@127.0.0.1:1/db", "postgres://u:s3cret@127.0.0.1:port/db"} {
		err := payments.Migrate(t.Context(), address)
		require.ErrorContains(t, err, "payments: migrate")
		require.NotContains(t, err.Error(), "s3cret")
	}
}
