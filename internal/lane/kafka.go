package lane

import "github.com/delivered-twice/delivered-twice/internal/kafkatx"

// twiceInKafka is what is claimed where records are produced first and offsets are
// committed then, outside any transaction.
var twiceInKafka = map[Fault]Claim{
	Kill9:               must(MayDuplicate, "a death between producing and the commit of the offsets leaves records that are there and an event that comes again."),
	SecondInstance:      may(MayDuplicate, "whatever a rebalance has delivered again is produced again."),
	RollingRestart:      may(MayDuplicate, "whatever a rebalance has delivered again is produced again."),
	Zombie:              must(MayDuplicate, "the zombie's successor has produced for its batch; when the zombie wakes up, it does too."),
	OffsetCommitCut:     may(MayDuplicate, "offsets whose commit was not answered may not be committed, and then the events come again."),
	BrokerRestarted:     may(MayDuplicate, "offsets whose commit was not answered may not be committed, and then the events come again."),
	BrokerKilled:        may(MayDuplicate, "offsets whose commit was not answered may not be committed, and then the events come again."),
	PublisherDuplicates: must(MayDuplicate, twoRecords),
	PublisherDuplicatesTwoInstances: must(MayDuplicate,
		twoRecords),
	OffsetsRewound: must(MayDuplicate, "every event comes again and is produced again."),
}

const twoRecords = "an event that its publisher sent twice is two records at two offsets, and Kafka knows offsets and no event ids."

var kafkaAtLeastOnce = Lane{
	Name:     "kafka at-least-once",
	Short:    "kalo",
	Says:     "produces, then commits offsets, with a producer that is not idempotent: duplicates",
	Program:  "eos-pipeline",
	Args:     []string{"--guarantee=at-least-once"},
	Scopes:   []Scope{Kafka},
	Steps:    plainSteps,
	Exposed:  names(kafkatx.Produced),
	Pauses:   names(kafkatx.Handled),
	Passings: passingsOfTransactions,
	Progress: GroupOffsets,
	Claims: map[Scope]Claims{
		Kafka: {
			Always: once("nothing had to be sent or delivered again."),
			Under: with(twiceInKafka, map[Fault]Claim{
				ProduceCut: must(MayDuplicate, "records whose acknowledgement was lost are sent again, and the broker can't tell that it has them."),
			}),
		},
	},
}

var kafkaIdempotent = Lane{
	Name:     "kafka idempotent producer",
	Short:    "kidem",
	Says:     "the same with an idempotent producer: no duplicate from retries, duplicates from a crash",
	Program:  "eos-pipeline",
	Args:     []string{"--guarantee=idempotent-producer"},
	Scopes:   []Scope{Kafka},
	Steps:    plainSteps,
	Exposed:  names(kafkatx.Produced),
	Pauses:   names(kafkatx.Handled),
	Passings: passingsOfTransactions,
	Progress: GroupOffsets,
	Claims: map[Scope]Claims{
		Kafka: {
			Always: once("the producer numbers its batches (KIP-98), and the broker drops one that it has."),
			Under:  twiceInKafka,
		},
	},
}
