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

// session is the life of one set of clients. It ends at the first trouble with
// Kafka; the next one goes on from the committed offsets.
//
// Its transactions form a chain. Each has a producer of a ring, and a goroutine that ends
// it while the session's own fills the next one. When one fails, so do all after it, and
// none before it: see [gates].
type session struct {
	config   Config
	suspects *suspects
	consumer *kgo.Client
	ring     []*kgo.Client // the producers, each with a TransactionalID where there are transactions

	topicIDs        map[string]kadm.TopicID
	implicitOffsets bool
	batchLimits     map[string]int32

	flow   context.Context // that of the transactions
	cutOff context.CancelFunc
	alarm  alarm

	open      *transaction   // being filled; nil between transactions
	inFlight  []*transaction // filled and not known to have ended, the oldest first
	last      gates          // of the newest transaction
	begun     int            // transactions so far
	committed int            // of them, as far as it is known
}

// openSession connects. ctx ends the attempt; work outlives it, for what the
// session will do later.
func openSession(ctx, work context.Context, e *Engine) (*session, error) {
	s := &session{config: e.config, suspects: e.suspects, last: openGates()}
	s.flow, s.cutOff = context.WithCancel(work)
	s.alarm.arm(ctx)
	if err := s.connect(ctx); err != nil {
		s.cutOff()
		s.closeProducers()
		return nil, err
	}
	return s, nil
}

func (s *session) connect(ctx context.Context) (err error) {
	for i := range s.config.TransactionsInFlight {
		producer, err := newProducer(s.config, s.transactionalID(i), s.maxBytes)
		if err != nil {
			return err
		}
		s.ring = append(s.ring, producer)
	}
	// The producers first: offsets fetched before the earlier incarnation is fenced
	// could still be moved by it.
	if err := s.prepare(ctx); err != nil {
		return err
	}
	s.consumer, err = openConsumer(s.config, s.alarm.ring)
	return err
}

