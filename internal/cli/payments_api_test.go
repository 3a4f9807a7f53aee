package cli_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/failpoint"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
	"github.com/delivered-twice/delivered-twice/internal/trace"
)

const paymentsSecret = "sk_test_s3cret"

func TestPaymentsAPI(t *testing.T) {
	p := newProgram(t, cli.PaymentsAPIName, []string{"DATABASE_URL=" + sandboxtest.Database(t), cli.PaymentsKeys + "=shop=" + paymentsSecret}, "--listen=127.0.0.1:0", "--attempt=api.1")
	stdout, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.start()
	listening, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)

	charge := func(secret string) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+strings.TrimSpace(listening)+"/v1/charges",
			strings.NewReader(`{"amount":1999,"currency":"eur","metadata":{"event_id":"evt_9f3k"}}`))
		require.NoError(t, err)
		request.Header.Set("Authorization", "Bearer "+secret)
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Idempotency-Key", "evt_9f3k/payment")
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(body)
	}
	status, first := charge(paymentsSecret)
	require.Equal(t, http.StatusOK, status, first)
	_, again := charge(paymentsSecret)
	require.Equal(t, first, again)
	status, _ = charge("sk_test_nobody")
	require.Equal(t, http.StatusUnauthorized, status)
	p.end()

	passings, err := trace.Read(p.trace)
	require.NoError(t, err)
	var steps []string
	for _, passing := range passings {
		require.Equal(t, "api.1", passing.Attempt)
		require.Equal(t, []string{"evt_9f3k"}, passing.Events)
		steps = append(steps, passing.Step)
	}
	require.Equal(t, []string{"received", "claimed", "charged", "committed", "answered", "received", "answered"}, steps)
	require.NotContains(t, p.stderr.String(), "s3cret")
}

func TestPaymentsAPIRefuses(t *testing.T) {
	for _, c := range []struct {
		args []string
		env  string
		want string
	}{
		{nil, "DATABASE_URL=", "no database: set --database-url or DATABASE_URL"},
		{nil, cli.PaymentsKeys + "=", "no client: set PAYMENTS_KEYS to client=secret,client2=secret2"},
		{nil, cli.PaymentsKeys + "=" + paymentsSecret, "environment variable PAYMENTS_KEYS: entry 1 is not client=secret"},
		{nil, failpoint.Variable + "=comitted", `there is no step "comitted"; the nearest: committed`},
		{[]string{"--key-retention=0s"}, "", "--key-retention is 0s, must be positive"},
		{[]string{"--latency=-1s"}, "", "latency is -1s, must not be negative"},
		{[]string{"--fail-rate=2"}, "", "fail rate is 2, must be from 0 to 1"},
		{[]string{"--drop-response-rate=-0.1"}, "", "rate of dropped responses is -0.1, must be from 0 to 1"},
		{[]string{"--latency"}, "", "--latency needs a value: a time with its unit"},
		{[]string{"shop"}, "", `unexpected argument "shop"`},
		{nil, "DATABASE_URL=postgres://u:s3cret@127.0.0.1:1/db", "no answer from PostgreSQL at 127.0.0.1:1"},
		{nil, "DATABASE_URL=postgres://u:1/s3cret@h/db", "the database address is not readable"},
	} {
		env := []string{"DATABASE_URL=postgres://u@127.0.0.1:1/db", cli.PaymentsKeys + "=shop=" + paymentsSecret, c.env}
		p := startProgram(t, cli.PaymentsAPIName, env, c.args...)
		require.Equal(t, cli.ExitUnusable, p.wait(), c.want)
		require.Contains(t, p.stderr.String(), c.want)
		require.NotContains(t, p.stderr.String(), "s3cret")
	}
}

func TestPaymentsAPIOnAPortThatIsTaken(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	taken := listener.Addr().String()
	p := startProgram(t, cli.PaymentsAPIName, []string{"DATABASE_URL=" + sandboxtest.Database(t), cli.PaymentsKeys + "=shop=" + paymentsSecret}, "--listen="+taken)
	require.Equal(t, cli.ExitUnusable, p.wait())
	require.Contains(t, p.stderr.String(), "listen on "+taken)
	require.Contains(t, p.stderr.String(), "choose another --listen")
}
