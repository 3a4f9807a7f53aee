package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Options shape a relay.
type Options struct {
	// Client tells how to reach Kafka; it must name the brokers. What it says of
	// acknowledgements, idempotence or partitioning is best left at the client's
	// defaults: all in-sync replicas acknowledge, the producer is idempotent, and keys
	// are partitioned as Kafka's own clients do it.
	Client []kgo.Opt
	// BatchRows is how many rows are published and stamped together, at most; the
	// default is 1,000, the limit 10,000.
	BatchRows int
	// BatchBytes is about how large their values are together, at most, unless a single
	// row is larger; the default is 16 MiB.
	BatchBytes int64
	// PublishTimeout bounds how long the rows of a batch are published for. What is not
	// acknowledged by then is published again. The default is 10 s.
	//
	// A relay that stands still for twice that with rows in hand loses them to whoever
	// comes next: the server ends its transaction (idle_in_transaction_session_timeout).
	PublishTimeout time.Duration
	// PollInterval is how often rows are looked for that no notification told of, such
	// as those that another relay has dropped; the default is 1 s.
	PollInterval time.Duration
	// StopGrace bounds how long a relay that is told to end goes on publishing what is
	// pending; the default is 5 s.
	StopGrace time.Duration
	// RetryBackoff is about how long the pause before a second attempt is; it doubles,
	// up to a hundredfold. The default is 100 ms.
	RetryBackoff time.Duration
	// Hook, where set, is called at every step.
	Hook Hook
	// Logger, where set, hears of failures, with event ids and without contents.
	Logger *slog.Logger
}

// maxBatchRows is how many records the client holds at once.
const maxBatchRows = 10_000

func (o Options) withDefaults() Options {
	o.BatchRows = cmp.Or(o.BatchRows, 1_000)
	o.BatchBytes = cmp.Or(o.BatchBytes, 16<<20)
	o.PublishTimeout = cmp.Or(o.PublishTimeout, 10*time.Second)
	o.PollInterval = cmp.Or(o.PollInterval, time.Second)
	o.StopGrace = cmp.Or(o.StopGrace, 5*time.Second)
	o.RetryBackoff = cmp.Or(o.RetryBackoff, 100*time.Millisecond)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	return o
}

func (o Options) validate() error {
	switch {
	case o.BatchRows < 1 || o.BatchRows > maxBatchRows:
		return fmt.Errorf("a batch of %d rows, must be from 1 to %d", o.BatchRows, maxBatchRows)
	case o.BatchBytes < 1:
		return fmt.Errorf("a batch of %d bytes, must be at least 1", o.BatchBytes)
	}
	for name, d := range map[string]time.Duration{
		"publish timeout": o.PublishTimeout,
		"poll interval":   o.PollInterval,
		"stop grace":      o.StopGrace,
		"retry backoff":   o.RetryBackoff,
	} {
		if d < time.Millisecond {
			return fmt.Errorf("%s is %v, must be at least 1ms", name, d)
		}
	}
	return nil
}

// Relay publishes what is in the outbox. There may be several on one outbox, in one
// process or in many.
type Relay struct {
	pool    *pgxpool.Pool
	options Options
}

// NewRelay returns a relay of the outbox whose tables [Migrate] has made where pool
// connects to. It connects to nothing; an error says what is wrong with the options.
//
// It takes one connection of the pool while it works, and one of its own to listen.
func NewRelay(pool *pgxpool.Pool, o Options) (*Relay, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	return &Relay{pool: pool, options: o}, nil
}

// Run publishes rows and stamps them until ctx ends, and then what is pending still,
// for no longer than [Options].StopGrace. Whatever is left stays in the outbox.
//
// Outages of Kafka and Postgres are waited out. Run returns an error for what another
// try cannot mend: options that the client refuses, a table that is missing, a
// permission or a password that Postgres refuses.
func (r *Relay) Run(ctx context.Context) error {
	client, err := kgo.NewClient(slices.Concat(r.options.Client, []kgo.Opt{
		// Whole batches, and one of them at a time: see publisher.
		kgo.ManualFlushing(),
		kgo.MaxBufferedRecords(maxBatchRows),
		// Waiting for longer than PublishTimeout would hold locks for longer.
		kgo.AllowIdempotentProduceCancellation(),
	})...)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	defer client.Close()
	// What is in hand when ctx ends is finished rather than cut off.
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(r.options.StopGrace, cancel) })()

	wake := make(chan struct{}, 1)
	var listening sync.WaitGroup
	defer listening.Wait()
	hearing, deaf := context.WithCancel(ctx)
	defer deaf()
	listening.Go(func() { r.listen(hearing, wake) })

	p := newPublisher(client, r.options)
	pauses := newBackoff(r.options.RetryBackoff)
	first := 0 // shard to begin with
	for {
		w := &wave{relay: r, publisher: p, first: first}
		busy, err := w.run(work)
		first = w.next
		switch {
		case work.Err() != nil || err != nil && ctx.Err() != nil:
			r.options.Logger.Warn("stopped with rows pending; they stay in the outbox", "cause", cmp.Or(err, work.Err()))
			return nil
		case hopeless(err):
			return fmt.Errorf("outbox: %w", err)
		case err != nil:
			pause := pauses.NextBackOff()
			r.options.Logger.Warn("a batch failed; its rows are taken up again", "after", pause, "cause", err)
			sleep(ctx, pause)
		case busy:
			pauses.Reset()
		case ctx.Err() != nil:
			return nil
		default:
			pauses.Reset()
			await(ctx, wake, p.untilRelease(r.options.PollInterval))
		}
	}
}

// await waits for a wake-up, not for long.
func await(ctx context.Context, wake <-chan struct{}, most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-wake:
	case <-timer.C:
	}
}

func sleep(ctx context.Context, d time.Duration) { await(ctx, nil, d) }

// hopeless says that Postgres has answered, and will not answer otherwise when asked
// again (PostgreSQL manual, appendix A).
func hopeless(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && len(pg.Code) == 5 && slices.Contains([]string{
		"28", // invalid authorization
		"3D", // no such database
		"3F", // no such schema
		"42", // a missing table, a missing permission
	}, pg.Code[:2])
}

// maxBackoff is the longest pause, as a multiple of the first one.
const maxBackoff = 100

// newBackoff returns pauses that start at about first and double; each is stretched
// or shortened by up to a half at random.
func newBackoff(first time.Duration) *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval = first
	b.Multiplier = 2
	b.MaxInterval = maxBackoff * first
	return b
}
