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
// what it decides is what the engine does. It is called by one goroutine.
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

// decide asks the participant. Its errors are those of [session.commit].
func (tx *transaction) decide(ctx context.Context, id int64, epoch int16) (Prepared, error) {
	s := tx.session
	p := Prepared{
		TransactionalID: TransactionalID(s.config.Group, s.config.Instance),
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

// end commits a transaction that has offsets and no records: the client takes it for
// empty and would send nothing. The client doesn't know of the new epoch either, so that
// the producer is built anew.
func (s *session) end(ctx context.Context, id int64, epoch int16) error {
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID = TransactionalID(s.config.Group, s.config.Instance)
	req.ProducerID, req.ProducerEpoch, req.Commit = id, epoch, true
	return retriable(ctx, func() error {
		resp, err := req.RequestWith(ctx, s.producer)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(resp.ErrorCode)
	})
}

// renewProducer replaces the producer. Nothing may be open.
func (s *session) renewProducer(ctx context.Context) error {
	producer, err := newProducer(s.config, s.maxBytes)
	if err != nil {
		return err
	}
	s.producer.Close()
	s.producer = producer
	return initialise(ctx, s.config, producer)
}
