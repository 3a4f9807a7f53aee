package twophase

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// ErrDecided is wrapped by the error of [Decisions.Abort] for a transaction that is to be
// committed.
var ErrDecided = errors.New("it is decided: its work is committed in Postgres")

// ErrNotOpen is wrapped by the error of [Decisions.Abort] where there is nothing to abort.
var ErrNotOpen = errors.New("no transaction is open")

// Abort aborts the open transaction of an id. Of its live owner it takes the right to
// decide on it first; the owner goes on with a new one. A transaction that is decided is
// aborted only with decidedToo, and is then kept as lost: the events come again, and
// their work is done twice.
func (d *Decisions) Abort(ctx context.Context, transactionalID string, decidedToo bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// The transaction to be aborted is chosen before the right to decide on it is taken, and
	// aborted by its epoch: an owner that takes the right back does so for another one.
	described, err := kadm.NewClient(d.kafka).DescribeTransactions(ctx, transactionalID)
	if err != nil {
		return fmt.Errorf("twophase: describe the transaction of %s: %w", transactionalID, err)
	}
	open := described[transactionalID]
	if open.Err != nil && !errors.Is(open.Err, kerr.TransactionalIDNotFound) {
		return fmt.Errorf("twophase: describe the transaction of %s: %w", transactionalID, open.Err)
	}
	if _, err := d.draw(ctx, transactionalID); err != nil {
		return err
	}
	one, decided, err := d.Of(ctx, transactionalID)
	if err != nil {
		return err
	}
	if decided && !decidedToo {
		return fmt.Errorf("twophase: abort the %v: %w", one, ErrDecided)
	}
	if open.State != "Ongoing" || decided && (open.ProducerID != one.ProducerID || open.ProducerEpoch != one.ProducerEpoch) {
		return fmt.Errorf("twophase: transactional id %s: %w", transactionalID, ErrNotOpen)
	}
	if err := d.endTxn(ctx, transactionalID, open.ProducerID, open.ProducerEpoch, false); err != nil {
		return fmt.Errorf("twophase: abort the transaction of %s: %w", transactionalID, err)
	}
	if !decided {
		return nil
	}
	if err := d.lose(ctx, one, "aborted by an operator"); !errors.Is(err, ErrLost) {
		return err
	}
	return nil
}
