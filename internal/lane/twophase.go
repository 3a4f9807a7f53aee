package lane

import (
	"github.com/delivered-twice/delivered-twice/internal/kafkatx"
	"github.com/delivered-twice/delivered-twice/internal/twophase"
)

const (
	decidedTogether = "Postgres decides: the work and the decision to commit the Kafka transaction are one commit, and whoever finds the decision carries it out before anybody aborts."
	decidedTooLong  = "a transaction that is decided and cannot be ended before its timeout is aborted by the broker, and its work is in Postgres already."
	noIDs           = "every record is one more decision, and nothing in Postgres knows the event's id."
)

var twoPhase = Lane{
	Name:          "two-phase",
	Short:         "twophase",
	Says:          "one commit over Kafka and Postgres: atomic, until the Kafka transaction times out while nobody can end it",
	Program:       "eos-pipeline",
	Args:          []string{"--guarantee=two-phase", "--touch=postgres"},
	Scopes:        []Scope{Kafka, KafkaUncommitted, Postgres, Order},
	Steps:         names(twophase.Steps()...),
	Exposed:       names(kafkatx.Produced, kafkatx.OffsetsSent, twophase.Worked),
	Pauses:        names(kafkatx.Produced, kafkatx.Decided),
	Passings:      passingsOfTransactions,
	Progress:      GroupOffsets,
	Transactional: true,
	Claims: map[Scope]Claims{
		Kafka: eosKafka,
		KafkaUncommitted: {
			Always: eosUncommitted.Always,
			Under: with(eosUncommitted.Under, map[Fault]Claim{
				EndTxnCut:        once("an EndTxn is only sent when the transaction is decided, and then nobody aborts it any more."),
				ExpiredWhileDown: must(ShowsAborted, "the broker aborts a transaction that is open for too long, decided or not."),
			}),
		},
		Postgres: {
			Always: once(decidedTogether),
			Under: map[Fault]Claim{
				ExpiredWhileDown:                must(MayDuplicate, decidedTooLong+" The events come again and are done again; table lost_transactions has their ids."),
				BrokerFrozen:                    may(MayDuplicate, decidedTooLong),
				BrokerRestarted:                 may(MayDuplicate, decidedTooLong),
				BrokerKilled:                    may(MayDuplicate, decidedTooLong),
				PublisherDuplicates:             must(MayDuplicate, noIDs),
				PublisherDuplicatesTwoInstances: must(MayDuplicate, noIDs),
				Kill9AndDuplicates:              must(MayDuplicate, noIDs),
				OffsetsRewound:                  must(MayDuplicate, noIDs),
			},
		},
		Order: {Always: once("a partition's records are produced by one member at a time, and nobody reads the offsets of a decided transaction before it has ended.")},
	},
}
