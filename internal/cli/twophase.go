package cli

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/kafkatx"
	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/twophase"
	"github.com/delivered-twice/delivered-twice/internal/warehouse"
)

// guaranteeTwoPhase is the one guarantee that package kafkatx doesn't give alone.
const guaranteeTwoPhase = "two-phase"

// guarantees returns the names that --guarantee may have.
func guarantees() []string {
	var names []string
	for _, g := range kafkatx.Guarantees() {
		names = append(names, string(g))
	}
	return append(names, guaranteeTwoPhase)
}

func (p *eosPipeline) twoPhase() bool { return p.guarantee == guaranteeTwoPhase }

// checkTwoPhase refuses what would have no other resource, or decide nothing in time.
func (p *eosPipeline) checkTwoPhase() error {
	switch {
	case !p.twoPhase():
		return nil
	case p.touch != touchPostgres:
		return Usage(fmt.Errorf("--guarantee=%s commits Kafka and Postgres together: it goes with --touch=%s, not with --touch=%s", guaranteeTwoPhase, touchPostgres, p.touch))
	case p.commitInterval >= p.transactionTimeout/2:
		return Usage(fmt.Errorf("--commit-interval is %v, half of --transaction-timeout %v or more: with --guarantee=%s no transaction would be decided in time; shorten the interval", p.commitInterval, p.transactionTimeout, guaranteeTwoPhase))
	}
	return nil
}

// coordinator does the work in Postgres where the transaction is decided, and not where
// its events are handled. leave closes its own Kafka client.
func (p *eosPipeline) coordinator(pool *pgxpool.Pool, hook kafkatx.Hook) (c *twophase.Coordinator, leave func(), err error) {
	client, err := kgo.NewClient(p.client()...)
	if err != nil {
		return nil, nil, err
	}
	return twophase.New(pool, client, twophase.Options{
		Group:              p.group,
		Instance:           p.instance,
		TransactionTimeout: p.transactionTimeout,
		Work:               p.workOf,
		ID:                 order.ID,
		Hook:               hook,
		Logger:             p.logger(),
	}), client.Close, nil
}

// workOf does the work of records that the handler has found to be events.
func (p *eosPipeline) workOf(ctx context.Context, tx pgx.Tx, records []*kgo.Record) error {
	effects := make([]warehouse.Effect, len(records))
	for i, in := range records {
		var err error
		if effects[i], err = warehouse.FromRecord(in); err != nil {
			return kafkatx.RecordErrors{{Record: in, Err: kafkatx.Permanent(err)}}
		}
	}
	if err := warehouse.Pick(ctx, tx, p.attempt, effects); err != nil {
		return err
	}
	return warehouse.Award(ctx, tx, p.attempt, effects)
}
