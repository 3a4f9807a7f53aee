package kafkatx

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"
)

// session is the life of one pair of clients. It ends at the first trouble with
// Kafka; the next one goes on from the committed offsets.
type session struct {
	config   Config
	suspects *suspects
	producer *kgo.Client
	consumer *kgo.Client

	topicIDs        map[string]kadm.TopicID
	implicitOffsets bool
	batchLimits     map[string]int32

	open     *transaction // nil between transactions
	progress bool         // a transaction was committed
}

// openSession connects. ctx ends the attempt; work outlives it, for what the
// session will do later.
func openSession(ctx, work context.Context, e *Engine) (*session, error) {
	c := e.config
	s := &session{config: c, suspects: e.suspects}
	var err error
	if s.producer, err = newProducer(c, s.maxBytes); err != nil {
		return nil, err
	}
	// The producer first: offsets fetched before the earlier incarnation is fenced
	// could still be moved by it.
	if err = s.prepare(ctx); err != nil {
		s.producer.Close()
		return nil, err
	}
	if s.consumer, err = openConsumer(c); err != nil {
		s.producer.Close()
		return nil, err
	}
	return s, nil
}

// prepare initialises the producer and asks what the session has to know, all at the
// same time and by one client: a process that was killed is to be back soon.
func (s *session) prepare(ctx context.Context) error {
	admin := kadm.NewClient(s.producer)
	if s.config.Participant != nil {
		if epochs, err := TransactionEpochs(ctx, s.producer); err != nil || !epochs {
			return cmp.Or(err, errNoEpochs)
		}
		if err := s.config.Participant.Recover(ctx); err != nil {
			return fmt.Errorf("finish what is decided: %w", err)
		}
	}
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error {
		s.batchLimits = batchLimits(ctx, admin, s.config.Output, s.config.DeadLetters)
		return nil
	})
	all.Go(func() (err error) {
		s.topicIDs, err = topicIDs(ctx, admin, s.config.Input)
		return err
	})
	if s.transactional() {
		all.Go(func() error { return initialise(ctx, s.config, s.producer) })
		all.Go(func() (err error) {
			s.implicitOffsets, err = TransactionEpochs(ctx, s.producer)
			return err
		})
	}
	return all.Wait()
}

func (s *session) maxBytes(topic string) int32 {
	if limit, ok := s.batchLimits[topic]; ok {
		return limit
	}
	return defaultBatchBytes
}

func (s *session) transactional() bool { return s.config.Guarantee == ExactlyOnce }

func (s *session) pass(ctx context.Context, step Step, records []*kgo.Record) error {
	if s.config.Hook == nil {
		return nil
	}
	if err := s.config.Hook(ctx, Passage{Step: step, Records: records}); err != nil {
		return fmt.Errorf("step %s: %w", step, err)
	}
	return nil
}

// run works until ctx ends, then finishes what is open within what is left of
// work, and returns nil.
func (s *session) run(ctx, work context.Context) error {
	pause := newBackoff(s.config)
	for {
		records, err := s.poll(ctx)
		if err == nil {
			err = s.process(work, records)
		}
		if err == nil && s.open != nil && (s.due() || ctx.Err() != nil) {
			err = s.commit(work)
			pause.Reset()
		}
		var f *failure
		if errors.As(err, &f) {
			wait, err := s.retreat(work, f)
			if err != nil {
				return err
			}
			if wait {
				sleep(ctx, pause.NextBackOff())
			} else {
				pause.Reset() // the next failure is another record's
			}
		} else if err != nil {
			return err
		}
		if ctx.Err() != nil && s.open == nil {
			return nil
		}
	}
}

// due says that the open transaction is to be committed.
func (s *session) due() bool {
	return len(s.open.input) >= s.config.MaxTransactionRecords || !time.Now().Before(s.open.ends)
}

// poll waits for records: while a transaction is open no longer than until it is
// due, otherwise for as long as it takes. From the first record on, and until the
// transaction ends, no rebalance happens.
func (s *session) poll(ctx context.Context) ([]*kgo.Record, error) {
	limit := s.config.MaxTransactionRecords
	if s.open != nil {
		limit -= len(s.open.input)
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, s.open.ends)
		defer cancel()
	}
	fetches := s.consumer.PollRecords(ctx, limit)
	for _, f := range fetches.Errors() {
		if err := s.fetchError(f); err != nil {
			return nil, err
		}
	}
	records := fetches.Records()
	if len(records) == 0 && s.open == nil {
		s.consumer.AllowRebalance()
	}
	return records, nil
}

