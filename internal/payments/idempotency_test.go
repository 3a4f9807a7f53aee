package payments_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/payments"
)

func TestARetryGetsTheFirstAnswer(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	first := a.charge("k1")
	require.Equal(t, http.StatusOK, first.status, first.body)
	require.False(t, first.replayed())

	for _, retry := range []reply{
		a.charge("k1"),
		// The same parameters in another order, in another coding, by another attempt.
		a.post("/v1/charges", "metadata[attempt]=a.2&source=tok_visa&currency=eur&metadata[event_id]=evt_1&amount=1999", idempotencyKey, "k1"),
		a.post("/v1/charges", `{"metadata":{"event_id":"evt_1","attempt":"a.3"},"source":"tok_visa","currency":"eur","amount":1999,"description":null}`,
			idempotencyKey, "k1", "Content-Type", "application/json; charset=utf-8"),
	} {
		require.True(t, retry.replayed())
		retry.header.Del("Idempotent-Replayed")
		retry.header.Del("Date")
		first.header.Del("Date")
		require.Equal(t, first, retry)
	}
	require.Equal(t, []entry{{"charge", first.field(t, "id").(string), "shop", text("k1"), text("evt_1"), text("a.1")}}, a.ledger())
	require.Equal(t, 1, a.count("charges"))
}

func TestWithoutAKeyEveryRequestIsDone(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for range 3 {
		r := a.post("/v1/charges", good)
		require.Equal(t, http.StatusOK, r.status)
		require.False(t, r.replayed())
	}
	require.Len(t, a.ledger(), 3)
	require.Nil(t, a.ledger()[0].IdemKey)
	require.Zero(t, a.count("idempotency_keys"))
}

func TestTwoClientsMayUseTheSameKey(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	require.False(t, a.charge("k").replayed())
	require.False(t, a.as(otherSecret).charge("k").replayed())
	require.True(t, a.charge("k").replayed())
	require.True(t, a.as(otherSecret).charge("k").replayed())
	require.Len(t, a.ledger(), 2)
}

func TestAKeyIsForOneRequest(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	first := a.charge("k")
	for name, other := range map[string]reply{
		"other parameters":   a.post("/v1/charges", strings.Replace(good, "1999", "1998", 1), idempotencyKey, "k"),
		"one less":           a.post("/v1/charges", strings.Replace(good, "&source=tok_visa", "", 1), idempotencyKey, "k"),
		"other metadata":     a.post("/v1/charges", strings.Replace(good, "evt_1", "evt_2", 1), idempotencyKey, "k"),
		"invalid parameters": a.post("/v1/charges", "amount=-1", idempotencyKey, "k"),
		"another endpoint":   a.post("/v1/emails", good, idempotencyKey, "k"),
	} {
		require.Equal(t, http.StatusBadRequest, other.status, name)
		require.Equal(t, "idempotency_error", other.field(t, "type"), name)
		require.False(t, other.replayed(), name)
	}
	again := a.charge("k")
	require.True(t, again.replayed())
	require.Equal(t, first.body, again.body)
	require.Len(t, a.ledger(), 1)
}

// Names and values are not run together: what moves over a border is another request.
func TestTheFingerprintKnowsWhereAParameterEnds(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	body := func(key, value string) string { return "amount=1&currency=eur&metadata[" + key + "]=" + value }
	require.Equal(t, http.StatusOK, a.post("/v1/charges", body("ab", "c"), idempotencyKey, "k").status)
	require.Equal(t, http.StatusBadRequest, a.post("/v1/charges", body("a", "bc"), idempotencyKey, "k").status)
}

func TestKeysThatAreRefused(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for name, key := range map[string]string{
		"empty":          "",
		"blank":          "   ",
		"256":            strings.Repeat("x", 256),
		"256 of 2":       strings.Repeat("é", 256),
		"not UTF-8":      "caf\xe9",
		"a control (C1)": "a\u0085b",
	} {
		r := a.charge(key)
		require.Equal(t, http.StatusBadRequest, r.status, name)
		require.Equal(t, "invalid_request_error", r.field(t, "type"), name)
	}
	require.Empty(t, a.ledger())
	for _, key := range []string{strings.Repeat("x", 255), strings.Repeat("é", 255), `"quoted"`, "a b"} {
		require.Equal(t, http.StatusOK, a.charge(key).status, key)
		require.True(t, a.charge(key).replayed(), key)
	}

	request, err := http.NewRequest(http.MethodPost, a.url+"/v1/charges", strings.NewReader(good))
	require.NoError(t, err)
	request.Header = http.Header{"Authorization": {"Bearer " + shopSecret}, idempotencyKey: {"k1", "k2"}}
	response, err := a.http.Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusBadRequest, response.StatusCode)
}

