package pginbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Options say who handles the events, and how.
type Options struct {
	// Handlers do the work, each in transactions of its own.
	Handlers []Handler
	// Remember is what is kept of an event that is done; the default is RememberIDs.
	Remember Remember
	// Keys is how ids are kept, where they are; the default is TextKeys.
	Keys Keys
	// Isolation is the level of the transactions; the default is pgx.ReadCommitted.
	// The inbox needs no higher one. On higher ones, two deliveries of one event at
	// the same moment cost the later one a serialization failure and another try.
	Isolation pgx.TxIsoLevel
	// AsynchronousCommit commits without waiting until the transaction is on disk
	// (synchronous_commit = off, PostgreSQL manual, section 30.4). A crash of the
	// database then loses the last commits, up to three times wal_writer_delay of
	// them, although Process has returned nil. It is safe only where those events come
	// again: where stored offsets are lost with the work (RememberOffsets and
	// RememberBoth, with [ConsumerOptions].Resume), or where nothing is acknowledged
	// before it is on disk ([ConsumerOptions].AcknowledgeAfterFlush).
	AsynchronousCommit bool
	// MaxAttempts is how often an event may fail alone before it becomes a dead
	// letter; the default is 3. Attempts are counted within one call of Process.
	MaxAttempts int
	// RetryBackoff is about how long the pause before a second attempt is; it
	// doubles, up to a hundredfold. The default is 100 ms.
	RetryBackoff time.Duration
	// Hook, where set, is called at every step from Begun to Committed.
	Hook Hook
	// Logger, where set, hears of failures, with event ids and without contents.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Remember == "" {
		o.Remember = RememberIDs
	}
	if o.Keys == "" {
		o.Keys = TextKeys
	}
	if o.Isolation == "" {
		// Not left to the server, whose default can be set otherwise.
		o.Isolation = pgx.ReadCommitted
	}
	if o.MaxAttempts == 0 {
		o.MaxAttempts = 3
	}
	if o.RetryBackoff == 0 {
		o.RetryBackoff = 100 * time.Millisecond
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

func (o Options) validate() error {
	if len(o.Handlers) == 0 {
		return errors.New("there is no handler")
	}
	named := make(map[string]bool)
	for _, h := range o.Handlers {
		if h.Name == "" {
			return errors.New("a handler has no name")
		}
		if err := storable(h.Name, MaxNameBytes); err != nil {
			return fmt.Errorf("the handler name %q %w", h.Name, err)
		}
		if named[h.Name] {
			return fmt.Errorf("two handlers are named %q: they would take each other's events as done", h.Name)
		}
		named[h.Name] = true
		if h.Handle == nil {
			return fmt.Errorf("handler %q has no function", h.Name)
		}
	}
	if !o.Remember.ids() && !o.Remember.offsets() {
		return fmt.Errorf("unknown kind of memory %q: choose %q, %q or %q", o.Remember, RememberIDs, RememberOffsets, RememberBoth)
	}
	switch o.Isolation {
	case pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable:
	default:
		return fmt.Errorf("unknown isolation level %q: choose %q, %q or %q", o.Isolation, pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable)
	}
	if o.MaxAttempts < 1 {
		return fmt.Errorf("at most %d attempts, must be at least 1", o.MaxAttempts)
	}
	if o.RetryBackoff < 0 {
		return fmt.Errorf("retry backoff is %v, must be positive", o.RetryBackoff)
	}
	return nil
}

// Inbox delivers events to handlers so that the work of each event is done once. It
// is safe for concurrent use. Where offsets are remembered it is one owner of
// partitions, so every consumer needs one of its own.
type Inbox struct {
	pool     *pgxpool.Pool
	options  Options
	ledger   ledger
	prepared atomic.Bool
	claims   atomic.Pointer[claims]
	careful  atomic.Int64 // how many batches are expected to have ids that are there
}

// New returns an inbox whose tables [Migrate] has made where pool connects to. It
// connects to nothing; an error says what is wrong with the options.
//
// Each handler takes one connection of the pool while it works.
func New(pool *pgxpool.Pool, o Options) (*Inbox, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("pginbox: %w", err)
	}
	l, ok := o.Keys.ledger()
	if !ok {
		return nil, fmt.Errorf("pginbox: unknown kind of keys %q: choose %q or %q", o.Keys, TextKeys, HashKeys)
	}
	in := &Inbox{pool: pool, options: o, ledger: l}
	in.claims.Store(&claims{})
	return in, nil
}

// Process delivers events to every handler. It returns nil once each handler has
// each event either done, now or before, or stored as a dead letter, durably (but see
// AsynchronousCommit). Only then may the caller acknowledge the events to their
// source; on an error it must not, and the source delivers them again.
//
// The handlers run concurrently, each in transactions of its own: one that fails and
// waits neither blocks the others nor repeats them. Process waits for the slowest;
// handlers that are to be independent of each other's delays need an inbox and a
// consumer group each.
//
// Outages (see [Transient]) are waited out until ctx ends. Another error is a refusal
// by Postgres that no repetition changes, such as a table that is missing.
//
// Where offsets are remembered, the events of a partition must come in the order of
// their offsets and without omissions from where [Inbox.Resume] said on, and batches
// of one partition must not overlap in time. An error gives up the claims of the
// batch's partitions, so that nothing that comes later can be done before it; one
// that wraps [ErrStale] says that Resume has more to tell. Process of no events then
// finds out whether what was done is still remembered, and returns such an error if
// it isn't.
func (in *Inbox) Process(ctx context.Context, events []Event) error {
	held := in.claims.Load()
	if len(events) == 0 {
		if err := in.verify(ctx, held); err != nil {
			return fmt.Errorf("pginbox: %w", err)
		}
		return nil
	}
	var covered []stretch
	if in.options.Remember.offsets() {
		var err error
		if covered, err = stretches(events); err != nil {
			return fmt.Errorf("pginbox: %w", err)
		}
	}
	items := in.distinct(events)
	var (
		handlers sync.WaitGroup
		errs     = make([]error, len(in.options.Handlers))
	)
	for i, h := range in.options.Handlers {
		// What stays if the handler ends its goroutine (runtime.Goexit).
		errs[i] = fmt.Errorf("pginbox: handler %s did not return", h.Name)
		handlers.Go(func() {
			err := newDelivery(in, h, items, held, covered).run(ctx)
			if err != nil {
				err = fmt.Errorf("pginbox: deliver %d events to handler %s: %w", len(items), h.Name, err)
			}
			errs[i] = err
		})
	}
	handlers.Wait()
	err := errors.Join(errs...)
	if err != nil {
		held.drop(func(p partition) bool {
			return slices.ContainsFunc(covered, func(s stretch) bool { return s.partition == p })
		})
	}
	return err
}

// prepare runs once, and again if it failed.
func (in *Inbox) prepare(ctx context.Context) error {
	if in.prepared.Load() || !in.options.Remember.ids() {
		return nil
	}
	if err := in.ledger.prepare(ctx, in.pool, in.names()); err != nil {
		return statementError("number the handlers", err)
	}
	in.prepared.Store(true)
	return nil
}

func (in *Inbox) names() []string {
	names := make([]string, len(in.options.Handlers))
	for i, h := range in.options.Handlers {
		names[i] = h.Name
	}
	return names
}
