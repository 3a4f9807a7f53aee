package lane

import "github.com/delivered-twice/delivered-twice/internal/pginbox"

// What the inbox claims, wherever its events come from and whatever else is done.
const (
	inboxHolds = "the dedupe row and the work commit in one Postgres transaction: a redelivered event either finds its row and is skipped, or finds neither and is done."
	rowsGone   = "the row that would have turned the event away was purged."
)

var inbox = Lane{
	Name:     "inbox",
	Short:    "inbox",
	Says:     "dedupe row and work in one Postgres transaction: exactly once in Postgres",
	Program:  "inbox-pipeline",
	Args:     []string{"--guard=inbox"},
	Scopes:   []Scope{Postgres, Order},
	Steps:    inboxSteps,
	Exposed:  names(pginbox.Worked, pginbox.Committed),
	Pauses:   names(pginbox.Polled),
	Passings: passingsOfPolls,
	Progress: GroupOffsets,
	Forgets:  InboxRows,
	Claims: map[Scope]Claims{
		Postgres: {
			Always: once(inboxHolds),
			Under:  map[Fault]Claim{Purged: must(MayDuplicate, rowsGone)},
		},
		// Nothing fences a zombie here. It does no harm because it has nothing left to
		// do: whoever took its partition over began at or before the zombie's batch.
		Order: {Always: once("every member goes through a partition without a gap, from an offset before which all is done, and a batch commits as a whole: when an event is done, so are all before it.")},
	},
}
