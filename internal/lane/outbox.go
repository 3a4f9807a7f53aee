package lane

import (
	"slices"

	"github.com/delivered-twice/delivered-twice/internal/outbox"
	"github.com/delivered-twice/delivered-twice/internal/pginbox"
)

// unstamped is what is claimed of records that a relay publishes first and stamps then.
var unstamped = map[Fault]Claim{
	Kill9:             must(MayDuplicate, "a relay that dies between publishing rows and stamping them leaves rows that the next one publishes again, with the same event ids."),
	RelayKilled:       must(MayDuplicate, "a relay that dies between publishing rows and stamping them leaves rows that the next one publishes again, with the same event ids."),
	Zombie:            must(MayDuplicate, "a relay that stands still between publishing and stamping loses its transaction, and another publishes its rows again."),
	SecondInstance:    may(MayDuplicate, "a relay that is slower than its timeout, a short one here, loses its rows to another, which publishes them again."),
	CommitCut:         may(MayDuplicate, "stamps whose COMMIT never arrived are not there, and the rows were published before it."),
	PostgresRestarted: may(MayDuplicate, "stamps are rolled back with the connection, and the rows were published before them."),
	PostgresKilled:    may(MayDuplicate, "stamps are rolled back with the connection, and the rows were published before them."),
	BrokerRestarted:   may(MayDuplicate, "rows that are not acknowledged in time are published again, and the broker may have them."),
	BrokerKilled:      may(MayDuplicate, "rows that are not acknowledged in time are published again, and the broker may have them."),
	Purged:            must(MayDuplicate, rowsGone),
}

var inboxOutbox = Lane{
	Name:    "inbox + outbox",
	Short:   "outbox",
	Says:    "writes what it publishes into a table, in the Postgres transaction, and a relay publishes it: never lost, and duplicates in Kafka carry the same event id",
	Program: "inbox-pipeline",
	Args:    []string{"--guard=inbox", "--publish=outbox"},
	Scopes:  []Scope{Kafka, KafkaUncommitted, Postgres, Order},
	Steps:   slices.Concat(inboxSteps, names(outbox.Steps()...)),
	Exposed: names(outbox.Published),
	// The relay's shards are others' only when the server has ended its transaction.
	Pauses:   append(names(pginbox.Polled), names(outbox.Published)...),
	Passings: passingsOfPolls,
	Progress: GroupOffsets,
	Outbox:   true,
	Forgets:  InboxRows,
	Claims: map[Scope]Claims{
		Kafka: {
			Always: once("what is to be published commits with the work, and no relay died or stood still between publishing it and stamping it."),
			Under:  unstamped,
		},
		KafkaUncommitted: {
			Always: once("the records are sent outside any Kafka transaction and look the same on either isolation level."),
			Under:  unstamped,
		},
		Postgres: {
			Always: once(inboxHolds),
			Under:  map[Fault]Claim{Purged: must(MayDuplicate, rowsGone)},
		},
		// Of copies the first counts. Each copy of an event comes after a copy of every
		// earlier event of its key, whoever publishes it.
		Order: {Always: once("events of a key are worked on one after the other, and a relay publishes the rows of a key in that order, from the first that is not stamped on.")},
	},
}
