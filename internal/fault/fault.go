// Package fault holds what is done to a lane, one file a fault. A fault is a small
// value: a name, what it needs of the services, to which lanes it can be applied, and
// how it is injected. Whatever it chooses, it draws from the stage's seed: the same
// seed makes the same choices.
package fault

import (
	"context"
	"fmt"
	"slices"

	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/nearest"
	"github.com/delivered-twice/delivered-twice/internal/sandbox"
	"github.com/delivered-twice/delivered-twice/internal/stage"
)

// Fault is one thing that is done to a lane.
type Fault struct {
	Name lane.Fault
	// Says is one line on what is done.
	Says string
	// Disturbs says which services are stopped, killed or frozen: whoever else uses
	// them meanwhile is disturbed too.
	Disturbs Disturbs
	// Unfit says why the fault can't be applied to a lane, or not on these services; ""
	// says that it can. nil fits every lane.
	Unfit func(l lane.Lane, s *sandbox.Services) string
	// Inject publishes events, lets members consume them, and does it. What is
	// unfinished when it returns is finished by [stage.Stage.Settle]. An error says that
	// the fault could not be injected, or that a member did what it must not.
	Inject func(ctx context.Context, s *stage.Stage) error
}

// Disturbs is what of the services a fault disturbs.
type Disturbs string

const (
	DisturbsNothing  Disturbs = ""
	DisturbsKafka    Disturbs = "Kafka"
	DisturbsPostgres Disturbs = "Postgres"
)

// catalogue are all faults, in the order in which they are shown.
var catalogue = []Fault{
	none,
	kill9,
	sigterm,
	secondInstance,
	rollingRestart,
	zombie,
	race,
	foreignTransactionalID,
	commitCut,
	endTxnCut,
	produceCut,
	offsetCommitCut,
	brokerFrozen,
	brokerRestarted,
	brokerKilled,
	postgresRestarted,
	postgresKilled,
	publisherDuplicates,
	publisherDuplicatesTwoInstances,
	offsetsRewound,
	senderRetries,
	purged,
	poison,
	poisonBatch,
	transactionTimeout,
	transactionalIDExpired,
	expiredWhileDown,
	apiKilled,
	responseDropped,
	keyExpired,
	relayKilled,
}

// All returns every fault, in the order in which they are shown.
func All() []Fault { return slices.Clone(catalogue) }

// Slug is the name as a command line takes it: without blanks.
func (f Fault) Slug() string { return lane.Slug(string(f.Name)) }

// Find returns the fault of that name or slug. The error names those that are near.
func Find(name string) (Fault, error) {
	var slugs []string
	for _, f := range catalogue {
		if string(f.Name) == name || f.Slug() == lane.Slug(name) {
			return f, nil
		}
		slugs = append(slugs, f.Slug())
	}
	return Fault{}, fmt.Errorf("there is no fault %q%s; compare faults lists all", name, nearest.Hint(lane.Slug(name), slugs))
}