// While the first request is at work, a retry is told so and does not wait: one that
// did would get a 503 in the end. It makes no difference which server the retry comes to.
func TestARetryInFlight(t *testing.T) {
	t.Parallel()
	for _, step := range []payments.Step{payments.Claimed, payments.Charged} {
		t.Run(string(step), func(t *testing.T) {
			address := database(t)
			g := newGate(step)
			a := newAPIOn(t, connect(t, address), func(o *payments.Options) { o.Hook = g.hook; o.Stall = patience })
			b := newAPIOn(t, connect(t, address))
			open := sync.OnceFunc(func() { close(g.opened) })
			defer open() // or a server with a request in hand would not be closed
			first := a.later("k")
			<-g.reached
			for _, server := range []*api{a, b} {
				retry := server.charge("k")
				require.Equal(t, http.StatusConflict, retry.status)
				require.Equal(t, "1", retry.header.Get("Retry-After"))
				require.Equal(t, "idempotency_error", retry.field(t, "type"))
				require.Equal(t, "idempotency_key_in_use", retry.field(t, "code"))
				require.Equal(t, http.StatusOK, server.charge("another").status)
				require.Equal(t, http.StatusOK, server.as(otherSecret).charge("k").status)
			}
			open()
			answer := <-first
			require.Equal(t, http.StatusOK, answer.status)
			require.False(t, answer.replayed())
			for _, server := range []*api{a, b} {
				retry := server.charge("k")
				require.True(t, retry.replayed())
				require.Equal(t, answer.body, retry.body)
			}
		})
	}
}

// A retry is told at once that its key is in flight, also where the requests in flight
// have all connections to Postgres.
func TestARetryInFlightWithoutAConnection(t *testing.T) {
	t.Parallel()
	config, err := pgxpool.ParseConfig(database(t))
	require.NoError(t, err)
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	g := newGate(payments.Claimed)
	open := sync.OnceFunc(func() { close(g.opened) })
	a := newAPIOn(t, pool, func(o *payments.Options) { o.Hook = g.hook; o.Stall = patience })
	t.Cleanup(open)
	first := a.later("k")
	<-g.reached
	require.Equal(t, http.StatusConflict, a.charge("k").status)
	open()
	require.Equal(t, http.StatusOK, (<-first).status)
	require.True(t, a.charge("k").replayed(), "and it is free as soon as the first one is answered")
	require.Len(t, a.ledger(), 1)
}

// Another schema of the same database is another API, with keys of its own.
func TestKeysInFlightInAnotherSchema(t *testing.T) {
	t.Parallel()
	g := newGate(payments.Claimed)
	a := newAPI(t, func(o *payments.Options) { o.Hook = g.hook; o.Stall = patience })
	first := a.later("k")
	<-g.reached
	require.Equal(t, http.StatusOK, newAPI(t).charge("k").status)
	close(g.opened)
	require.Equal(t, http.StatusOK, (<-first).status)
}

// A server that stands still in the middle of a request holds its key no longer than
// it may, and what it does when it wakes up has no effect.
func TestAServerThatStandsStill(t *testing.T) {
	t.Parallel()
	for _, step := range []payments.Step{payments.Claimed, payments.Charged} {
		t.Run(string(step), func(t *testing.T) {
			address := database(t)
			g := newGate(step)
			still := newAPIOn(t, connect(t, address), func(o *payments.Options) { o.Hook = g.hook; o.Stall = 100 * time.Millisecond })
			other := newAPIOn(t, connect(t, address))
			first := still.later("k")
			for reached := false; !reached; {
				select {
				case <-g.reached:
					reached = true
				case <-first: // on a slow machine, it stood still before it got there
					first = still.later("k")
				}
			}
			var second reply
			require.Eventually(t, func() bool {
				second = other.charge("k")
				return second.status != http.StatusConflict
			}, patience, 10*time.Millisecond)
			require.Equal(t, http.StatusOK, second.status, second.body)
			require.False(t, second.replayed())
			close(g.opened)
			answer := <-first
			require.Equal(t, http.StatusServiceUnavailable, answer.status)
			require.Equal(t, "1", answer.header.Get("Retry-After"))
			retry := other.charge("k")
			require.True(t, retry.replayed())
			require.Equal(t, second.body, retry.body)
			require.Len(t, other.ledger(), 1)
		})
	}
}

