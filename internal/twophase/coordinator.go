package twophase

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/kafkatx"
	"github.com/delivered-twice/delivered-twice/internal/pginbox"
)

// Worked is the one step that is passed here: the work is done in Postgres and the
// decision is stored, in a transaction that is not committed yet.
const Worked kafkatx.Step = "worked"

// Steps returns the steps of an engine with a [Coordinator], in the order in which they
// are passed.
func Steps() []kafkatx.Step {
	return []kafkatx.Step{
		kafkatx.Polled, kafkatx.Begun, kafkatx.Handled, kafkatx.Produced, kafkatx.OffsetsSent,
		Worked, kafkatx.Decided, kafkatx.Committed,
	}
}

// ErrFenced is wrapped by the error of a decision that is refused, because another
// incarnation runs as the same instance by now.
var ErrFenced = errors.New("another process has taken the transactional id over")

// ErrLate is wrapped by the error of a decision that is refused, because too little of the
// transaction timeout is left to carry it out.
var ErrLate = errors.New("too much of the transaction timeout is over")

// Options say what a coordinator decides on.
type Options struct {
	// Group and Instance are those of the engine.
	Group, Instance string
	// TransactionTimeout is that of the engine.
	TransactionTimeout time.Duration
	// Work does the work of a batch in the given transaction. A batch that fails is tried
	// again one record at a time, to find those that are to blame, unless the error says
	// it, being a [kafkatx.RecordErrors]. An error that [pginbox.Transient] knows is
	// nobody's fault.
	Work func(ctx context.Context, tx pgx.Tx, records []*kgo.Record) error
	// ID returns the id of a record's event.
	ID func(*kgo.Record) string
	// Hook, where set, is called at [Worked], as the engine's is at its steps.
	Hook kafkatx.Hook
	// Logger hears what a person should know.
	Logger *slog.Logger
}

// Coordinator lets Postgres decide on the transactions of one engine, as its
// [kafkatx.Participant].
type Coordinator struct {
	*Decisions
	options         Options
	transactionalID string
	fence           int64 // drawn by Recover
}

// New returns a coordinator. What it needs of pool and client is said at [NewDecisions];
// one connection of the pool is in use during a decision.
func New(pool *pgxpool.Pool, client *kgo.Client, o Options) *Coordinator {
	return &Coordinator{
		Decisions:       NewDecisions(pool, client, o.Logger),
		options:         o,
		transactionalID: kafkatx.TransactionalID(o.Group, o.Instance, 0),
	}
}

// Recover shuts earlier incarnations out, and then ends what they, and members that are
// gone, have decided. Of its own transaction that is a must.
func (c *Coordinator) Recover(ctx context.Context) error {
	var err error
	if c.fence, err = c.draw(ctx, c.transactionalID); err != nil {
		return err
	}
	own, decided, err := c.Of(ctx, c.transactionalID)
	if err != nil {
		return err
	}
	if decided {
		if err := c.Finish(ctx, own); err != nil && !errors.Is(err, ErrLost) {
			return err
		}
		c.options.Logger.Info("finished what an earlier incarnation has decided", "transaction", own, "events", len(own.EventIDs))
	}
	c.finishOthers(ctx)
	return nil
}

// draw makes the caller the only one that may decide on transactions of an id. A decision
// in flight holds a lock on the row until it is committed or rolled back, and is waited
// for: what is there then is all that will ever be.
func (d *Decisions) draw(ctx context.Context, transactionalID string) (fence int64, err error) {
	// Durable for the reason that a decision is: a fence that is forgotten lets two decide.
	err = d.pool.QueryRow(ctx, `
WITH durably AS MATERIALIZED (SELECT set_config('synchronous_commit', 'on', true))
INSERT INTO transactional_ids AS t (transactional_id, fence) SELECT $1, 1 FROM durably
ON CONFLICT (transactional_id) DO UPDATE SET fence = t.fence + 1
RETURNING fence`, transactionalID).Scan(&fence)
	if err != nil {
		return 0, fmt.Errorf("twophase: draw a fence for transactional id %s: %w", transactionalID, err)
	}
	return fence, nil
}

const (
	// lookEvery is how often decisions of others are looked for.
	lookEvery = 500 * time.Millisecond
	// overdue is the age from which on a decision's owner is helped. Helping one that is
	// alive does no harm.
	overdue = time.Second
)

// Watch ends what members of the group have decided and do not end, until ctx ends. Their
// partitions cannot be taken over before: the group's offsets are withheld while a
// transaction that moves them is open (KIP-447).
func (c *Coordinator) Watch(ctx context.Context) {
	for pause(ctx, lookEvery) == nil {
		c.finishOthers(ctx)
	}
}

func (c *Coordinator) finishOthers(ctx context.Context) {
	others, err := c.find(ctx, `WHERE group_id = $1 AND transactional_id <> $2 AND decided_at < clock_timestamp() - $3::interval`,
		c.options.Group, c.transactionalID, overdue)
	for _, one := range others {
		switch finishErr := c.Finish(ctx, one); {
		case finishErr == nil:
			c.options.Logger.Info("finished what another member has decided", "transaction", one, "age", one.Age)
		case !errors.Is(finishErr, ErrLost): // of which Finish tells
			err = cmp.Or(err, finishErr)
		}
	}
	if err != nil && ctx.Err() == nil {
		c.options.Logger.Warn("finishing what other members have decided failed; it is tried again", "cause", err)
	}
}

