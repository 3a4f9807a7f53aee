package payments

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// patience is how long a request may take, not counting [Network].Latency: if
	// Postgres has not answered by then, the client gets a 503.
	patience = 10 * time.Second
	// reading is how long a client may take to send a request.
	reading = 10 * time.Second
)

// Options say how a [Server] works.
type Options struct {
	// Secrets are the API keys of the clients. There must be one.
	Secrets Secrets
	// Retention is how long a key is known; the default is 24 hours, as with Stripe.
	Retention time.Duration
	// Stall is how long the transaction of a request may stand still, Network.Latency
	// not counted, before Postgres ends it and its key is free again; the default is 5
	// seconds.
	Stall time.Duration
	// Network is how bad the way to the server is.
	Network Network
	// Hook, where set, is called at every step.
	Hook Hook
	// Logger, where set, hears of failures of the server, without contents of requests.
	Logger *slog.Logger
}

// Server is the API. It is an http.Handler, safe for concurrent use, and several of
// them may stand on the same tables.
type Server struct {
	pool       *pgxpool.Pool
	mux        *http.ServeMux
	secrets    Secrets
	retention  time.Duration
	stall      time.Duration
	network    Network
	fail, drop *luck
	hook       Hook
	log        *slog.Logger
	working    sync.Map // of heldKey: what this server is working on
}

// NewServer returns a server on the tables of [Migrate]. It takes one connection of
// the pool for each request in flight.
func NewServer(pool *pgxpool.Pool, o Options) (*Server, error) {
	err := cmp.Or(o.Secrets.validate(), o.Network.Validate())
	switch {
	case err != nil:
	case o.Retention < 0:
		err = fmt.Errorf("retention is %v, must not be negative", o.Retention)
	case o.Stall < 0:
		err = fmt.Errorf("stall is %v, must not be negative", o.Stall)
	}
	if err != nil {
		return nil, fmt.Errorf("payments: %w", err)
	}
	s := &Server{
		pool:      pool,
		mux:       http.NewServeMux(),
		secrets:   o.Secrets,
		retention: cmp.Or(o.Retention, 24*time.Hour),
		stall:     cmp.Or(o.Stall, 5*time.Second),
		network:   o.Network,
		fail:      newLuck(o.Network.Seed, 1),
		drop:      newLuck(o.Network.Seed, 2),
		hook:      o.Hook,
		log:       o.Logger,
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.mux.HandleFunc("POST /v1/charges", s.post(prepareCharge))
	s.mux.HandleFunc("GET /v1/charges/{id}", s.get)
	s.mux.HandleFunc("POST /v1/emails", s.post(prepareEmail))
	s.mux.HandleFunc("/", s.unknown)
	return s, nil
}

// Serve answers on the listener until ctx ends, and then answers what is in flight
// before it returns; it returns an error if that takes longer than it may. No client
// can hold it up: reading a request and writing an answer are bounded in time, and
// headers and bodies in size.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	atMost := patience + s.network.Latency
	server := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: reading / 2,
		ReadTimeout:       reading,
		WriteTimeout:      reading + atMost + patience,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	draining, cancel := context.WithTimeout(context.WithoutCancel(ctx), reading+atMost)
	defer cancel()
	if err := server.Shutdown(draining); err != nil {
		_ = server.Close()
		return fmt.Errorf("answer what is in flight on %s: %w", listener.Addr(), err)
	}
	return nil
}

// caller is who sent a request, and the name that the request was given.
type caller struct{ client, requestID string }

// call is a request for work that was let in and read.
type call struct {
	caller
	key    string // "" where none was sent
	hash   []byte
	params params
}

// heldKey is a key that this server holds in the table. Its retries are answered without
// a connection: where requests in flight have all of them, a retry would wait.
type heldKey struct{ client, key string }

type (
	// prepare checks the parameters of a request, and touches nothing.
	prepare func(params) (work, error)
	// work does what was asked for. Its answer is kept for the key, also one that is a
	// refusal; an error is a failure of the server, and nothing is kept.
	work func(ctx context.Context, tx pgx.Tx, c call) (answer, error)
)

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

func (s *Server) unknown(w http.ResponseWriter, r *http.Request) {
	s.respond(w, r, func(caller) (answer, error) {
		return answer{}, malformed(http.StatusNotFound, "There is no %s %s. There are POST /v1/charges, GET /v1/charges/{id} and POST /v1/emails.",
			short(r.Method), short(r.URL.Path))
	})
}

func (s *Server) get(w http.ResponseWriter, r *http.Request) {
	s.respond(w, r, func(from caller) (answer, error) {
		ctx, cancel := s.bounded(r)
		defer cancel()
		return s.getCharge(ctx, from.client, r.PathValue("id"))
	})
}

