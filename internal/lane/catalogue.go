package lane

import (
	"github.com/delivered-twice/delivered-twice/internal/kafkatx"
	"github.com/delivered-twice/delivered-twice/internal/pginbox"
)

// Names of lanes that are spoken of outside the catalogue.
const (
	EOSPostgres        = "eos + postgres"
	InboxDirectProduce = "inbox + direct produce"
)

var catalogue = []Lane{
	{
		Name:    EOSPostgres,
		Short:   "eos",
		Program: "eos-pipeline",
		Args:    []string{"--guarantee=exactly-once", "--touch=postgres"},
		Scopes:  []Scope{Kafka, KafkaUncommitted, Postgres},
		Steps:   names(kafkatx.Steps(kafkatx.ExactlyOnce)...),
		Exposed: names(kafkatx.Produced, kafkatx.OffsetsSent),
		// A transaction a commit interval.
		Passings: 5,
		Claims: map[Fault]map[Scope]Claim{
			NoFault: {
				Kafka: {Says: ClaimsOnce,
					Why: "every Kafka transaction commits its output records together with the input offsets, at the first attempt."},
				KafkaUncommitted: {Says: ClaimsOnce,
					Why: "nothing is aborted, so there is nothing that a reader on the default isolation level could see too much."},
				Postgres: {Says: ClaimsOnce,
					Why: "no attempt has to be repeated, so the rows that Kafka knows nothing of are written once by luck."},
			},
			Kill9: {
				Kafka: {Says: ClaimsOnce,
					Why: "output records and input offsets commit in one Kafka transaction: what a killed attempt produced is aborted and its offsets stay where they were."},
				KafkaUncommitted: {Says: ShowsAborted, MustShow: true,
					Why: "records are in the topic before their transaction ends, so the default isolation level shows a killed attempt beside the one that replaced it."},
				Postgres: {Says: MayDuplicate, MustShow: true,
					Why: "aborting a Kafka transaction does not undo rows that Postgres has already committed, and the next attempt gets the same events and writes them again."},
			},
			PublisherDuplicates: {
				Kafka: {Says: MayDuplicate, MustShow: true,
					Why: "an event that its publisher sent twice is two records at two offsets, and Kafka transactions know offsets and no event ids."},
				KafkaUncommitted: {Says: MayDuplicate, MustShow: true,
					Why: "both records were processed, each in a transaction that committed."},
				Postgres: {Says: MayDuplicate, MustShow: true,
					Why: "both records were processed, and nothing in Postgres knew the event's id."},
			},
			Kill9AndDuplicates: {
				Kafka: {Says: MayDuplicate, MustShow: true,
					Why: "an event that its publisher sent twice is two records at two offsets, and Kafka transactions know offsets and no event ids; the kills added nothing."},
				KafkaUncommitted: {Says: MayDuplicateAndShowAborted, MustShow: true,
					Why: "the publisher's duplicates are processed, and the default isolation level shows what killed attempts left, too."},
				Postgres: {Says: MayDuplicate, MustShow: true,
					Why: "neither the publisher's duplicates nor the rows of aborted attempts are known to anything in Postgres."},
			},
		},
	},
	{
		Name:    InboxDirectProduce,
		Short:   "inbox",
		Program: "inbox-pipeline",
		Args:    []string{"--guard=inbox", "--publish=direct"},
		Scopes:  []Scope{Kafka, KafkaUncommitted, Postgres},
		Steps:   names(pginbox.Steps()...),
		// It is the warehouse handler that sends records.
		Exposed: []string{string(pginbox.Worked) + "@warehouse"},
		// A transaction a poll, and a poll every few milliseconds.
		Passings: 50,
		Claims: map[Fault]map[Scope]Claim{
			NoFault: {
				Kafka: {Says: ClaimsOnce,
					Why: "no attempt has to be repeated, so the records that Postgres knows nothing of are sent once by luck."},
				KafkaUncommitted: {Says: ClaimsOnce,
					Why: "the records are sent outside any Kafka transaction and look the same on either isolation level."},
				Postgres: {Says: ClaimsOnce,
					Why: "every Postgres transaction commits the dedupe row together with the work, at the first attempt."},
			},
			Kill9: {
				Kafka: {Says: MayDuplicate, MustShow: true,
					Why: "the record is sent before Postgres commits: a kill in between rolls the dedupe row back but cannot call the record back, and the next attempt sends it again."},
				KafkaUncommitted: {Says: MayDuplicate, MustShow: true,
					Why: "no Kafka transaction holds the records back, so both copies are visible on either isolation level."},
				Postgres: {Says: ClaimsOnce,
					Why: "the dedupe row and the work commit in one Postgres transaction: a redelivered event either finds its row and is skipped, or finds neither and is done."},
			},
			PublisherDuplicates: {
				Kafka: {Says: ClaimsOnce,
					Why: "the inbox knows the event's id and skips the second record, so its handler sends nothing for it."},
				KafkaUncommitted: {Says: ClaimsOnce,
					Why: "the records are sent outside any Kafka transaction and look the same on either isolation level."},
				Postgres: {Says: ClaimsOnce,
					Why: "the second record has the event's id, finds its row and is skipped."},
			},
			Kill9AndDuplicates: {
				Kafka: {Says: MayDuplicate, MustShow: true,
					Why: "the inbox skips what the publisher sent twice, but a kill between sending and the commit of Postgres makes the next attempt send again."},
				KafkaUncommitted: {Says: MayDuplicate, MustShow: true,
					Why: "no Kafka transaction holds the records back, so both copies are visible on either isolation level."},
				Postgres: {Says: ClaimsOnce,
					Why: "whoever delivers an event again, a publisher or a broker, it finds its row and is skipped."},
			},
		},
	},
}
