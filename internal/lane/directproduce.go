package lane

import "github.com/delivered-twice/delivered-twice/internal/pginbox"

// gap is what is claimed of records that a handler sends from inside its Postgres
// transaction.
var gap = map[Fault]Claim{
	Kill9:             must(MayDuplicate, "the record is sent before Postgres commits: a kill in between rolls the dedupe row back but cannot call the record back, and the next attempt sends it again."),
	Zombie:            may(MayDuplicate, "a transaction that is rolled back cannot call its records back."),
	Race:              may(MayDuplicate, "a transaction that is rolled back cannot call its records back."),
	CommitCut:         must(MayDuplicate, "a COMMIT that never arrived is a rollback, and the records were sent before it."),
	PostgresRestarted: may(MayDuplicate, "a transaction that is rolled back cannot call its records back."),
	PostgresKilled:    may(MayDuplicate, "a transaction that is rolled back cannot call its records back."),
	ProduceCut:        may(MayDuplicate, "a handler that fails because its record could not be sent is tried again, records and all."),
	BrokerRestarted:   may(MayDuplicate, "a handler that fails because its record could not be sent is tried again, records and all."),
	BrokerKilled:      may(MayDuplicate, "a handler that fails because its record could not be sent is tried again, records and all."),
	SIGTERM:           may(MayDuplicate, "a transaction that is rolled back cannot call its records back."),
	Purged:            must(MayDuplicate, rowsGone),
	Kill9AndDuplicates: must(MayDuplicate,
		"the inbox skips what the publisher sent twice, but a kill between sending and the commit of Postgres makes the next attempt send again."),
}

var inboxDirectProduce = Lane{
	Name:    InboxDirectProduce,
	Short:   "direct",
	Says:    "produces to Kafka from inside the Postgres transaction: Kafka duplicates, Postgres holds",
	Program: "inbox-pipeline",
	Args:    []string{"--guard=inbox", "--publish=direct"},
	Scopes:  []Scope{Kafka, KafkaUncommitted, Postgres},
	Steps:   inboxSteps,
	// It is the warehouse handler that sends records.
	Exposed:  []string{string(pginbox.Worked) + "@warehouse"},
	Pauses:   names(pginbox.Polled),
	Passings: passingsOfPolls,
	Progress: GroupOffsets,
	Forgets:  InboxRows,
	Claims: map[Scope]Claims{
		Kafka: {
			Always: once("no attempt had to be repeated, so the records that Postgres knows nothing of were sent once by luck."),
			Under:  gap,
		},
		KafkaUncommitted: {
			Always: once("the records are sent outside any Kafka transaction and look the same on either isolation level."),
			Under:  gap,
		},
		Postgres: {
			Always: once(inboxHolds),
			Under:  map[Fault]Claim{Purged: must(MayDuplicate, rowsGone)},
		},
	},
}
