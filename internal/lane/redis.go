package lane

var redisSETNX = Lane{
	Name:     "redis-setnx",
	Short:    "redis",
	Says:     "claims the id in Redis, then works: a crash in between loses, an expired key duplicates",
	Program:  "inbox-pipeline",
	Args:     []string{"--guard=redis"},
	Scopes:   []Scope{Postgres},
	Steps:    []string{"polled", "claimed", "begun", "worked", "committed", "acknowledged"},
	Exposed:  []string{"claimed", "worked"},
	Pauses:   []string{"claimed"},
	Passings: passingsOfPolls,
	Progress: GroupOffsets,
	Forgets:  RedisKeys,
	Claims: map[Scope]Claims{
		Postgres: {
			Always: once("SETNX lets one delivery of an event through, and that one did its work."),
			Under: map[Fault]Claim{
				Kill9:             must(MayLose, "the id is claimed before the work is done: a death in between leaves a key that turns the event away when it comes again."),
				CommitCut:         must(MayDuplicate, "a COMMIT whose answer is lost was done, and the holder of the key does the work again because nothing in Postgres tells."),
				PostgresRestarted: may(MayDuplicate, "a transaction that was committed as the connection broke is done again by the holder of the key."),
				PostgresKilled:    may(MayDuplicate, "a transaction that was committed as the connection broke is done again by the holder of the key."),
				Purged:            must(MayDuplicate, "an expired key lets the event through again."),
			},
		},
	},
}
