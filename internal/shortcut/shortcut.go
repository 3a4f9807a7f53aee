package shortcut

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/pginbox"
)

// Options say which guard there is, and who handles the events.
type Options struct {
	Guard Guard
	// Handlers do the work; what [pginbox.Handler] promises them holds here too, but
	// that each event's work was not done before.
	Handlers []pginbox.Handler
	// Redis is needed by the guard [Redis], and by no other.
	Redis *redis.Client
	// RedisTTL is the age at which a key expires; the default is the constant
	// [RedisTTL].
	RedisTTL time.Duration
	// RedisPrefix comes before the event's id in every key.
	RedisPrefix string
	// MaxAttempts is how often an event may fail alone before it becomes a dead
	// letter; the default is 3.
	MaxAttempts int
	// RetryBackoff is about how long the pause before a second attempt is; it
	// doubles, up to a hundredfold. The default is 100 ms.
	RetryBackoff time.Duration
	// Hook, where set, is called at every step of [Steps] but Polled and
	// Acknowledged. An error means what it does to [pginbox.Hook].
	Hook pginbox.Hook
	// Logger, where set, hears of failures, with event ids and without contents.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.RedisTTL == 0 {
		o.RedisTTL = RedisTTL
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
		if h.Name == "" || h.Handle == nil {
			return fmt.Errorf("handler %q has no name or no function", h.Name)
		}
		if named[h.Name] {
			return fmt.Errorf("two handlers are named %q", h.Name)
		}
		named[h.Name] = true
	}
	if o.MaxAttempts < 1 {
		return fmt.Errorf("at most %d attempts, must be at least 1", o.MaxAttempts)
	}
	if o.RetryBackoff < 0 {
		return fmt.Errorf("retry backoff is %v, must be positive", o.RetryBackoff)
	}
	return nil
}

// Shortcut delivers events to handlers under a guard.
type Shortcut struct {
	pool    *pgxpool.Pool
	options Options
	guard   guard
}

// New returns a shortcut whose tables ([pginbox.Migrate], and [Migrate] for
// [SelectFirst]) are where pool connects to. It connects to nothing; an error says
// what is wrong with the options.
func New(pool *pgxpool.Pool, o Options) (*Shortcut, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("shortcut: %w", err)
	}
	g, err := newGuard(o)
	if err != nil {
		return nil, fmt.Errorf("shortcut: %w", err)
	}
	return &Shortcut{pool: pool, options: o, guard: g}, nil
}

// Process delivers events to the handlers. It returns nil once a transaction has been
// committed in which each handler has each event that the guard let through either
// done or stored as a dead letter. On an error the events must not be acknowledged.
// How often an event was done in all is what the guard is about.
//
// Outages (see [pginbox.Transient]) are waited out until ctx ends. The only other
// error is a refusal by Postgres that no repetition changes, such as a table that is
// missing.
func (s *Shortcut) Process(ctx context.Context, events []pginbox.Event) error {
	if len(events) == 0 {
		return nil
	}
	identified := make([]pginbox.Event, len(events))
	for i, e := range events {
		if e.Record == nil {
			e.Record = &kgo.Record{}
		}
		if e.ID == "" {
			sum := sha256.Sum256(e.Record.Value)
			e.ID = "sha256:" + hex.EncodeToString(sum[:])
		}
		identified[i] = e
	}
	if err := newDelivery(s, identified).run(ctx); err != nil {
		return fmt.Errorf("shortcut %s: deliver %d events: %w", s.options.Guard, len(events), err)
	}
	return nil
}