// prepare initialises the producers and asks what the session has to know, all at the
// same time: a process that was killed is to be back soon.
func (s *session) prepare(ctx context.Context) error {
	client := s.ring[0]
	admin := kadm.NewClient(client)
	if s.config.Participant != nil {
		if epochs, err := TransactionEpochs(ctx, client); err != nil || !epochs {
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
		for i, producer := range s.ring {
			all.Go(func() error { return initialise(ctx, s.transactionalID(i), producer) })
		}
		all.Go(func() error {
			ids := TransactionalIDs(s.config.Group, s.config.Instance)
			return fenceLeftovers(ctx, s.config, client, ids[len(s.ring):])
		})
		all.Go(func() (err error) {
			s.implicitOffsets, err = TransactionEpochs(ctx, client)
			return err
		})
	}
	return all.Wait()
}

func (s *session) transactionalID(slot int) string {
	return TransactionalID(s.config.Group, s.config.Instance, slot)
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

// run works until ctx ends, then finishes what is open within what is left of the
// session's time, and returns nil.
func (s *session) run(ctx context.Context) error {
	pause := newBackoff(s.config)
	before := 0 // committed at the last halt
	for {
		err := s.advance()
		if err == nil && s.alarm.context().Err() == nil {
			continue
		}
		// Told to stop, or a rebalance is to happen, or something has failed: everything
		// comes to its end first.
		var f *failure
		if err != nil && !errors.As(err, &f) {
			return err
		}
		failed := s.settle(f)
		if s.committed > before {
			pause.Reset()
		}
		before = s.committed
		wait, err := s.retreat(failed)
		if err != nil {
			return err
		}
		s.alarm.arm(ctx)
		s.consumer.AllowRebalance()
		if ctx.Err() != nil {
			return nil
		}
		if wait {
			sleep(ctx, pause.NextBackOff())
		} else if len(failed) > 0 {
			pause.Reset() // the next failure is another record's
		}
	}
}

// advance polls once and handles what has come. It begins a transaction where none is
// open, once there is a producer for it, and closes the open one when it is due.
func (s *session) advance() error {
	if s.open == nil {
		s.awaitProducer()
	}
	if s.alarm.context().Err() != nil {
		return nil
	}
	records, err := s.poll()
	if err == nil {
		err = s.process(records)
	}
	if err == nil && s.open != nil && s.due() {
		s.endOpen(nil)
	}
	return err
}

// awaitProducer waits until there is a producer for another transaction, and until the
// newest one may produce: input is handled one transaction ahead of what is sent, and no
// further. What arrives meanwhile is polled in one go afterwards, so that transactions
// grow under load, and memory does not.
func (s *session) awaitProducer() {
	if n := len(s.inFlight); n > 0 {
		<-s.inFlight[n-1].before.produced.settled
		if n == len(s.ring) {
			<-s.inFlight[0].done
		}
	}
	s.reap()
}

// reap takes note of transactions that are committed, up to the first that isn't.
func (s *session) reap() {
	for len(s.inFlight) > 0 {
		tx := s.inFlight[0]
		select {
		case <-tx.done:
		default:
			return
		}
		if tx.err != nil {
			return
		}
		s.suspects.settled(tx.next)
		s.committed++
		s.inFlight = s.inFlight[1:]
	}
}

// endOpen gives the open transaction no more records. It commits if cause is nil, and is
// given up otherwise.
func (s *session) endOpen(cause error) {
	s.open.cause = cause
	close(s.open.feed)
	s.inFlight = append(s.inFlight, s.open)
	s.open = nil
}

// due says that the open transaction is to be ended.
func (s *session) due() bool {
	return s.open.polled >= s.config.MaxTransactionRecords || !time.Now().Before(s.open.ends)
}

// poll waits for records: while a transaction is open no longer than until it is
// due, otherwise for as long as it takes. From the first record on no rebalance happens
// before [session.run] allows it.
func (s *session) poll() ([]*kgo.Record, error) {
	limit := s.config.MaxTransactionRecords
	ctx := s.alarm.context()
	if s.open != nil {
		limit -= s.open.polled
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
	return fetches.Records(), nil
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
func (s *session) process(records []*kgo.Record) error {
	if len(records) == 0 {
		return nil
	}
	ctx := s.flow
	if err := s.pass(ctx, Polled, records); err != nil {
		return err
	}
	if s.open == nil {
		if err := s.begin(ctx); err != nil {
			return err
		}
	}
	s.open.add(records)
	for _, c := range s.suspects.chunks(records) {
		if c.verdict != nil {
			letter := deadLetter(s.config.DeadLetters, c.records[0], *c.verdict)
			s.open.handled(outgoing{records: []*kgo.Record{letter}, batch: c.records, isDeadLetter: true})
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
		}
		s.open.handled(outgoing{records: out, batch: c.records})
	}
	return nil
}

// settle ends the open transaction, or gives it up because of f, waits until nothing is
// in flight, and returns what has failed: a transaction and all after it.
func (s *session) settle(f *failure) (failed []*transaction) {
	switch {
	case s.open == nil:
	case f != nil:
		s.endOpen(f)
	default:
		s.endOpen(nil)
	}
	for _, tx := range s.inFlight {
		<-tx.done
	}
	s.reap()
	failed, s.inFlight = s.inFlight, nil
	s.last = openGates()
	return failed
}

// retreat goes back to where failed transactions began, if they failed because of
// records and Kafka is well.
func (s *session) retreat(failed []*transaction) (wait bool, err error) {
	if len(failed) == 0 {
		return false, nil
	}
	back := make(offsets)
	var errs []error
	for i, tx := range failed {
		var f *failure
		switch {
		case errors.As(tx.err, &f):
			wait = s.suspects.learn(f) || wait
			s.config.Logger.Warn("records failed; they come again", "first", positionOf(f.batch[0]), "batch", len(f.batch), "cause", f.err)
		case i == 0 || !errors.Is(tx.err, errBefore):
			errs = append(errs, tx.err)
		}
		errs = append(errs, tx.abortError)
		for p, at := range tx.starts {
			if _, earlier := back[p]; !earlier {
				back[p] = at
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return false, err
	}
	s.consumer.SetOffsets(back.byTopic())
	return wait, nil
}

// close ends the session: what is in flight is finished or, where that takes too long or
// something before it has failed, aborted, unless it is decided. A static member does not
// leave its group by closing.
func (s *session) close() error {
	if s.open != nil {
		s.endOpen(errSessionEnds)
	}
	overdue := time.AfterFunc(abortTimeout, s.cutOff)
	defer overdue.Stop()
	var errs []error
	for _, tx := range s.inFlight {
		<-tx.done
		errs = append(errs, tx.abortError)
	}
	s.cutOff()
	s.consumer.AllowRebalance()
	// There is nothing to tell the group, and a join that waits for other members is
	// not waited for.
	_ = s.consumer.LeaveGroupContext(ended)
	s.consumer.Close()
	s.closeProducers()
	return errors.Join(errs...)
}

func (s *session) closeProducers() {
	for _, producer := range s.ring {
		producer.Close()
	}
}

var errSessionEnds = errors.New("the session ends")

// ended is a context that has ended.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()
