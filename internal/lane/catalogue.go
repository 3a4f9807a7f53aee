package lane

import (
	"github.com/delivered-twice/delivered-twice/internal/kafkatx"
	"github.com/delivered-twice/delivered-twice/internal/pginbox"
)

// catalogue are all lanes, each in a file of its own: what loses first, what holds
// last.
var catalogue = []Lane{
	atMostOnce,
	atLeastOnce,
	shapeOnly,
	memorySet,
	selectFirst,
	redisSETNX,
	inbox,
	offsets,
	inboxOffsets,
	inboxAsync,
	inboxAsyncGated,
	offsetsAsync,
	inboxShareGroup,
	inboxWebhook,
	inboxDirectProduce,
	inboxOutbox,
	inboxHTTP,
	inboxHTTPKey,
	kafkaAtLeastOnce,
	kafkaIdempotent,
	kafkaEOS,
	kafkaEOSPipelined,
	eosPostgres,
	eosInbox,
	twoPhase,
	eosHTTP,
	eosHTTPKey,
}

// Names of lanes that are spoken of outside the catalogue.
const (
	EOSPostgres        = "eos + postgres"
	InboxDirectProduce = "inbox + direct produce"
)

// What passings of a usual run are like: a transaction a commit interval, and a
// transaction a poll, with a poll every few milliseconds.
const (
	passingsOfTransactions = 5
	passingsOfPolls        = 50
)

var (
	inboxSteps = names(pginbox.Steps()...)
	eosSteps   = names(kafkatx.Steps(kafkatx.ExactlyOnce)...)
	plainSteps = names(kafkatx.Steps(kafkatx.AtLeastOnce)...)
)

// The forms of a claim.

func once(why string) Claim { return Claim{Says: ClaimsOnce, Why: why} }

func may(p Promise, why string) Claim { return Claim{Says: p, Why: why} }

func must(p Promise, why string) Claim { return Claim{Says: p, MustShow: true, Why: why} }

// with returns the claims and more on top of them.
func with(claims map[Fault]Claim, more map[Fault]Claim) map[Fault]Claim {
	all := make(map[Fault]Claim, len(claims)+len(more))
	for f, c := range claims {
		all[f] = c
	}
	for f, c := range more {
		all[f] = c
	}
	return all
}
