package lane

import "github.com/delivered-twice/delivered-twice/internal/pginbox"

const (
	offsetsHold = "the offset moves in the transaction of the work, only forward, and only for the partition's owner: work and offset are there together or not at all."
	fenced      = "the owner's fence refuses a zombie, and the stored offset refuses what lies behind it."
	blind       = "an event that its publisher sent twice is two records at two offsets, and nothing knows the event's id."
)

var offsets = Lane{
	Name:     "offsets-in-postgres",
	Short:    "offsets",
	Says:     "offsets in the database of the work: exactly once per record, ordered and fenced; blind to a publisher's duplicate",
	Program:  "inbox-pipeline",
	Args:     []string{"--guard=offsets"},
	Scopes:   []Scope{Postgres, Order},
	Steps:    inboxSteps,
	Exposed:  names(pginbox.Worked, pginbox.Committed),
	Pauses:   names(pginbox.Polled),
	Passings: passingsOfPolls,
	Progress: StoredOffsets,
	Claims: map[Scope]Claims{
		Postgres: {
			Always: once(offsetsHold),
			Under: map[Fault]Claim{
				PublisherDuplicates:             must(MayDuplicate, blind),
				PublisherDuplicatesTwoInstances: must(MayDuplicate, blind),
			},
		},
		Order: {Always: once(fenced)},
	},
}
