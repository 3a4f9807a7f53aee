package lane

import "github.com/delivered-twice/delivered-twice/internal/kafkatx"

const (
	eosHolds     = "output records and input offsets commit in one Kafka transaction: what a lost attempt produced is aborted and its offsets stay where they were."
	leavesAborts = "records are in the topic before their transaction ends, so the default isolation level shows an aborted attempt beside the one that replaced it."
	secondRecord = twoRecords
)

// eosKafka is what Kafka transactions claim of their output as a read_committed
// reader sees it.
var eosKafka = Claims{
	Always: once(eosHolds),
	Under: map[Fault]Claim{
		PublisherDuplicates:             must(MayDuplicate, secondRecord),
		PublisherDuplicatesTwoInstances: must(MayDuplicate, secondRecord),
		Kill9AndDuplicates:              must(MayDuplicate, secondRecord+" The kills added nothing."),
		OffsetsRewound:                  must(MayDuplicate, "every record is consumed again, in transactions of its own."),
		Purged:                          must(MayDuplicate, "every record is consumed again, in transactions of its own."),
	},
}

// eosUncommitted is what they claim of it as everybody else sees it.
var eosUncommitted = Claims{
	Always: may(ShowsAborted, leavesAborts),
	Under: map[Fault]Claim{
		NoFault:                         once("nothing is aborted, so there is nothing that a reader on the default isolation level could see too much."),
		Kill9:                           must(ShowsAborted, leavesAborts),
		ForeignTransactionalID:          must(ShowsAborted, "whoever initialises the transactional id aborts what is open under it, and the default isolation level shows that."),
		EndTxnCut:                       may(ShowsAborted, leavesAborts),
		TransactionTimeout:              must(ShowsAborted, "the broker aborts a transaction that is open for too long, and the default isolation level shows that."),
		PublisherDuplicates:             must(MayDuplicateAndShowAborted, "both records were processed, each in a transaction that committed."),
		PublisherDuplicatesTwoInstances: must(MayDuplicateAndShowAborted, "both records were processed, each in a transaction that committed."),
		Kill9AndDuplicates:              must(MayDuplicateAndShowAborted, "the publisher's duplicates are processed, and the default isolation level shows what killed attempts left, too."),
		OffsetsRewound:                  must(MayDuplicateAndShowAborted, "every record is consumed again, in transactions of its own."),
		Purged:                          must(MayDuplicateAndShowAborted, "every record is consumed again, in transactions of its own."),
	},
}

var kafkaEOS = Lane{
	Name:          "kafka eos",
	Short:         "keos",
	Says:          "input offsets and output in one Kafka transaction: exactly once for read_committed readers, in order",
	Program:       "eos-pipeline",
	Args:          []string{"--guarantee=exactly-once", "--transactions-in-flight=1"},
	Scopes:        []Scope{Kafka, KafkaUncommitted, Order},
	Steps:         eosSteps,
	Exposed:       names(kafkatx.Produced, kafkatx.OffsetsSent),
	Pauses:        names(kafkatx.Polled, kafkatx.Produced),
	Passings:      passingsOfTransactions,
	Progress:      GroupOffsets,
	Transactional: true,
	Claims: map[Scope]Claims{
		Kafka:            eosKafka,
		KafkaUncommitted: eosUncommitted,
		Order:            {Always: once("a partition's records are produced by one member at a time, and what a zombie produced is aborted: its offsets are refused for their generation (KIP-447).")},
	},
}

const notUndone = "aborting a Kafka transaction does not undo rows that Postgres has already committed, and the next attempt gets the same events and writes them again."

var eosPostgres = Lane{
	Name:          EOSPostgres,
	Short:         "eos",
	Says:          "writes to Postgres from inside a Kafka transaction: Kafka holds, Postgres duplicates",
	Program:       "eos-pipeline",
	Args:          []string{"--guarantee=exactly-once", "--touch=postgres"},
	Scopes:        []Scope{Kafka, KafkaUncommitted, Postgres},
	Steps:         eosSteps,
	Exposed:       names(kafkatx.Produced, kafkatx.OffsetsSent),
	Pauses:        names(kafkatx.Handled),
	Passings:      passingsOfTransactions,
	Progress:      GroupOffsets,
	Transactional: true,
	Claims: map[Scope]Claims{
		Kafka:            eosKafka,
		KafkaUncommitted: eosUncommitted,
		Postgres: {
			Always: may(MayDuplicate, notUndone),
			Under: map[Fault]Claim{
				NoFault:                         once("no attempt has to be repeated, so the rows that Kafka knows nothing of are written once by luck."),
				Poison:                          may(MayDuplicate, "an attempt that fails on the poison is aborted, and the rows of its other events are there already."),
				Kill9:                           must(MayDuplicate, notUndone),
				Zombie:                          must(MayDuplicate, notUndone),
				ForeignTransactionalID:          must(MayDuplicate, notUndone),
				CommitCut:                       must(MayDuplicate, "a COMMIT of Postgres whose answer is lost was done; the Kafka transaction is aborted and the rows stay."),
				TransactionTimeout:              must(MayDuplicate, notUndone),
				PublisherDuplicates:             must(MayDuplicate, "both records were processed, and nothing in Postgres knew the event's id."),
				PublisherDuplicatesTwoInstances: must(MayDuplicate, "both records were processed, and nothing in Postgres knew the event's id."),
				Kill9AndDuplicates:              must(MayDuplicate, "neither the publisher's duplicates nor the rows of aborted attempts are known to anything in Postgres."),
				OffsetsRewound:                  must(MayDuplicate, "every record is consumed again, and nothing in Postgres knows the event's id."),
			},
		},
	},
}

var eosInbox = Lane{
	Name:          "eos + inbox",
	Short:         "eosinbox",
	Says:          "an inbox inside a Kafka transaction, committed first: both hold",
	Program:       "eos-pipeline",
	Args:          []string{"--guarantee=exactly-once", "--touch=inbox"},
	Scopes:        []Scope{Kafka, KafkaUncommitted, Postgres},
	Steps:         eosSteps,
	Exposed:       names(kafkatx.Produced, kafkatx.OffsetsSent),
	Pauses:        names(kafkatx.Handled),
	Passings:      passingsOfTransactions,
	Progress:      GroupOffsets,
	Transactional: true,
	Forgets:       InboxRows,
	Claims: map[Scope]Claims{
		Kafka:            eosKafka,
		KafkaUncommitted: eosUncommitted,
		Postgres: {
			Always: once("the inbox commits before the Kafka transaction does: an attempt that is repeated finds its rows and only produces again."),
			Under:  map[Fault]Claim{Purged: must(MayDuplicate, rowsGone)},
		},
	},
}
