package lane

var memorySet = Lane{
	Name:     "memory-set",
	Short:    "memory",
	Says:     "remembers ids in the process: holds until a restart or a second instance",
	Program:  "inbox-pipeline",
	Args:     []string{"--guard=memory"},
	Scopes:   []Scope{Postgres},
	Steps:    []string{"polled", "checked", "begun", "worked", "committed", "acknowledged"},
	Exposed:  []string{"committed"},
	Pauses:   []string{"checked"},
	Passings: passingsOfPolls,
	Progress: GroupOffsets,
	Claims: map[Scope]Claims{
		Postgres: {
			Always: once("one process got every delivery of an event, and remembered it."),
			Under: map[Fault]Claim{
				Kill9:             must(MayDuplicate, "the process that is started again remembers nothing of what the dead one did and did not acknowledge."),
				SecondInstance:    may(MayDuplicate, "what another process did is not in this one's memory."),
				RollingRestart:    may(MayDuplicate, "what another process did is not in this one's memory."),
				Zombie:            must(MayDuplicate, "the zombie does not know what its successor did meanwhile: two instances, and nobody has crashed."),
				Race:              must(MayDuplicate, "each of two processes remembers only what it did itself."),
				CommitCut:         must(MayDuplicate, "a COMMIT whose answer is lost was done, but is not remembered."),
				PostgresRestarted: may(MayDuplicate, "a transaction that was committed as the connection broke is not remembered."),
				PostgresKilled:    may(MayDuplicate, "a transaction that was committed as the connection broke is not remembered."),
				PublisherDuplicatesTwoInstances: must(MayDuplicate,
					"a second instance has taken partitions over, and remembers nothing of what the first one did with them: nobody has crashed."),
				OffsetsRewound: must(MayDuplicate, "a process that is started again remembers nothing."),
			},
		},
	},
}
