package twophase

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Decision is a stored row: a transaction whose work is committed in Postgres.
type Decision struct {
	TransactionalID string
	ProducerID      int64
	ProducerEpoch   int16
	Group           string
	// Next are the group's offsets once Kafka has committed, by topic and partition.
	Next map[string]map[int32]int64
	// Output is where a record is that was produced in it; nil where none was.
	Output *Position
	// EventIDs are those whose work is done.
	EventIDs  []string
	DecidedAt time.Time
	// Age is how long ago that was, by the clock of Postgres.
	Age time.Duration
}

// Position is the place of a record.
type Position struct {
	Topic     string
	Partition int32
	Offset    int64
}

func (p Position) String() string {
	return fmt.Sprintf("topic %s, partition %d, offset %d", p.Topic, p.Partition, p.Offset)
}

func (d Decision) String() string {
	return fmt.Sprintf("transaction of %s (producer id %d, epoch %d)", d.TransactionalID, d.ProducerID, d.ProducerEpoch)
}

// ErrLost is wrapped by the error of [Decisions.Finish] for a decision that Kafka cannot
// be made to follow any more.
var ErrLost = errors.New("decided in Postgres and not committed in Kafka")

// Decisions are the stored rows, for whoever wants to finish them: any process may. Its
// methods may be called at the same time by several goroutines.
type Decisions struct {
	pool   *pgxpool.Pool
	kafka  *kgo.Client
	logger *slog.Logger
}

// NewDecisions returns the decisions in the database of pool. The client must be of the
// cluster that their transactions are in, and be neither transactional nor a consumer; it
// needs the permission to write to their transactional ids. The tables must be there
// ([Migrate]).
func NewDecisions(pool *pgxpool.Pool, client *kgo.Client, logger *slog.Logger) *Decisions {
	return &Decisions{pool: pool, kafka: client, logger: logger}
}

const selectDecisions = `
SELECT transactional_id, producer_id, producer_epoch, group_id, next_offsets,
	output_topic, output_partition, output_offset, event_ids, decided_at,
	extract(epoch FROM clock_timestamp() - decided_at)::float8
FROM decided_transactions `

// All returns every decision that is stored, the oldest first.
func (d *Decisions) All(ctx context.Context) ([]Decision, error) {
	return d.find(ctx, `ORDER BY decided_at`)
}

// Of returns the decision on the transaction of an id, and whether there is one.
func (d *Decisions) Of(ctx context.Context, transactionalID string) (Decision, bool, error) {
	found, err := d.find(ctx, `WHERE transactional_id = $1`, transactionalID)
	if err != nil || len(found) == 0 {
		return Decision{}, false, err
	}
	return found[0], true, nil
}

func (d *Decisions) find(ctx context.Context, which string, args ...any) ([]Decision, error) {
	rows, _ := d.pool.Query(ctx, selectDecisions+which, args...) // its error is in the rows, too
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Decision, error) {
		var (
			one       Decision
			topic     *string
			partition *int32
			offset    *int64
			ids       [][]byte
			age       float64
		)
		err := row.Scan(&one.TransactionalID, &one.ProducerID, &one.ProducerEpoch, &one.Group, &one.Next,
			&topic, &partition, &offset, &ids, &one.DecidedAt, &age)
		if err != nil {
			return one, err
		}
		if topic != nil && partition != nil && offset != nil {
			one.Output = &Position{*topic, *partition, *offset}
		}
		for _, id := range ids {
			one.EventIDs = append(one.EventIDs, string(id))
		}
		one.Age = time.Duration(age * float64(time.Second))
		return one, nil
	})
	if err != nil {
		return nil, fmt.Errorf("twophase: read the table decided_transactions: %w", err)
	}
	return found, nil
}

// Lost counts what the table lost_transactions has.
func (d *Decisions) Lost(ctx context.Context) (transactions, events int, err error) {
	err = d.pool.QueryRow(ctx, `SELECT count(*), coalesce(sum(cardinality(event_ids)), 0) FROM lost_transactions`).Scan(&transactions, &events)
	if err != nil {
		err = fmt.Errorf("twophase: read the table lost_transactions: %w", err)
	}
	return transactions, events, err
}

// patience bounds how long one decision is tried to be finished.
const patience = 10 * time.Second

// Finish commits in Kafka what is decided, and removes the row. It may be called for a
// decision that somebody else is finishing, its owner included, and again. If Kafka has
// aborted the transaction, or nobody can tell any more what it has done, that is logged
// as an error, kept in the table lost_transactions, and the result wraps [ErrLost]; the
// row is gone then, too. After any other error it is still there.
func (d *Decisions) Finish(ctx context.Context, one Decision) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := d.endTxn(ctx, one.TransactionalID, one.ProducerID, one.ProducerEpoch, true)
	if err == nil {
		return d.forget(ctx, one)
	}
	if !refused(err) {
		return fmt.Errorf("twophase: commit the decided %v: %w", one, err)
	}
	committed, why, lookErr := d.outcome(ctx, one)
	switch {
	case lookErr != nil:
		return fmt.Errorf("twophase: find out how the decided %v has ended (EndTxn: %w): %w", one, err, lookErr)
	case committed:
		return d.forget(ctx, one)
	}
	return d.lose(ctx, one, fmt.Sprintf("%s (EndTxn: %v)", why, err))
}