// Decide does the work and stores the decision, in one transaction.
func (c *Coordinator) Decide(ctx context.Context, p kafkatx.Prepared) error {
	tx, err := c.pool.BeginTx(ctx, pgx.TxOptions{BeginQuery: fmt.Sprintf(
		// A process that stands still with the transaction open would keep its locks, and could
		// decide after the timeout. And what Kafka is told to commit must not be forgotten in
		// a crash of Postgres, whatever the database's default is.
		`BEGIN; SET LOCAL synchronous_commit = on; SET LOCAL idle_in_transaction_session_timeout = %d`, (c.options.TransactionTimeout / 4).Milliseconds())})
	if err != nil {
		return classified(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if err := c.prepare(ctx, tx, p); err != nil {
		return classified(err)
	}
	if over := time.Since(p.Begun); over > c.options.TransactionTimeout/2 {
		return fmt.Errorf("twophase: refuse to decide %v after the transaction began: %w (%v)", over, ErrLate, c.options.TransactionTimeout)
	}
	if err := tx.Commit(ctx); err != nil && !errors.Is(err, pgx.ErrTxCommitRollback) {
		return kafkatx.InDoubt(fmt.Errorf("twophase: commit in Postgres: %w", err))
	} else if err != nil {
		return classified(err)
	}
	return nil
}

// prepare does everything but the COMMIT.
func (c *Coordinator) prepare(ctx context.Context, tx pgx.Tx, p kafkatx.Prepared) error {
	var fence int64
	err := tx.QueryRow(ctx, `SELECT fence FROM transactional_ids WHERE transactional_id = $1 FOR SHARE`, p.TransactionalID).Scan(&fence)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("look up the fence of transactional id %s: %w", p.TransactionalID, err)
	}
	if fence != c.fence {
		return fmt.Errorf("transactional id %s: %w", p.TransactionalID, ErrFenced)
	}
	if err := c.work(ctx, tx, p.Records); err != nil {
		return err
	}
	if err := c.decision(p).store(ctx, tx); err != nil {
		return err
	}
	if c.options.Hook == nil {
		return nil
	}
	if err := c.options.Hook(ctx, kafkatx.Passage{Step: Worked, Records: p.Records}); err != nil {
		return fmt.Errorf("step %s: %w", Worked, err)
	}
	return nil
}

// work does the work of all records or, if that fails, of one after the other.
func (c *Coordinator) work(ctx context.Context, tx pgx.Tx, records []*kgo.Record) error {
	if len(records) == 0 {
		return nil
	}
	do := func(records ...*kgo.Record) error {
		return pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error { return c.options.Work(ctx, savepoint, records) })
	}
	err := do(records...)
	var named kafkatx.RecordErrors
	if err == nil || errors.As(err, &named) || tx.Conn().IsClosed() || pginbox.Transient(err) || ctx.Err() != nil {
		return err
	}
	var failed kafkatx.RecordErrors
	for _, r := range records {
		err := do(r)
		if err == nil {
			continue
		}
		if tx.Conn().IsClosed() || pginbox.Transient(err) || ctx.Err() != nil {
			return err
		}
		failed = append(failed, kafkatx.RecordError{Record: r, Err: err})
	}
	if len(failed) > 0 {
		return failed
	}
	return nil
}

func (c *Coordinator) decision(p kafkatx.Prepared) Decision {
	d := Decision{
		TransactionalID: p.TransactionalID,
		ProducerID:      p.ProducerID,
		ProducerEpoch:   p.ProducerEpoch,
		Group:           c.options.Group,
		Next:            make(map[string]map[int32]int64),
	}
	for topic, partitions := range p.Next {
		d.Next[topic] = make(map[int32]int64)
		for partition, at := range partitions {
			d.Next[topic][partition] = at.Offset
		}
	}
	if p.Output != nil {
		d.Output = &Position{p.Output.Topic, p.Output.Partition, p.Output.Offset}
	}
	for _, r := range p.Records {
		d.EventIDs = append(d.EventIDs, c.options.ID(r))
	}
	return d
}

// classified makes an error of Postgres that may pass nobody's fault. Before COMMIT was
// sent nothing is decided, whatever happened.
func classified(err error) error {
	var failed kafkatx.RecordErrors
	if errors.As(err, &failed) {
		return failed
	}
	err = fmt.Errorf("twophase: %w", err)
	if pginbox.Transient(err) {
		return kafkatx.Unavailable(err)
	}
	return err
}

// Ended removes the row. Should that fail, the next decision replaces it, or it is
// finished once more.
func (c *Coordinator) Ended(ctx context.Context, p kafkatx.Prepared) {
	if err := c.forget(ctx, c.decision(p)); err != nil {
		c.options.Logger.Warn("the row of a committed transaction stays for now", "cause", err)
	}
}
