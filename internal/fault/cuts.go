package fault

import (
	"context"
	"fmt"

	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/sandbox"
	"github.com/delivered-twice/delivered-twice/internal/stage"
	"github.com/delivered-twice/delivered-twice/internal/wire"
)

var commitCut = Fault{
	Name: lane.CommitCut,
	Says: "the connection to Postgres is cut while COMMIT is in flight: before it gets there, and before the answer is back",
	Unfit: func(l lane.Lane, _ *sandbox.Services) string {
		if !l.Writes(lane.Postgres) {
			return "the lane does not use Postgres"
		}
		return ""
	},
	Inject: func(ctx context.Context, s *stage.Stage) error {
		proxy, err := s.ProxyPostgres()
		if err != nil {
			return err
		}
		// Handlers commit on connections of their own, and try again: so many in a row
		// that none of them is spared.
		return cut(ctx, s, proxy, wire.Commit, 3)
	},
}

var endTxnCut = Fault{
	Name:   lane.EndTxnCut,
	Says:   "the connection to Kafka is cut while EndTxn is in flight: before it gets there, and before the answer is back",
	Unfit:  func(l lane.Lane, _ *sandbox.Services) string { return noTransactions(l) },
	Inject: func(ctx context.Context, s *stage.Stage) error { return cutKafka(ctx, s, wire.EndTxn) },
}

var produceCut = Fault{
	Name: lane.ProduceCut,
	Says: "the connection to Kafka is cut while records are in flight: before they get there, and before the answer is back",
	Unfit: func(l lane.Lane, _ *sandbox.Services) string {
		if !l.Writes(lane.Kafka) {
			return "the lane produces nothing"
		}
		return ""
	},
	Inject: func(ctx context.Context, s *stage.Stage) error { return cutKafka(ctx, s, wire.Produce) },
}

var offsetCommitCut = Fault{
	Name:  lane.OffsetCommitCut,
	Says:  "the connection to Kafka is cut while the acknowledgement is in flight: before it gets there, and before the answer is back",
	Unfit: func(l lane.Lane, _ *sandbox.Services) string { return noKafka(l) },
	Inject: func(ctx context.Context, s *stage.Stage) error {
		kind := wire.OffsetCommit
		switch {
		case s.Lane.Transactional:
			kind = wire.TxnOffsetCommit
		case s.Lane.Progress == lane.SharedRecords:
			kind = wire.ShareAcknowledge
		}
		return cutKafka(ctx, s, kind)
	},
}

func cutKafka(ctx context.Context, s *stage.Stage, kind wire.Kind) error {
	proxy, err := s.ProxyKafka()
	if err != nil {
		return err
	}
	return cut(ctx, s, proxy, kind, 1)
}

// cut has a member consume, and cuts requests of a kind, some in a row: first before
// the server gets them, so that they are not done, then before the client gets the
// answer, so that they are, and nobody knows.
func cut(ctx context.Context, s *stage.Stage, proxy *wire.Proxy, kind wire.Kind, inARow int) error {
	// What a member does when it starts is not what is to be cut.
	if err := consume(ctx, s); err != nil {
		return err
	}
	for _, when := range []wire.When{wire.BeforeForward, wire.BeforeAnswer} {
		var all []<-chan struct{}
		for n := range inARow {
			all = append(all, proxy.At(wire.Trigger{On: kind, Nth: n + 1, When: when, Do: func(strike *wire.Strike) {
				s.Happened(fmt.Sprintf("the connection was cut while %s was in flight: %s", requests[kind], said[when]))
				strike.Cut()
			}}))
		}
		for _, struck := range all {
			if err := s.Publish(ctx, stage.Batch); err != nil {
				return err
			}
			if err := awaitClosed(ctx, s, fmt.Sprintf("a %s to be cut, %s", kind, when), struck); err != nil {
				return err
			}
			s.Struck()
		}
		if err := s.AwaitConsumed(ctx); err != nil {
			return err
		}
	}
	return nil
}

// requests are the names that requests have in their protocols.
var requests = map[wire.Kind]string{
	wire.Commit:           "COMMIT",
	wire.EndTxn:           "EndTxn",
	wire.Produce:          "Produce",
	wire.OffsetCommit:     "OffsetCommit",
	wire.TxnOffsetCommit:  "TxnOffsetCommit",
	wire.ShareAcknowledge: "ShareAcknowledge",
}

// said says when a connection was cut.
var said = map[wire.When]string{
	wire.BeforeForward: "it did not get there",
	wire.BeforeAnswer:  "it got there, and its answer did not come back",
}

// awaitClosed waits until a channel is closed.
func awaitClosed(ctx context.Context, s *stage.Stage, what string, channel <-chan struct{}) error {
	return s.Await(ctx, what, func(context.Context) (bool, error) {
		select {
		case <-channel:
			return true, nil
		default:
			return false, nil
		}
	})
}