// refused says that the transaction is not open, or is another one by now. It does not
// say how it has ended.
func refused(err error) bool {
	for _, answer := range []error{
		kerr.ProducerFenced,
		kerr.InvalidProducerEpoch,
		kerr.InvalidTxnState,
		kerr.InvalidProducerIDMapping,
		kerr.TransactionalIDNotFound,
	} {
		if errors.Is(err, answer) {
			return true
		}
	}
	return false
}

// endTxn ends a transaction that was opened by whomever, in the highest version that the
// broker has: 5, where the cluster has transaction.version 2.
func (d *Decisions) endTxn(ctx context.Context, transactionalID string, id int64, epoch int16, commit bool) error {
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = transactionalID, id, epoch, commit
	wait := 5 * time.Millisecond
	for {
		resp, err := req.RequestWith(ctx, d.kafka)
		if err == nil {
			err = kerr.ErrorForCode(resp.ErrorCode)
		}
		// CONCURRENT_TRANSACTIONS: its markers are still being written.
		if err == nil || !kerr.IsRetriable(err) && !errors.Is(err, kerr.ConcurrentTransactions) {
			return err
		}
		if pauseErr := pause(ctx, wait); pauseErr != nil {
			return fmt.Errorf("%w, last answer: %w", pauseErr, err)
		}
		wait = min(2*wait, 200*time.Millisecond)
	}
}

const theSame = ` WHERE transactional_id = $1 AND producer_id = $2 AND producer_epoch = $3`

// forgetting is not waited for until it is on disk: a row that comes back is finished
// again.
const forgetting = `
WITH lazily AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
DELETE FROM decided_transactions USING lazily` + theSame

// forget removes the row, unless it is another one by now.
func (d *Decisions) forget(ctx context.Context, one Decision) error {
	if _, err := d.pool.Exec(ctx, forgetting, one.TransactionalID, one.ProducerID, one.ProducerEpoch); err != nil {
		return fmt.Errorf("twophase: remove the row of the committed %v: %w", one, err)
	}
	return nil
}

// losing moves the row to where it is kept.
const losing = `
WITH lost AS (DELETE FROM decided_transactions` + theSame + ` RETURNING *)
INSERT INTO lost_transactions (transactional_id, producer_id, producer_epoch, group_id, next_offsets,
	output_topic, output_partition, output_offset, event_ids, decided_at, cause)
SELECT transactional_id, producer_id, producer_epoch, group_id, next_offsets,
	output_topic, output_partition, output_offset, event_ids, decided_at, $4
FROM lost`

// told is how many ids of events are logged; the table has all of them.
const told = 20

// lose keeps a decision as lost, unless somebody else has.
func (d *Decisions) lose(ctx context.Context, one Decision, cause string) error {
	done, err := d.pool.Exec(ctx, losing, one.TransactionalID, one.ProducerID, one.ProducerEpoch, cause)
	if err != nil {
		return fmt.Errorf("twophase: keep the lost %v: %w", one, err)
	}
	if done.RowsAffected() > 0 {
		d.logger.Error("a transaction is lost: its work is in Postgres, its output and offsets are not in Kafka; the events come again",
			"transactional id", one.TransactionalID, "producer id", one.ProducerID, "epoch", one.ProducerEpoch, "cause", cause,
			"events", len(one.EventIDs), "event ids", one.EventIDs[:min(told, len(one.EventIDs))], "all of them are in table", "lost_transactions")
	}
	return fmt.Errorf("twophase: %v: %w: %s", one, ErrLost, cause)
}

// store writes the decision into the transaction of its work. A row that is there is of a
// transaction that was committed: there would be no other one otherwise.
func (d Decision) store(ctx context.Context, tx pgx.Tx) error {
	next, err := json.Marshal(d.Next)
	if err != nil {
		return err
	}
	var topic, partition, offset any
	if d.Output != nil {
		topic, partition, offset = d.Output.Topic, d.Output.Partition, d.Output.Offset
	}
	ids := make([][]byte, len(d.EventIDs))
	for i, id := range d.EventIDs {
		ids[i] = []byte(id)
	}
	_, err = tx.Exec(ctx, `
INSERT INTO decided_transactions AS d (transactional_id, producer_id, producer_epoch, group_id, next_offsets,
	output_topic, output_partition, output_offset, event_ids)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (transactional_id) DO UPDATE SET
	(producer_id, producer_epoch, group_id, next_offsets, output_topic, output_partition, output_offset, event_ids, decided_at) =
	(EXCLUDED.producer_id, EXCLUDED.producer_epoch, EXCLUDED.group_id, EXCLUDED.next_offsets,
	EXCLUDED.output_topic, EXCLUDED.output_partition, EXCLUDED.output_offset, EXCLUDED.event_ids, clock_timestamp())`,
		d.TransactionalID, d.ProducerID, d.ProducerEpoch, d.Group, next, topic, partition, offset, ids)
	if err != nil {
		return fmt.Errorf("store the decision in table decided_transactions: %w", err)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
