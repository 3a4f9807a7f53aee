package fault

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/pginbox"
	"github.com/delivered-twice/delivered-twice/internal/sandbox"
	"github.com/delivered-twice/delivered-twice/internal/stage"
)

var brokerRestarted = Fault{
	Name:     lane.BrokerRestarted,
	Says:     "the only broker, or one of several, is stopped in an orderly way and started again, in the middle of a stream of events",
	Disturbs: DisturbsKafka,
	Unfit: func(l lane.Lane, s *sandbox.Services) string {
		if reason := noKafka(l); reason != "" {
			return reason
		}
		return why(s.KafkaControl())
	},
	Inject: func(ctx context.Context, s *stage.Stage) error {
		node := anyOf(s, s.Services.Nodes())
		return disturbed(ctx, s, stage.Disturbance{
			Struck: "a broker was stopped",
			Strike: func(ctx context.Context) error { return s.Services.StopBroker(ctx, node) },
			Mended: "the broker was started again",
			Mend:   func(ctx context.Context) error { return s.Services.StartBroker(ctx, node) },
		})
	},
}

// majority is how many brokers there must be for one to be dispensable.
const majority = 3

var brokerKilled = Fault{
	Name:     lane.BrokerKilled,
	Says:     "one of three brokers is killed with SIGKILL and started again, in the middle of a stream of events: the one that coordinates the transactions, or that leads an output partition",
	Disturbs: DisturbsKafka,
	Unfit: func(l lane.Lane, s *sandbox.Services) string {
		if reason := noKafka(l); reason != "" {
			return reason
		}
		if err := s.KafkaControl(); err != nil {
			return err.Error()
		}
		if n := len(s.Nodes()); n < majority {
			return fmt.Sprintf("it takes %d brokers to do without one, and there is %d", majority, n)
		}
		return ""
	},
	Inject: func(ctx context.Context, s *stage.Stage) error {
		var node int
		return disturbed(ctx, s, stage.Disturbance{
			Struck: "a broker was killed (SIGKILL)",
			Strike: func(ctx context.Context) (err error) {
				if node, err = leading(ctx, s); err != nil {
					return err
				}
				return s.Services.KillBroker(ctx, node)
			},
			Mended: "the broker was started again",
			Mend:   func(ctx context.Context) error { return s.Services.StartBroker(ctx, node) },
		})
	},
}

// leading returns the broker that the lane can spare least: the coordinator of its
// transactions, or the leader of a partition of its output.
func leading(ctx context.Context, s *stage.Stage) (int, error) {
	if s.Lane.Transactional {
		id := transactionalID(s)
		found := s.Admin.FindTxnCoordinators(ctx, id)
		if err := found.Error(); err != nil {
			return 0, fmt.Errorf("find the coordinator of transactional id %s: %w", id, err)
		}
		return int(found[id].NodeID), nil
	}
	topics, err := s.Admin.ListTopics(ctx, s.Output)
	if err != nil {
		return 0, fmt.Errorf("find a leader in topic %s: %w", s.Output, err)
	}
	return int(topics[s.Output].Partitions[0].Leader), nil
}

var postgresRestarted = Fault{
	Name:     lane.PostgresRestarted,
	Says:     "Postgres is stopped in an orderly way and started again, in the middle of a stream of events",
	Disturbs: DisturbsPostgres,
	Unfit:    noPostgres,
	Inject: func(ctx context.Context, s *stage.Stage) error {
		return disturbed(ctx, s, stage.Disturbance{
			Struck: "Postgres was stopped",
			Strike: s.Services.StopPostgres,
			Mended: postgresStarted,
			Mend:   s.Services.StartPostgres,
		})
	},
}

const postgresStarted = "Postgres was started again"

var postgresKilled = Fault{
	Name:     lane.PostgresKilled,
	Says:     "every process of Postgres is killed with SIGKILL, in the middle of a stream of events, and it is started again",
	Disturbs: DisturbsPostgres,
	Unfit:    noPostgres,
	Inject: func(ctx context.Context, s *stage.Stage) error {
		m, err := s.Enter(stage.Entry{})
		if err != nil {
			return err
		}
		return underTrickle(ctx, s, func() error { return crash(ctx, s, m) })
	},
}

// crash kills Postgres right after commits of lanes that do not wait for their WAL to
// be on disk. The other lanes stand still by then: each commit that waits for its own
// WAL puts everybody's there.
func crash(ctx context.Context, s *stage.Stage, m *stage.Member) error {
	if err := inTheMiddle(ctx, s, m); err != nil {
		return err
	}
	if !s.Lane.Asynchronous {
		if err := errors.Join(m.Signal(syscall.SIGSTOP), s.API.Signal(syscall.SIGSTOP)); err != nil {
			return err
		}
	}
	if err := s.Meet(ctx); err != nil {
		return err
	}
	if s.Lane.Asynchronous {
		// First commits that are acknowledged, and then commits that are not yet: none of the
		// latter is on disk.
		if err := errors.Join(s.Services.FreezeWALWriter(ctx), inTheMiddle(ctx, s, m), moreOf(ctx, s, m, string(pginbox.Committed))); err != nil {
			return err
		}
	}
	err := s.Together(ctx, stage.Disturbance{
		Struck: "every process of Postgres was killed (SIGKILL)",
		Strike: s.Services.KillPostgres,
		Mended: postgresStarted,
		Mend:   s.Services.StartPostgres,
	})
	if err := errors.Join(err, s.API.Signal(syscall.SIGCONT), m.Continue()); err != nil {
		return err
	}
	return inTheMiddle(ctx, s, m)
}

// disturbed has a member consume a stream of events, and disturbs the services in the
// middle of it, once for all stages that meet.
func disturbed(ctx context.Context, s *stage.Stage, d stage.Disturbance) error {
	m, err := s.Enter(stage.Entry{})
	if err != nil {
		return err
	}
	return underTrickle(ctx, s, func() error {
		if err := inTheMiddle(ctx, s, m); err != nil {
			return err
		}
		if err := s.Together(ctx, d); err != nil {
			return err
		}
		return inTheMiddle(ctx, s, m)
	})
}

// inTheMiddle waits until a member has done a few more batches.
func inTheMiddle(ctx context.Context, s *stage.Stage, m *stage.Member) error {
	return moreOf(ctx, s, m, lastStep(s.Lane))
}

// moreOf waits until a member has passed a step a few more times.
func moreOf(ctx context.Context, s *stage.Stage, m *stage.Member, step string) error {
	const few = 3
	passed, err := m.Passed(step)
	if err != nil {
		return err
	}
	return s.AwaitStep(ctx, m, step, passed+few)
}

func noPostgres(l lane.Lane, s *sandbox.Services) string {
	if !l.Writes(lane.Postgres) {
		return "the lane does not use Postgres"
	}
	return why(s.PostgresControl())
}

// noKafka says why a fault of Kafka is no fault of a lane.
func noKafka(l lane.Lane) string {
	if l.Progress == lane.Webhooks {
		return "there is no Kafka"
	}
	return ""
}

// why is the message of an error; "" where there is none.
func why(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func anyOf(s *stage.Stage, nodes []int) int {
	return nodes[s.Random.IntN(len(nodes))]
}
