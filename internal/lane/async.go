package lane

import "github.com/delivered-twice/delivered-twice/internal/pginbox"

var inboxAsync = Lane{
	Name:         "inbox, async commit",
	Short:        "async",
	Says:         "synchronous_commit=off: loses when the database crashes, because the acknowledgement outlived the commit",
	Program:      "inbox-pipeline",
	Args:         []string{"--guard=inbox", "--async-commit"},
	Scopes:       []Scope{Postgres},
	Steps:        inboxSteps,
	Exposed:      names(pginbox.Worked, pginbox.Committed),
	Pauses:       names(pginbox.Polled),
	Passings:     passingsOfPolls,
	Progress:     GroupOffsets,
	Asynchronous: true,
	Forgets:      InboxRows,
	Claims: map[Scope]Claims{
		Postgres: {
			Always: once(inboxHolds),
			Under: map[Fault]Claim{
				PostgresKilled: must(MayLose, "an asynchronous commit is acknowledged before its WAL is on disk: the crash takes it back, and the offset in Kafka stays."),
				Purged:         must(MayDuplicate, rowsGone),
			},
		},
	},
}

var inboxAsyncGated = Lane{
	Name:         "inbox, async commit, gated",
	Short:        "gated",
	Says:         "synchronous_commit=off, and acknowledged only up to the flushed WAL position: holds",
	Program:      "inbox-pipeline",
	Args:         []string{"--guard=inbox", "--async-commit", "--ack-after-flush"},
	Scopes:       []Scope{Postgres},
	Steps:        inboxSteps,
	Exposed:      names(pginbox.Worked, pginbox.Committed),
	Pauses:       names(pginbox.Polled),
	Passings:     passingsOfPolls,
	Progress:     GroupOffsets,
	Asynchronous: true,
	Forgets:      InboxRows,
	Claims: map[Scope]Claims{
		Postgres: {
			Always: once("an event is acknowledged only when the WAL of its commit is on disk: what a crash takes back comes again."),
			Under:  map[Fault]Claim{Purged: must(MayDuplicate, rowsGone)},
		},
	},
}

var offsetsAsync = Lane{
	Name:         "offsets, async commit",
	Short:        "offsetsasync",
	Says:         "synchronous_commit=off with the offsets in Postgres: holds for free, work and offset are lost together",
	Program:      "inbox-pipeline",
	Args:         []string{"--guard=offsets", "--async-commit"},
	Scopes:       []Scope{Postgres, Order},
	Steps:        inboxSteps,
	Exposed:      names(pginbox.Worked, pginbox.Committed),
	Pauses:       names(pginbox.Polled),
	Passings:     passingsOfPolls,
	Progress:     StoredOffsets,
	Asynchronous: true,
	Claims: map[Scope]Claims{
		Postgres: {
			Always: once("a crash takes work and offset back together, so the events come again."),
			Under: map[Fault]Claim{
				PublisherDuplicates:             must(MayDuplicate, blind),
				PublisherDuplicatesTwoInstances: must(MayDuplicate, blind),
			},
		},
		Order: {Always: once(fenced)},
	},
}
