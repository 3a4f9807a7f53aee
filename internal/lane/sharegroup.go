package lane

import "github.com/delivered-twice/delivered-twice/internal/pginbox"

var inboxShareGroup = Lane{
	Name:     "inbox on a share group",
	Short:    "share",
	Says:     "Kafka as a queue (KIP-932), each record acknowledged for itself: the inbox does not mind, order is gone",
	Program:  "inbox-pipeline",
	Args:     []string{"--source=share-group", "--guard=inbox"},
	Scopes:   []Scope{Postgres, Order},
	Steps:    inboxSteps,
	Exposed:  names(pginbox.Worked, pginbox.Committed),
	Pauses:   names(pginbox.Polled),
	Passings: passingsOfPolls,
	Progress: SharedRecords,
	Forgets:  InboxRows,
	Claims: map[Scope]Claims{
		Postgres: {
			Always: once(inboxHolds),
			Under: map[Fault]Claim{
				// It is the source that loses here, not the inbox: what is not delivered any
				// more cannot be done.
				Kill9:  may(MayLose, "the broker counts deliveries, whoever is to blame for their end: a record whose consumers died share.delivery.count.limit times is archived, and nobody gets it again (KIP-932)."),
				Purged: must(MayDuplicate, rowsGone),
			},
		},
		Order: {
			Always: may(MayReorder, "a share group hands records of one partition to several members, and again in whatever order they come back."),
			Under: map[Fault]Claim{
				Zombie: must(MayReorder, "while the zombie holds its records, others get those behind them; when its lock has expired, or it wakes up, old work is done after newer work."),
			},
		},
	},
}
