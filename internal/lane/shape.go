package lane

var shapeOnly = Lane{
	Name:     "shape-only",
	Short:    "shape",
	Says:     "no guard but the shape of the writes: absolute writes and natural keys hold, accumulating writes duplicate",
	Program:  "inbox-pipeline",
	Args:     []string{"--guard=shape"},
	Scopes:   []Scope{Postgres, PickTasks, LoyaltyPoints},
	Steps:    []string{"polled", "begun", "worked", "committed", "acknowledged"},
	Exposed:  []string{"committed"},
	Pauses:   []string{"polled"},
	Passings: passingsOfPolls,
	Progress: GroupOffsets,
	Claims: map[Scope]Claims{
		Postgres:      {Always: once("nothing had to be delivered again."), Under: twice},
		PickTasks:     {Always: once("a pick task is written under its natural key, so that writing it again leaves the row that is there.")},
		LoyaltyPoints: {Always: once("nothing had to be delivered again."), Under: twice},
	},
}