func TestFiftyAtOnceWithOneKey(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	const requests = 50
	replies := make([]reply, requests)
	errs := make([]error, requests)
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range requests {
		all.Go(func() {
			<-start
			replies[i], errs[i] = a.try(t.Context(), http.MethodPost, "/v1/charges", good, idempotencyKey, "k")
		})
	}
	close(start)
	all.Wait()
	var charged, replayed, conflicts int
	bodies := make(map[string]bool)
	for i, r := range replies {
		require.NoError(t, errs[i])
		switch {
		case r.status == http.StatusConflict:
			require.NotEmpty(t, r.header.Get("Retry-After"))
			conflicts++
			continue
		case r.replayed():
			replayed++
		default:
			charged++
		}
		require.Equal(t, http.StatusOK, r.status, r.body)
		bodies[r.body] = true
	}
	require.Equal(t, 1, charged)
	require.Equal(t, requests-1, replayed+conflicts)
	require.Len(t, bodies, 1)
	require.Len(t, a.ledger(), 1)
	require.Equal(t, 1, a.count("charges"))
	t.Logf("%d replays, %d conflicts", replayed, conflicts)
}

// Retries of a request that was answered don't keep each other from the answer.
func TestManyReplaysAtOnce(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	first := a.charge("k")
	var all sync.WaitGroup
	statuses := make([]reply, 30)
	for i := range statuses {
		all.Go(func() {
			statuses[i], _ = a.try(t.Context(), http.MethodPost, "/v1/charges", good, idempotencyKey, "k")
		})
	}
	all.Wait()
	for _, r := range statuses {
		require.Equal(t, http.StatusOK, r.status)
		require.Equal(t, first.body, r.body)
	}
}

// What was refused before the work began is not kept: the key is still new.
func TestValidationErrorsAreNotKept(t *testing.T) {
	t.Parallel()
	address := database(t)
	a, other := newAPIOn(t, connect(t, address)), newAPIOn(t, connect(t, address))
	for _, body := range []string{"amount=0&currency=eur", "currency=eur", "amount=1", "nonsense=1", good + "&nonsense=1", "%zz"} {
		r := a.post("/v1/charges", body, idempotencyKey, "k")
		require.Equal(t, http.StatusBadRequest, r.status, body)
		require.Equal(t, "invalid_request_error", r.field(t, "type"), body)
	}
	require.Zero(t, a.count("idempotency_keys"))
	r := other.charge("k")
	require.Equal(t, http.StatusOK, r.status)
	require.False(t, r.replayed())
}

// What the work itself ends with is kept, also if it is a refusal.
func TestDeclinesAreKept(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	declined := strings.Replace(good, "tok_visa", "tok_chargeDeclined", 1)
	first := a.post("/v1/charges", declined, idempotencyKey, "k")
	require.Equal(t, http.StatusPaymentRequired, first.status)
	require.Equal(t, "card_error", first.field(t, "type"))
	require.Equal(t, "card_declined", first.field(t, "code"))
	retry := a.post("/v1/charges", declined, idempotencyKey, "k")
	require.Equal(t, http.StatusPaymentRequired, retry.status)
	require.True(t, retry.replayed())
	require.Equal(t, first.body, retry.body)

	require.Equal(t, "idempotency_error", a.charge("k").field(t, "type"), "a better card needs a new key")
	require.Empty(t, a.ledger(), "a charge that was declined was not accepted")
	found := a.send(http.MethodGet, "/v1/charges/"+first.field(t, "charge").(string), "")
	require.Equal(t, "failed", found.field(t, "status"))
	require.Equal(t, "card_declined", found.field(t, "failure_code"))
	require.Equal(t, false, found.field(t, "paid"))
}