func (s *Server) post(prepare prepare) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var passage Passage
		s.respond(w, r, func(from caller) (answer, error) {
			key, err := keyOf(r.Header)
			if err != nil {
				return answer{}, err
			}
			params, err := readParams(w, r)
			if err != nil {
				return answer{}, err
			}
			ctx, cancel := s.bounded(r)
			defer cancel()
			passage.EventID = params[nameOf(metadataEventID)]
			if err := s.pass(ctx, &passage, Received); err != nil {
				return answer{}, err
			}
			if s.fail.strikes(s.network.FailRate) {
				return answer{}, internal()
			}
			given, err := s.perform(ctx, call{from, key, params.fingerprint(r.Method, r.URL.Path), params}, &passage, prepare)
			if err == nil && s.drop.strikes(s.network.DropResponseRate) {
				panic(http.ErrAbortHandler) // net/http closes the connection without a word
			}
			return given, err
		})
		if passage.Step == "" { // it was not let in, or could not be read
			return
		}
		if err := s.pass(context.WithoutCancel(r.Context()), &passage, Answered); err != nil {
			s.log.Warn("a request failed after it was answered", "cause", err)
		}
	}
}

// perform does the work of a request, or finds the answer that there is for its key.
func (s *Server) perform(ctx context.Context, c call, passage *Passage, prepare prepare) (answer, error) {
	work, wrong := prepare(c.params)
	if wrong != nil && c.key == "" {
		return answer{}, wrong
	}
	key := heldKey{c.client, c.key}
	if _, working := s.working.Load(key); working {
		return answer{}, inFlight()
	}
	tx, err := s.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}) // claim needs that level
	if err != nil {
		return answer{}, fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // after a commit, it does nothing
	stored, err := s.claim(ctx, tx, c)
	if err != nil {
		return answer{}, err
	}
	if stored != nil {
		return *stored, nil
	}
	if wrong != nil { // only now: a key that has an answer keeps to it
		return answer{}, wrong
	}
	if err := s.hold(ctx, tx, c); err != nil {
		return answer{}, err
	}
	release := func() {}
	if c.key != "" {
		s.working.Store(key, nil)
		release = sync.OnceFunc(func() { s.working.Delete(key) })
	}
	defer release()
	if err := s.pass(ctx, passage, Claimed); err != nil {
		return answer{}, err
	}
	if err := s.network.delay(ctx); err != nil {
		return answer{}, err
	}
	given, err := work(ctx, tx, c)
	if err != nil {
		return answer{}, err
	}
	given.header.Set("Request-Id", c.requestID)
	if err := s.keep(ctx, tx, c, given); err != nil {
		return answer{}, err
	}
	if err := s.pass(ctx, passage, Charged); err != nil {
		return answer{}, err
	}
	if err := tx.Commit(ctx); err != nil {
		return answer{}, fmt.Errorf("commit: %w", err)
	}
	release() // before the answer leaves: nobody who has it gets a 409
	return given, s.pass(ctx, passage, Committed)
}

func (s *Server) pass(ctx context.Context, p *Passage, step Step) error {
	p.Step = step
	return s.hook.pass(ctx, *p)
}

// bounded is the context of a request's work. It does not end when the client hangs
// up: work that has begun is done, and there for the retry.
func (s *Server) bounded(r *http.Request) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(r.Context()), patience+s.network.Latency)
}

// respond lets a request in, or not, and sends what it is answered.
func (s *Server) respond(w http.ResponseWriter, r *http.Request, answerTo func(caller) (answer, error)) {
	from := caller{requestID: "req_" + rand.Text()}
	var err error = unauthorized()
	var given answer
	if client, known := s.secrets.client(r); known {
		from.client = client
		given, err = answerTo(from)
	}
	if err != nil {
		told := refusalFor(err)
		if told.status >= http.StatusInternalServerError {
			s.log.Warn("a request failed", "request", from.requestID, "client", from.client, "status", told.status, "cause", err)
		}
		if given, err = told.answer(); err != nil {
			s.log.Error("an answer could not be written", "request", from.requestID, "cause", err)
		}
		given.header.Set("Request-Id", from.requestID)
	}
	given.send(w)
}

// send writes the answer and hands it to the network. Where the client is gone, there
// is nothing to do about it: it will ask again.
func (a answer) send(w http.ResponseWriter) {
	header := w.Header()
	for name, values := range a.header {
		header[name] = values
	}
	if a.replayed {
		header.Set("Idempotent-Replayed", "true")
	}
	header.Set("Content-Length", strconv.Itoa(len(a.body)))
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body)
	_ = http.NewResponseController(w).Flush()
}
