package kafkatx

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Handler turns a batch of input records, in the order of their partitions, into
// output records. An output record without a topic goes to [Config.Output].
//
// A batch may come again after an abort. On an error nothing the handler returned
// is produced, and the error decides what follows:
//
//   - a [RecordErrors] names the records that failed;
//   - any other error of a batch of several puts all of them under suspicion:
//     they come again one at a time, which finds the culprit;
//   - wrapped by [Permanent], the culprit is dead-lettered without another attempt;
//   - wrapped by [Unavailable], nobody is to blame: the batch comes again, after a
//     backoff, for as long as it takes.
//
// A record that failed [Config.MaxAttempts] times is dead-lettered.
type Handler func(ctx context.Context, batch []*kgo.Record) ([]*kgo.Record, error)

// Each makes a [Handler] of a function for one record. Every record of the batch
// is tried, and the failed ones are returned together as [RecordErrors], so that
// many poison records cost one abort and not one each.
func Each(transform func(context.Context, *kgo.Record) ([]*kgo.Record, error)) Handler {
	return func(ctx context.Context, batch []*kgo.Record) ([]*kgo.Record, error) {
		out := make([]*kgo.Record, 0, len(batch))
		var failed RecordErrors
		for _, in := range batch {
			records, err := transform(ctx, in)
			if err != nil {
				failed = append(failed, RecordError{Record: in, Err: err})
				continue
			}
			out = append(out, records...)
		}
		if len(failed) > 0 {
			return nil, failed
		}
		return out, nil
	}
}

// RecordError is the failure of one input record.
type RecordError struct {
	Record *kgo.Record
	Err    error
}

// RecordErrors are the failures of a batch, record by record.
type RecordErrors []RecordError

// Error names the first failed record and counts the others.
func (e RecordErrors) Error() string {
	if len(e) == 0 {
		return "no record failed"
	}
	first := fmt.Sprintf("%s: %v", positionOf(e[0].Record), e[0].Err)
	if len(e) == 1 {
		return first
	}
	return fmt.Sprintf("%s (and %d more)", first, len(e)-1)
}

// Permanent marks an error that another attempt cannot mend: the record is
// dead-lettered at once.
func Permanent(err error) error { return &marked{err: err, mark: errPermanent} }

// Unavailable marks an error that is not the record's fault, such as a database
// that is down. It never counts as an attempt.
func Unavailable(err error) error { return &marked{err: err, mark: errUnavailable} }

var (
	errPermanent   = errors.New("permanent")
	errUnavailable = errors.New("unavailable")
)

// marked is an error that matches a mark with errors.Is and reads as it did.
type marked struct{ err, mark error }

func (m *marked) Error() string   { return m.err.Error() }
func (m *marked) Unwrap() []error { return []error{m.err, m.mark} }
