package fault

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/sandbox"
	"github.com/delivered-twice/delivered-twice/internal/stage"
	"github.com/delivered-twice/delivered-twice/internal/wire"
)

var brokerFrozen = Fault{
	Name:     lane.BrokerFrozen,
	Says:     "the broker stands still (SIGSTOP) while EndTxn is in flight, until the client has given up: before it is done, and before the answer is back",
	Disturbs: DisturbsKafka,
	Unfit: func(l lane.Lane, s *sandbox.Services) string {
		if reason := noTransactions(l); reason != "" {
			return reason
		}
		return why(s.KafkaControl())
	},
	Inject: func(ctx context.Context, s *stage.Stage) error {
		nodes, err := nodesByAddress(ctx, s)
		if err != nil {
			return err
		}
		proxy, err := s.ProxyKafka()
		if err != nil {
			return err
		}
		if err := consume(ctx, s); err != nil {
			return err
		}
		for _, when := range []wire.When{wire.BeforeForward, wire.BeforeAnswer} {
			if err := freeze(ctx, s, proxy, nodes, when); err != nil {
				return fmt.Errorf("freeze the broker at EndTxn, %s: %w", when, err)
			}
		}
		return nil
	},
}

// freeze freezes the broker that is about to get an EndTxn, or to have its answer
// passed on, until the member has closed the connection on which it waits for the
// answer. Stages that meet do so at the same time.
func freeze(ctx context.Context, s *stage.Stage, proxy *wire.Proxy, nodes map[string]int, when wire.When) (err error) {
	var (
		frozen error
		left   <-chan struct{}
		node   int
	)
	struck := proxy.At(wire.Trigger{On: wire.EndTxn, When: when, Do: func(strike *wire.Strike) {
		left, node = strike.Left(), nodes[strike.Conn.Server]
		if frozen = s.Meet(ctx); frozen == nil {
			frozen = s.Services.FreezeBroker(node)
		}
		if when == wire.BeforeAnswer {
			strike.Hold(left)
		}
	}})
	if err := s.Publish(ctx, stage.Batch); err != nil {
		return err
	}
	// Nothing is asked of Kafka from here on until it is thawed.
	if err := awaitClosed(ctx, s, "an EndTxn", struck); err != nil {
		return err
	}
	if frozen != nil {
		return frozen
	}
	defer func() { err = errors.Join(err, s.Services.ThawBroker(node)) }()
	s.Struck()
	s.Happened(fmt.Sprintf("the broker stood still (SIGSTOP) while %s was in flight: %s", requests[wire.EndTxn], said[when]))
	if err := awaitClosed(ctx, s, "the member to give up", left); err != nil {
		return err
	}
	if err := s.Meet(ctx); err != nil {
		return err
	}
	s.Happened("the broker woke up (SIGCONT)")
	if err := s.Services.ThawBroker(node); err != nil {
		return err
	}
	return s.AwaitConsumed(ctx)
}

// nodesByAddress returns the ids of the brokers by the addresses at which they are
// reached.
func nodesByAddress(ctx context.Context, s *stage.Stage) (map[string]int, error) {
	metadata, err := s.Admin.BrokerMetadata(ctx)
	if err != nil {
		return nil, fmt.Errorf("look up the brokers: %w", err)
	}
	nodes := make(map[string]int)
	for _, b := range metadata.Brokers {
		nodes[net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))] = int(b.NodeID)
	}
	return nodes, nil
}
