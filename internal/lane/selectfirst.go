package lane

var selectFirst = Lane{
	Name:     "select-first",
	Short:    "selectfirst",
	Says:     "asks whether the id is there, then works: duplicates when two consumers race",
	Program:  "inbox-pipeline",
	Args:     []string{"--guard=select-first"},
	Scopes:   []Scope{Postgres},
	Steps:    []string{"polled", "begun", "selected", "worked", "committed", "acknowledged"},
	Exposed:  []string{"selected"},
	Pauses:   []string{"selected"},
	Passings: passingsOfPolls,
	Progress: GroupOffsets,
	Claims: map[Scope]Claims{
		Postgres: {
			Always: once("the id is written in the transaction of the work, so whoever asks afterwards finds it."),
			Under: map[Fault]Claim{
				Zombie: must(MayDuplicate, "the zombie has asked before its successor did the work, and does not ask again when it wakes up."),
				Race:   must(MayDuplicate, "both consumers ask before either has committed, and a SELECT does not wait for a row that is not committed."),
			},
		},
	},
}
