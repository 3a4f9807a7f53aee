package lane

// noID is why a lane that keeps nothing of an event does it twice.
const noID = "nothing in Postgres knows the event's id, so whoever gets the event again does its work again."

// twice is what is claimed where work commits first and is acknowledged then, with
// nothing that would recognize an event that comes again.
var twice = map[Fault]Claim{
	Kill9:               must(MayDuplicate, "a death between the commit and the acknowledgement leaves work that is done and an event that comes again."),
	SecondInstance:      may(MayDuplicate, "whatever a rebalance has delivered again is done again."),
	RollingRestart:      may(MayDuplicate, "whatever a rebalance has delivered again is done again."),
	Zombie:              must(MayDuplicate, "the zombie's successor has done its batch; when the zombie wakes up, it does it too."),
	Race:                must(MayDuplicate, "two consumers that get the same event both do its work."),
	CommitCut:           must(MayDuplicate, "a COMMIT whose answer is lost was done, and the work is done again because nothing in Postgres tells."),
	PostgresRestarted:   may(MayDuplicate, "a transaction that was committed as the connection broke is done again."),
	PostgresKilled:      may(MayDuplicate, "a transaction that was committed as the connection broke is done again."),
	BrokerRestarted:     may(MayDuplicate, "an acknowledgement that the broker did not take leaves events that come again."),
	BrokerKilled:        may(MayDuplicate, "an acknowledgement that the broker did not take leaves events that come again."),
	PublisherDuplicates: must(MayDuplicate, "an event that its publisher sent twice is two records: "+noID),
	PublisherDuplicatesTwoInstances: must(MayDuplicate,
		"an event that its publisher sent twice is two records: "+noID),
	OffsetsRewound: must(MayDuplicate, "every event comes again: "+noID),
}

var atLeastOnce = Lane{
	Name:     "at-least-once",
	Short:    "none",
	Says:     "works, then acknowledges: duplicates on a crash",
	Program:  "inbox-pipeline",
	Args:     []string{"--guard=none"},
	Scopes:   []Scope{Postgres},
	Steps:    []string{"polled", "begun", "worked", "committed", "acknowledged"},
	Exposed:  []string{"committed"},
	Pauses:   []string{"polled"},
	Passings: passingsOfPolls,
	Progress: GroupOffsets,
	Claims: map[Scope]Claims{
		Postgres: {Always: once("nothing had to be delivered again."), Under: twice},
	},
}
