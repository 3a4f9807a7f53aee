package lane

import "github.com/delivered-twice/delivered-twice/internal/pginbox"

var inboxOffsets = Lane{
	Name:     "inbox + offsets",
	Short:    "both",
	Says:     "dedupe row, offset and work in one transaction: exactly once and in order",
	Program:  "inbox-pipeline",
	Args:     []string{"--guard=inbox+offsets"},
	Scopes:   []Scope{Postgres, Order},
	Steps:    inboxSteps,
	Exposed:  names(pginbox.Worked, pginbox.Committed),
	Pauses:   names(pginbox.Polled),
	Passings: passingsOfPolls,
	Progress: StoredOffsets,
	Forgets:  InboxRows,
	Claims: map[Scope]Claims{
		Postgres: {Always: once("a record that comes again is behind the stored offset, and an event that its publisher sent again finds its row.")},
		Order:    {Always: once(fenced)},
	},
}
