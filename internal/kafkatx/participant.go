package kafkatx

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Participant is another resource that ends together with each Kafka transaction:
// what it decides is what the engine does. Its calls come one after the other.
//
// It needs a broker at transaction.version 2 (KIP-890, the default from Kafka 4.0 on),
// where every transaction of a TransactionalID has a producer epoch of its own: only
// there does an EndTxn that somebody repeats, or sends late, never end another
// transaction than the one that is meant.
type Participant interface {
	// Recover is called before the TransactionalID is initialised, which aborts what is
	// open under it: whatever is decided must be committed before it returns nil, and
	// nobody who ran as the same instance before may decide anything afterwards.
	Recover(ctx context.Context) error

	// Decide is called when all output and the input offsets are in the open
	// transaction. Once it has returned nil, the transaction is committed and never
	// aborted, whatever happens. The error decides what follows otherwise:
	//
	//   - wrapped by [InDoubt], nobody knows whether it is decided: the engine neither
	//     commits nor aborts, and asks Recover;
	//   - [RecordErrors] and [Unavailable] are what they are of a [Handler];
	//   - any other error aborts the transaction, and the clients are built anew.
	Decide(ctx context.Context, t Prepared) error

	// Ended is called when a transaction that Decide was called with is committed. What
	// it has to forget may be forgotten later as well.
	Ended(ctx context.Context, t Prepared)
}

// Prepared is a transaction that has everything and only waits for its end.
type Prepared struct {
	TransactionalID string
	ProducerID      int64
	ProducerEpoch   int16
	// Begun is when the transaction began: the broker's transaction timeout counts from
	// then, or from a little later.
	Begun time.Time
	// Records are the input records that were handled: those of its dead letters are not
	// among them.
	Records []*kgo.Record
	// Next are the group's offsets once the transaction is committed.
	Next map[string]map[int32]kgo.EpochOffset
	// Output is one of the records produced in it, with its partition and offset; nil
	// where there is none. The next control record of the same producer id in that
	// partition says how the transaction has ended.
	Output *kgo.Record
}

// InDoubt marks an error of [Participant.Decide] after which nobody knows whether the
// transaction was decided.
func InDoubt(err error) error { return &marked{err: err, mark: errInDoubt} }

var errInDoubt = errors.New("in doubt")

// errNoEpochs is what a participant cannot work with.
var errNoEpochs = errors.New("the cluster's feature transaction.version is below 2 (KIP-890)")

// decide asks the participant. Its errors are those of [transaction.commit].
func (tx *transaction) decide(ctx context.Context, id int64, epoch int16) (Prepared, error) {
	s := tx.session
	p := Prepared{
		TransactionalID: tx.transactionalID(),
		ProducerID:      id,
		ProducerEpoch:   epoch,
		Begun:           tx.begun,
		Records:         tx.worked,
		Next:            tx.next.byTopic(),
		Output:          tx.output,
	}
	err := s.config.Participant.Decide(ctx, p)
	var failed RecordErrors
	switch {
	case err == nil:
		tx.decided = true
		return p, s.pass(ctx, Decided, tx.input)
	case errors.Is(err, errInDoubt):
		tx.decided = true // perhaps: it is not for this session to abort it
	case errors.As(err, &failed), errors.Is(err, errUnavailable) && ctx.Err() == nil:
		return p, &failure{batch: tx.worked, err: err}
	}
	return p, fmt.Errorf("decide: %w", err)
}

// endBare commits a transaction that has offsets and no records: the client takes it for
// empty and would send nothing. The client doesn't know of the new epoch either, so that
// the producer is built anew.
func (tx *transaction) endBare(ctx context.Context, id int64, epoch int16) error {
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID = tx.transactionalID()
	req.ProducerID, req.ProducerEpoch, req.Commit = id, epoch, true
	return retriable(ctx, func() error {
		resp, err := req.RequestWith(ctx, tx.producer())
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(resp.ErrorCode)
	})
}

// renewProducer replaces a producer of the ring. Nothing may be open with it.
func (s *session) renewProducer(ctx context.Context, slot int) error {
	producer, err := newProducer(s.config, s.transactionalID(slot), s.maxBytes)
	if err != nil {
		return err
	}
	s.ring[slot].Close()
	s.ring[slot] = producer
	return initialise(ctx, s.transactionalID(slot), producer)
}
