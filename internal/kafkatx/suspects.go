package kafkatx

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kgo"
)

// suspects remembers which input records have failed, between the attempts. It
// belongs to the engine and not to one session, so that a rebuilt client does not
// give a poison record fresh attempts.
type suspects struct {
	maxAttempts int
	// oneByOne: below this offset records are handled one at a time, because a
	// batch failed and nobody knows which of its records is to blame.
	oneByOne map[partition]int64
	attempts map[position]int
	// condemned records go to the dead-letter topic.
	condemned map[position]verdict
}

// verdict is why a record is dead-lettered.
type verdict struct {
	cause    error
	attempts int
	// omitRecord: not even the dead-letter topic takes the record, so that its
	// key, value and headers stay behind, in the input topic.
	omitRecord bool
}

func newSuspects(maxAttempts int) *suspects {
	return &suspects{
		maxAttempts: maxAttempts,
		oneByOne:    make(map[partition]int64),
		attempts:    make(map[position]int),
		condemned:   make(map[position]verdict),
	}
}

// chunk is a run of records that are treated alike: either handled together, or
// one condemned record.
type chunk struct {
	records []*kgo.Record
	verdict *verdict
}

// chunks cuts polled records into the runs in which they are to be treated, in
// their order.
func (s *suspects) chunks(records []*kgo.Record) []chunk {
	if len(s.oneByOne) == 0 && len(s.condemned) == 0 {
		return []chunk{{records: records}}
	}
	var (
		cut  []chunk
		from int
	)
	endRun := func(to int) {
		if from < to {
			cut = append(cut, chunk{records: records[from:to]})
		}
		from = to
	}
	for i, r := range records {
		at := positionOf(r)
		if v, ok := s.condemned[at]; ok {
			endRun(i)
			cut = append(cut, chunk{records: records[i : i+1], verdict: &v})
			from = i + 1
		} else if r.Offset < s.oneByOne[at.partition] {
			endRun(i)
			endRun(i + 1)
		}
	}
	endRun(len(records))
	return cut
}

// failure is why a transaction had to be given up although Kafka is well.
type failure struct {
	batch []*kgo.Record
	err   error
	// deadLetter: the broker refused the dead letter itself.
	deadLetter bool
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// learn takes in a failure and says whether somebody is to wait before the next
// attempt: not where the next attempt differs from this one.
func (s *suspects) learn(f *failure) (wait bool) {
	if errors.Is(f.err, errUnavailable) {
		return true
	}
	var failed RecordErrors
	switch {
	case errors.As(f.err, &failed) && len(failed) > 0:
	case len(f.batch) == 1:
		failed = RecordErrors{{Record: f.batch[0], Err: f.err}}
	default:
		for _, r := range f.batch {
			at := positionOf(r)
			s.oneByOne[at.partition] = max(s.oneByOne[at.partition], at.offset+1)
		}
		return false
	}
	for _, e := range failed {
		if errors.Is(e.Err, errUnavailable) {
			wait = true
			continue
		}
		at := positionOf(e.Record)
		if f.deadLetter {
			v := s.condemned[at]
			wait = wait || v.omitRecord // nothing is left to leave out
			v.omitRecord = true
			s.condemned[at] = v
			continue
		}
		s.attempts[at]++
		if s.attempts[at] >= s.maxAttempts || errors.Is(e.Err, errPermanent) {
			s.condemned[at] = verdict{cause: e.Err, attempts: s.attempts[at]}
		} else {
			wait = true
		}
	}
	return wait
}

// settled forgets what lies below the committed offsets.
func (s *suspects) settled(committed offsets) {
	if len(s.oneByOne) == 0 && len(s.attempts) == 0 && len(s.condemned) == 0 {
		return
	}
	for p, below := range s.oneByOne {
		if at, ok := committed[p]; ok && below <= at.Offset {
			delete(s.oneByOne, p)
		}
	}
	for at := range s.attempts {
		if c, ok := committed[at.partition]; ok && at.offset < c.Offset {
			delete(s.attempts, at)
		}
	}
	for at := range s.condemned {
		if c, ok := committed[at.partition]; ok && at.offset < c.Offset {
			delete(s.condemned, at)
		}
	}
}