// A failure of the server's own takes the key back with the work, for other servers,
// too.
func TestFailuresAreNotKept(t *testing.T) {
	t.Parallel()
	for _, step := range []payments.Step{payments.Received, payments.Claimed, payments.Charged} {
		address := database(t)
		other := newAPIOn(t, connect(t, address))
		a := newAPIOn(t, connect(t, address), func(o *payments.Options) {
			o.Hook = func(_ context.Context, p payments.Passage) error {
				if p.Step == step {
					return fmt.Errorf("on purpose")
				}
				return nil
			}
		})
		r := a.charge("k")
		require.Equal(t, http.StatusInternalServerError, r.status)
		require.Equal(t, "api_error", r.field(t, "type"))
		require.Empty(t, a.ledger())
		r = other.charge("k")
		require.Equal(t, http.StatusOK, r.status, r.body)
		require.False(t, r.replayed())
		require.Len(t, a.ledger(), 1)
	}
}

// A failure after the commit is a lost answer.
func TestAFailureAfterTheCommit(t *testing.T) {
	t.Parallel()
	fails := true
	a := newAPI(t, func(o *payments.Options) {
		o.Hook = func(_ context.Context, p payments.Passage) error {
			if p.Step == payments.Committed && fails {
				return fmt.Errorf("on purpose")
			}
			return nil
		}
	})
	require.Equal(t, http.StatusInternalServerError, a.charge("k").status)
	require.True(t, a.charge("k").replayed())
	require.Len(t, a.ledger(), 1)
}

func TestAnExpiredKeyIsNewBeforeThePurge(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	first := a.charge("k")
	a.exec(`UPDATE idempotency_keys SET created_at = now() - interval '23 hours 59 minutes'`)
	require.True(t, a.charge("k").replayed())

	a.exec(`UPDATE idempotency_keys SET created_at = now() - interval '24 hours'`)
	other := strings.Replace(good, "1999", "1998", 1)
	again := a.post("/v1/charges", other, idempotencyKey, "k") // also for another request
	require.Equal(t, http.StatusOK, again.status, again.body)
	require.False(t, again.replayed())
	require.NotEqual(t, first.field(t, "id"), again.field(t, "id"))
	require.Len(t, a.ledger(), 2)
	require.Equal(t, 1, a.count("idempotency_keys"))
	require.True(t, a.post("/v1/charges", other, idempotencyKey, "k").replayed(), "it lives for another 24 hours")
}

// No path of this server leaves such a row behind; if somebody else does, it stands
// in nobody's way.
func TestARowWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.exec(`INSERT INTO idempotency_keys (client_id, idem_key, request_hash) VALUES ('shop', 'k', 'x')`)
	require.Equal(t, http.StatusOK, a.charge("k").status)
	require.True(t, a.charge("k").replayed())
}

// A client that hangs up does not undo what it has asked for.
func TestAClientThatHangsUp(t *testing.T) {
	t.Parallel()
	g := newGate(payments.Claimed)
	a := newAPI(t, func(o *payments.Options) { o.Hook = g.hook; o.Stall = patience })
	noticed := make(chan struct{})
	listening := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		context.AfterFunc(r.Context(), func() { close(noticed) })
		a.server.ServeHTTP(w, r)
	}))
	t.Cleanup(listening.Close)
	ctx, hangUp := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := newClient(t, listening.URL).try(ctx, http.MethodPost, "/v1/charges", good, idempotencyKey, "k")
		gone <- err
	}()
	<-g.reached
	hangUp()
	require.ErrorIs(t, <-gone, context.Canceled)
	<-noticed
	close(g.opened)
	require.Eventually(t, func() bool { return a.count("ledger") == 1 }, patience, 5*time.Millisecond)
	require.True(t, a.charge("k").replayed())
}

func TestPurge(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.exec(`INSERT INTO idempotency_keys (client_id, idem_key, request_hash, status, headers, body, created_at)
SELECT 'shop', 'old' || i, 'x', 200, '{}', '', now() - interval '24 hours' FROM generate_series(1, 2500) i`)
	require.Equal(t, http.StatusOK, a.charge("young").status)

	// One that is being claimed anew is passed over.
	tx, err := a.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `UPDATE idempotency_keys SET created_at = now() WHERE idem_key = 'old7'`)
	require.NoError(t, err)
	removed, err := a.server.Purge(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2499, removed)
	require.NoError(t, tx.Rollback(t.Context()))

	removed, err = a.server.Purge(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, removed)
	require.True(t, a.charge("young").replayed())
	require.Len(t, a.ledger(), 1)
}
