package lane

var atMostOnce = Lane{
	Name:     "at-most-once",
	Short:    "ackfirst",
	Says:     "acknowledges, then works: loses on a crash",
	Program:  "inbox-pipeline",
	Args:     []string{"--guard=ack-first"},
	Scopes:   []Scope{Postgres, Order},
	Steps:    []string{"polled", "acknowledged", "begun", "worked", "committed"},
	Exposed:  []string{"acknowledged", "worked"},
	Pauses:   []string{"acknowledged"},
	Passings: passingsOfPolls,
	Progress: GroupOffsets,
	Claims: map[Scope]Claims{
		Postgres: {
			Always: once("nothing came between the acknowledgement and the work."),
			Under: map[Fault]Claim{
				Kill9:             must(MayLose, "an event is acknowledged before its work is done: a death in between leaves work that nobody will be asked for again."),
				Race:              must(MayDuplicate, "two consumers that get the same event both do its work: nothing in Postgres knows its id."),
				CommitCut:         must(MayDuplicate, "a COMMIT whose answer is lost was done, and the work is done again because nothing in Postgres tells."),
				PostgresRestarted: may(MayDuplicate, "a transaction that was committed as the connection broke is done again."),
				PostgresKilled:    may(MayDuplicate, "a transaction that was committed as the connection broke is done again."),
				BrokerRestarted:   may(MayLose, "offsets whose commit was taken and not answered are not delivered again."),
				BrokerKilled:      may(MayLose, "offsets whose commit was taken and not answered are not delivered again."),
				PublisherDuplicates: must(MayDuplicate,
					"an event that its publisher sent twice is two records, and nothing in Postgres knows the event's id."),
				PublisherDuplicatesTwoInstances: must(MayDuplicate,
					"an event that its publisher sent twice is two records, and nothing in Postgres knows the event's id."),
				OffsetsRewound: must(MayDuplicate, "every event comes again, and nothing in Postgres knows its id."),
			},
		},
		Order: {
			Always: once("a partition's records are taken one batch after the other, by one member at a time."),
			Under: map[Fault]Claim{
				Zombie: must(MayReorder, "the zombie has acknowledged its batch, so its successor begins behind it; when the zombie wakes up, it does old work after newer work was done."),
			},
		},
	},
}
