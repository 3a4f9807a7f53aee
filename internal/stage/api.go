package stage

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/delivered-twice/delivered-twice/internal/audit"
	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/failpoint"
	"github.com/delivered-twice/delivered-twice/internal/sandbox"
	"github.com/delivered-twice/delivered-twice/internal/trace"
)

// APIDir is the folder below a stage's for the logs and traces of its third party.
const APIDir = trace.ThirdParty

// API is the third party that a lane calls: a payments-api with a schema of its own. It
// may be killed, and is started again at the same address. Its methods may be called
// from one goroutine at a time.
type API struct {
	// URL is where it is.
	URL string
	// DatabaseURL is the address of its schema, as its search_path.
	DatabaseURL string

	name        string // of its incarnations, before the number
	dir         string
	secret      string
	listen      string
	incarnation int
	current     *Member
	planned     bool // its sudden end is no surprise
}

// API starts a third party in a schema of that name, and returns when it answers. Its
// files are in a folder below dir. The caller must close it.
func (r *Resources) API(ctx context.Context, name, dir string) (*API, error) {
	a := &API{name: "payments", dir: filepath.Join(dir, APIDir), secret: rand.Text()}
	var err error
	if a.DatabaseURL, err = r.Schema(ctx, name); err != nil {
		return nil, err
	}
	err = sandbox.OnFreePort(ctx, func(port int) error {
		a.listen = fmt.Sprintf("127.0.0.1:%d", port)
		a.URL = "http://" + a.listen
		_, err := a.Start(ctx, "")
		return err
	})
	if err != nil {
		if a.current != nil {
			err = errors.Join(err, a.Close())
		}
		return nil, err
	}
	return a, nil
}

// Env is what whoever calls it must have in its environment: where it is, and a key
// that it knows.
func (a *API) Env() []string {
	if a == nil {
		return nil
	}
	return []string{"PAYMENTS_URL=" + a.URL, "PAYMENTS_KEY=" + a.secret}
}

// Start starts the next incarnation, with a planned mishap if any and with further
// arguments, and returns when it answers. The one before must have ended.
func (a *API) Start(ctx context.Context, plan string, args ...string) (*Member, error) {
	var planned *failpoint.Failpoint
	if plan != "" {
		var err error
		if planned, err = failpoint.Parse(plan); err != nil {
			return nil, err
		}
	}
	a.incarnation++
	m, err := Start(Launch{
		Role: cli.PaymentsAPIName,
		Args: append([]string{"--listen=" + a.listen}, args...),
		Env: []string{
			"DATABASE_URL=" + a.DatabaseURL,
			"PAYMENTS_KEYS=" + a.name + "=" + a.secret,
		},
		Attempt:   fmt.Sprintf("%s.%d", a.name, a.incarnation),
		Failpoint: planned,
		Dir:       a.dir,
	})
	if err != nil {
		return nil, fmt.Errorf("start the third party: %w", err)
	}
	a.current, a.planned = m, planned != nil && planned.Action == failpoint.Kill
	return m, a.awaitAnswer(ctx)
}

// awaitAnswer waits until it answers anything, or has died as planned before anybody
// saw that it did.
func (a *API) awaitAnswer(ctx context.Context) error {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for a.current.Running() {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL, nil)
		if err != nil {
			return err
		}
		if answer, err := client.Do(request); err == nil {
			return answer.Body.Close()
		}
		if err := wait(ctx, poll); err != nil {
			return fmt.Errorf("wait for %s to answer at %s: %w", a.current.Attempt, a.URL, err)
		}
	}
	return a.surprise()
}

// Kill ends it with SIGKILL, whatever it has in hand, and waits until it is gone.
func (a *API) Kill(ctx context.Context) error {
	a.planned = true
	if err := a.current.Kill(); err != nil {
		return err
	}
	_, err := a.current.Wait(ctx)
	return err
}

// End ends it with SIGTERM, and waits until it has done what it had in hand and is
// gone. Nothing is accepted behind anybody's back from then on.
func (a *API) End(ctx context.Context) error {
	if a == nil {
		return nil
	}
	a.planned = true
	if err := a.current.Terminate(ctx); err != nil {
		return err
	}
	how, err := a.current.Wait(ctx)
	if err == nil && how != "" {
		err = fmt.Errorf("%s was told to end by SIGTERM, and ended with %s", a.current.Attempt, how)
	}
	return err
}

// Signal sends it a signal. Where there is no third party, nobody gets it.
func (a *API) Signal(s syscall.Signal) error {
	if a == nil {
		return nil
	}
	return a.current.Signal(s)
}

// AwaitEnd waits until it is gone that nobody has ended, which is an error, or until
// ctx ends, which is none.
func (a *API) AwaitEnd(ctx context.Context) error {
	select {
	case <-a.current.Ended():
		return a.surprise()
	case <-ctx.Done():
		return nil
	}
}

// Audit looks at what it has accepted. It should have been ended before: what it has in
// hand is not waited for.
func (a *API) Audit(ctx context.Context, expected audit.Expected) (audit.LedgerAudit, error) {
	pool, err := pgxpool.New(ctx, a.DatabaseURL)
	if err != nil {
		return audit.LedgerAudit{}, errors.New("the database address cannot be read") // the error would quote it, password included
	}
	defer pool.Close()
	return audit.Ledger(ctx, pool, expected)
}

// Close kills it.
func (a *API) Close() error { return a.Kill(context.Background()) }

// surprise returns an error if it has ended, and nobody has ended it.
func (a *API) surprise() error {
	if a == nil || a.planned || a.current.Running() {
		return nil
	}
	return fmt.Errorf("%s ended by itself with %q; its log: %s", a.current.Attempt, a.current.ending(), a.current.log)
}
