package lane

import "github.com/delivered-twice/delivered-twice/internal/webhook"

var inboxWebhook = Lane{
	Name:     "inbox behind a webhook",
	Short:    "webhook",
	Says:     "events come by HTTP, signed, again and again until the answer is 2xx: the same inbox, and no Kafka",
	Program:  "inbox-pipeline",
	Args:     []string{"--source=webhook", "--guard=inbox"},
	Scopes:   []Scope{Postgres}, // a sender keeps no order
	Steps:    names(webhook.Steps()...),
	Exposed:  []string{"worked", "committed"},
	Pauses:   names(webhook.Received),
	Passings: passingsOfPolls,
	Progress: Webhooks,
	Forgets:  InboxRows,
	Claims: map[Scope]Claims{
		Postgres: {
			Always: once("the answer is 2xx only after the transaction of dedupe row and work has committed: what is sent again finds its row, or waits for whoever is working on it, or is done."),
			Under:  map[Fault]Claim{Purged: must(MayDuplicate, rowsGone)},
		},
	},
}