// fetchError returns the errors that end the session.
func (s *session) fetchError(f kgo.FetchError) error {
	var (
		lost  *kgo.ErrDataLoss
		group *kgo.ErrGroupSession
	)
	switch {
	case errors.Is(f.Err, context.Canceled), errors.Is(f.Err, context.DeadlineExceeded):
		return nil
	case errors.As(f.Err, &lost):
		s.config.Logger.Error("the input topic no longer has records that were not consumed yet", "topic", f.Topic, "partition", f.Partition, "error", f.Err)
		return nil
	case errors.As(f.Err, &group):
		if fatalError(s.config, f.Err) == nil {
			s.config.Logger.Warn("the group session ended; the client joins again", "group", s.config.Group, "error", f.Err)
			return nil
		}
		return f.Err
	case kerr.IsRetriable(f.Err):
		s.config.Logger.Warn("fetching failed; the client goes on trying", "topic", f.Topic, "partition", f.Partition, "error", f.Err)
		return nil
	}
	return fmt.Errorf("fetch topic %s, partition %d: %w", f.Topic, f.Partition, f.Err)
}

// process handles polled records within the open transaction, or a new one.
func (s *session) process(ctx context.Context, records []*kgo.Record) error {
	if len(records) == 0 {
		return nil
	}
	if err := s.pass(ctx, Polled, records); err != nil {
		return err
	}
	if s.open == nil {
		var err error
		if s.open, err = s.begin(ctx); err != nil {
			return err
		}
	}
	s.open.add(records)
	for _, c := range s.suspects.chunks(records) {
		if c.verdict != nil {
			letter := deadLetter(s.config.DeadLetters, c.records[0], *c.verdict)
			s.open.produce(ctx, letter, c.records, true)
			s.open.handled(c.records)
			s.config.Logger.Error("dead letter", "topic", s.config.DeadLetters, "origin", positionOf(c.records[0]), "attempts", c.verdict.attempts, "cause", c.verdict.cause)
			continue
		}
		out, err := s.config.Handler(ctx, c.records)
		if err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("handler cut off while stopping: %w", err)
			}
			return &failure{batch: c.records, err: err}
		}
		if err := s.pass(ctx, Handled, c.records); err != nil {
			return err
		}
		for _, r := range out {
			if r.Topic == "" {
				r.Topic = s.config.Output
			}
			s.open.produce(ctx, r, c.records, false)
		}
		s.open.worked = append(s.open.worked, c.records...)
		s.open.handled(c.records)
	}
	return nil
}

// commit ends the open transaction and lets a waiting rebalance happen.
func (s *session) commit(ctx context.Context) error {
	if err := s.open.commit(ctx); err != nil {
		return err
	}
	s.suspects.settled(s.open.next)
	s.open = nil
	s.progress = true
	s.consumer.AllowRebalance()
	return nil
}

// retreat gives the open transaction up because records failed, and goes back to
// where it began. Without [ExactlyOnce] nothing can be taken back: what was handled
// before the failure is committed, and only the rest comes again.
func (s *session) retreat(ctx context.Context, f *failure) (wait bool, err error) {
	wait = s.suspects.learn(f)
	s.config.Logger.Warn("records failed; they come again", "first", positionOf(f.batch[0]), "batch", len(f.batch), "cause", f.err)
	tx := s.open
	back := tx.starts
	if s.transactional() {
		if err := tx.abort(); err != nil {
			return false, err
		}
	} else if tx.flush(ctx) == nil && len(tx.next) > 0 {
		if err := s.commitOffsets(ctx, tx.next); err != nil {
			return false, err
		}
		s.suspects.settled(tx.next)
		for p, at := range tx.next {
			back[p] = at
		}
	}
	s.open = nil
	s.consumer.SetOffsets(back.byTopic())
	s.consumer.AllowRebalance()
	return wait, nil
}

// close aborts what is open, unless it is decided, and closes both clients. A static member does not
// leave its group by closing.
func (s *session) close() error {
	var err error
	if s.open != nil && s.transactional() && !s.open.decided {
		err = s.open.abort()
	}
	s.consumer.AllowRebalance()
	// There is nothing to tell the group, and a join that waits for other members is
	// not waited for.
	_ = s.consumer.LeaveGroupContext(ended)
	s.consumer.Close()
	s.producer.Close()
	return err
}

// ended is a context that has ended.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()
