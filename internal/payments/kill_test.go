package payments_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/failpoint"
	"github.com/delivered-twice/delivered-twice/internal/payments"
	"github.com/delivered-twice/delivered-twice/internal/process"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

// place is where payments-api runs as a process, one after another at one address.
type place struct {
	t        testing.TB
	database string
	pool     *pgxpool.Pool // the test's own
	listen   string
	name     string // application_name of the processes' connections
}

func newPlace(t testing.TB) *place {
	t.Helper()
	p := &place{t: t, database: database(t), listen: freeAddress(t), name: sandboxtest.Name(t)}
	p.pool = connect(t, p.database)
	return p
}

// freeAddress is below the ports that systems hand out to outgoing connections: it
// stays free while the process is away.
func freeAddress(t testing.TB) string {
	t.Helper()
	for {
		address := fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(10000))
		listener, err := net.Listen("tcp", address)
		if err == nil {
			require.NoError(t, listener.Close())
			return address
		}
		require.ErrorIs(t, err, syscall.EADDRINUSE)
	}
}

func (p *place) client() *client { return newClient(p.t, "http://"+p.listen) }

// running is one payments-api.
type running struct {
	cmd    *process.Cmd
	stderr bytes.Buffer
}

// launch starts payments-api and returns when it listens. failpoint is "" for none. It
// may be called in any goroutine.
func (p *place) launch(failpointSpec string) (*running, error) {
	address := p.database + " application_name=" + p.name
	if u, err := url.Parse(p.database); err == nil && u.Scheme != "" {
		query := u.Query()
		query.Set("application_name", p.name)
		u.RawQuery = query.Encode()
		address = u.String()
	}
	r := &running{cmd: process.Command(cli.PaymentsAPIName, "--listen="+p.listen)}
	r.cmd.Stderr = &r.stderr
	r.cmd.Env = append(r.cmd.Environ(), "DATABASE_URL="+address, cli.PaymentsKeys+"=shop="+shopSecret, failpoint.Variable+"="+failpointSpec)
	stdout, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	p.t.Cleanup(func() {
		_ = r.cmd.Process.Kill() // if it is still there
		_ = r.cmd.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != p.listen {
		_ = r.cmd.Process.Kill()
		return nil, errors.Join(fmt.Errorf("payments-api says %q: %s", line, &r.stderr), err, r.cmd.Wait())
	}
	return r, nil
}

func (p *place) start(failpointSpec string) *running {
	p.t.Helper()
	r, err := p.launch(failpointSpec)
	require.NoError(p.t, err)
	return r
}

// killed waits for the end of the process, which must be a SIGKILL's.
func (r *running) killed() error {
	err := r.cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return nil
	}
	return fmt.Errorf("payments-api ended otherwise than by SIGKILL: %w: %s", err, &r.stderr)
}

// awaitGone waits until Postgres has seen that the processes are gone.
func (p *place) awaitGone() {
	p.t.Helper()
	require.Eventually(p.t, func() bool {
		var left int
		err := p.pool.QueryRow(p.t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE application_name = $1`, p.name).Scan(&left)
		return err == nil && left == 0
	}, patience, time.Millisecond)
}

// Whatever the step at which payments-api dies: the first retry that its successor
// gets is answered, and there is one charge.
func TestKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	for _, step := range payments.Steps() {
		t.Run(string(step), func(t *testing.T) {
			p := newPlace(t)
			dies := p.start(string(step) + ":1:kill")
			first, err := p.client().try(t.Context(), http.MethodPost, "/v1/charges", good, idempotencyKey, "k")
			if step == payments.Answered {
				require.NoError(t, err)
				require.Equal(t, http.StatusOK, first.status)
			} else {
				require.Error(t, err)
			}
			require.NoError(t, dies.killed())
			p.awaitGone()

			p.start("")
			retry := p.client().charge("k")
			require.Equal(t, http.StatusOK, retry.status, retry.body)
			require.Equal(t, step == payments.Committed || step == payments.Answered, retry.replayed())
			if step == payments.Answered {
				require.Equal(t, first.body, retry.body)
			}
			entries := ledger(t, p.pool)
			require.Len(t, entries, 1)
			require.Equal(t, retry.field(t, "id"), entries[0].ObjectID)
		})
	}
}

// SIGTERM comes while a request is in flight: it is answered, and then the process
// ends, with nothing to complain about. Another can listen in its place at once.
func TestSIGTERMAnswersWhatIsInFlight(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	api := p.start("charged:1:pause")
	first := p.client().later("k")
	var status syscall.WaitStatus
	_, err := syscall.Wait4(api.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
	require.NoError(t, err)
	require.True(t, status.Stopped())
	require.NoError(t, api.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, api.cmd.Process.Signal(syscall.SIGCONT))
	answer := <-first
	require.Equal(t, http.StatusOK, answer.status, answer.body)
	require.NoError(t, api.cmd.Wait(), api.stderr.String())

	p.start("")
	retry := p.client().charge("k")
	require.True(t, retry.replayed())
	require.Equal(t, answer.body, retry.body)
}

// A process that was stopped by SIGSTOP in the middle of a request does not keep its
// key from another process.
func TestAStoppedProcessLetsGoOfItsKey(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	stopped := p.start("claimed:1:pause")
	first := p.client().later("k")
	var status syscall.WaitStatus
	_, err := syscall.Wait4(stopped.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
	require.NoError(t, err)
	require.True(t, status.Stopped())

	p.listen = freeAddress(t)
	p.start("")
	retry := p.client().charge("k")
	require.Equal(t, http.StatusConflict, retry.status)
	require.Eventually(t, func() bool {
		retry = p.client().charge("k")
		return retry.status == http.StatusOK
	}, patience, 50*time.Millisecond)
	require.False(t, retry.replayed())
	require.NoError(t, stopped.cmd.Process.Signal(syscall.SIGCONT))
	require.Equal(t, http.StatusServiceUnavailable, (<-first).status)
	require.Len(t, ledger(t, p.pool), 1)
}

// outcome is what a client knows of one charge in the end.
type outcome struct {
	key, id   string
	tries     int
	conflicts int
	err       error
}

// insist sends one charge again and again, always with its key, until it is answered.
func (p *place) insist(ctx context.Context, key string) (o outcome) {
	o.key = key
	client := p.client()
	for ctx.Err() == nil {
		o.tries++
		body := fmt.Sprintf("amount=1999&currency=eur&metadata[event_id]=%s&metadata[attempt]=%d", key, o.tries)
		r, err := client.try(ctx, http.MethodPost, "/v1/charges", body, idempotencyKey, key)
		switch {
		case err != nil || r.status >= 500:
		case r.status == http.StatusConflict:
			o.conflicts++
		case r.status == http.StatusOK:
			_, after, _ := strings.Cut(r.body, `"id":"`)
			o.id, _, _ = strings.Cut(after, `"`)
			return o
		default:
			o.err = fmt.Errorf("charge %s: status %d: %s", key, r.status, r.body)
			return o
		}
		select {
		case <-time.After(20*time.Millisecond + rand.N(20*time.Millisecond)):
		case <-ctx.Done():
		}
	}
	o.err = fmt.Errorf("charge %s: no answer after %d tries: %w", key, o.tries, ctx.Err())
	return o
}

// 200 requests a second, for 30 seconds, and payments-api is killed all the while, at
// each of its steps in turn. What the clients were told in the end and what the ledger
// says are the same: every charge once, none lost, no key stuck.
func TestLoadUnderKills(t *testing.T) {
	t.Parallel()
	duration := 30 * time.Second
	if testing.Short() {
		duration = 3 * time.Second
	}
	const rate = 200
	p := newPlace(t)
	ctx, cancel := context.WithTimeout(t.Context(), duration+patience)
	t.Cleanup(cancel)

	kills := make(map[payments.Step]int)
	killing, stopKilling := context.WithCancel(ctx)
	defer stopKilling()
	supervised := make(chan error, 1)
	go func() {
		supervised <- func() error {
			for life := 0; killing.Err() == nil; life++ {
				step := payments.Steps()[life%len(payments.Steps())]
				api, err := p.launch(fmt.Sprintf("%s:%d:kill", step, 100+rand.IntN(100)))
				if err != nil {
					return err
				}
				stop := context.AfterFunc(killing, func() { _ = api.cmd.Process.Kill() })
				if err := api.killed(); err != nil {
					return err
				}
				if stop() {
					kills[step]++
				}
			}
			_, err := p.launch("") // the last one stays
			return err
		}()
	}()

	// A machine that is too slow for the rate gets less, and not a queue that only grows.
	atOnce := make(chan struct{}, 2*rate)
	all := int(duration/time.Second) * rate
	outcomes := make(chan outcome, all)
	end := time.Now().Add(duration)
	pace := time.NewTicker(time.Second / rate)
	defer pace.Stop()
	total := 0
	for ; total < all && time.Now().Before(end); total++ {
		<-pace.C
		atOnce <- struct{}{}
		key := fmt.Sprintf("evt_%05d", total)
		go func() {
			outcomes <- p.insist(ctx, key)
			<-atOnce
		}()
	}
	stopKilling()
	require.NoError(t, <-supervised)

	told := make(map[string]string)
	var tries, conflicts, most int
	for range total {
		o := <-outcomes
		require.NoError(t, o.err)
		require.NotEmpty(t, o.id)
		told[o.key] = o.id
		tries, conflicts, most = tries+o.tries, conflicts+o.conflicts, max(most, o.conflicts)
	}
	accepted := make(map[string]string)
	for _, e := range ledger(t, p.pool) {
		require.NotContains(t, accepted, *e.IdemKey, "charged twice")
		require.Equal(t, *e.IdemKey, *e.EventID)
		accepted[*e.IdemKey] = e.ObjectID
	}
	require.Equal(t, total, len(told))
	require.Equal(t, told, accepted)
	for _, step := range payments.Steps() {
		if !testing.Short() {
			require.NotZero(t, kills[step], step)
		}
	}
	var charges, lines, unanswered int
	require.NoError(t, p.pool.QueryRow(t.Context(), `
SELECT (SELECT count(*) FROM charges), (SELECT count(*) FROM ledger), (SELECT count(*) FROM idempotency_keys WHERE status IS NULL)`).
		Scan(&charges, &lines, &unanswered))
	require.Equal(t, lines, charges)
	require.Zero(t, unanswered)
	t.Logf("%d charges, kills %v, %d requests, %d of them 409, at most %d for one key", total, kills, tries, conflicts, most)
}
