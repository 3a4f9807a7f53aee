package lane

import (
	"slices"

	"github.com/delivered-twice/delivered-twice/internal/pginbox"
)

// Lanes that call a third party for every event, from where they do their work.
var (
	inboxHTTP    = calling("inbox + http", inbox)
	inboxHTTPKey = withKey(inboxHTTP)
	eosHTTP      = calling("eos + http", kafkaEOS)
	eosHTTPKey   = withKey(eosHTTP)

	eosPostgresHTTP        = calling(EOSPostgres+" + http", eosPostgres)
	inboxDirectProduceHTTP = calling(InboxDirectProduce+" + http", inboxDirectProduce)
)

// Headline returns the lanes that a run without a choice compares: the same three
// effects attempted by each of the two answers. With key, each sends the event's id as
// the Idempotency-Key of its calls. They are not among [All]: what they are made of is.
func Headline(key bool) []Lane {
	if key {
		return []Lane{withKey(eosPostgresHTTP), withKey(inboxDirectProduceHTTP)}
	}
	return []Lane{eosPostgresHTTP, inboxDirectProduceHTTP}
}

const (
	notTakenBack = "aborting a Kafka transaction does not take a call back, and the next attempt gets the same events and calls again."
	calledFirst  = "the third party is called before Postgres commits: rolling back takes the dedupe row back but not the call, and the next attempt calls again."
	answerLost   = "a call whose answer is lost was accepted, and without a key the third party can't tell the next one from a new one."
	rowFound     = "the inbox turns away whatever comes again, before anybody is called."
)

// inboxCalls is what is claimed of calls that are made from inside a Postgres
// transaction that begins with the event's id.
var inboxCalls = Claims{
	Always: may(MayDuplicate, calledFirst),
	Under: map[Fault]Claim{
		NoFault:                         once("no attempt had to be repeated, so the calls that Postgres knows nothing of were made once by luck."),
		Kill9:                           must(MayDuplicate, calledFirst),
		Kill9AndDuplicates:              must(MayDuplicate, calledFirst),
		PublisherDuplicates:             once(rowFound),
		PublisherDuplicatesTwoInstances: once(rowFound),
		OffsetsRewound:                  once(rowFound),
		Purged:                          must(MayDuplicate, rowsGone),
		APIKilled:                       must(MayDuplicate, answerLost),
		ResponseDropped:                 must(MayDuplicate, answerLost),
	},
}

// eosCalls is what is claimed of calls that are made from inside a Kafka transaction.
var eosCalls = Claims{
	Always: may(MayDuplicate, notTakenBack),
	Under: map[Fault]Claim{
		NoFault:                         once("no attempt had to be repeated, so the calls that Kafka knows nothing of were made once by luck."),
		Kill9:                           must(MayDuplicate, notTakenBack),
		Kill9AndDuplicates:              must(MayDuplicate, notTakenBack),
		Zombie:                          must(MayDuplicate, notTakenBack),
		ForeignTransactionalID:          must(MayDuplicate, notTakenBack),
		TransactionTimeout:              must(MayDuplicate, notTakenBack),
		PublisherDuplicates:             must(MayDuplicate, "both records were processed, and a call was made for each."),
		PublisherDuplicatesTwoInstances: must(MayDuplicate, "both records were processed, and a call was made for each."),
		OffsetsRewound:                  must(MayDuplicate, "every record is consumed again, and a call is made for each."),
		APIKilled:                       must(MayDuplicate, answerLost),
		ResponseDropped:                 must(MayDuplicate, answerLost),
	},
}

// keyedCalls is what is claimed of calls that carry the event's id as their key,
// wherever they are made from.
var keyedCalls = Claims{
	Always: once("the event's id is the Idempotency-Key: a call that is made again, by whichever attempt, gets the answer of the first and charges nothing."),
	Under: map[Fault]Claim{
		KeyExpired: must(MayDuplicate, "the third party has forgotten the key, and takes the call for a new one."),
	},
}

// calling returns a lane that does what base does, and calls a third party too.
func calling(name string, base Lane) Lane {
	l := base
	l.Name = name
	l.Short += "http"
	l.Says = "calls a third party from inside its transaction, which does not cover that: http duplicates"
	l.Args = slices.Concat(base.Args, []string{"--call=payments"})
	calls := eosCalls
	if !base.Transactional {
		calls = inboxCalls
		l.Exposed = slices.Concat(base.Exposed, []string{string(pginbox.Worked) + "@payment"})
	}
	return l.claiming(HTTP, calls)
}

// flagKey has a lane send the event's id with its calls.
const flagKey = "--idempotency-key"

// withKey returns a lane that calls with a key what base calls without.
func withKey(base Lane) Lane {
	l := base
	l.Name += " + key"
	l.Short += "key"
	l.Says = "the same with the event's id as Idempotency-Key: http is once, for as long as the third party keeps the key"
	l.Args = slices.Concat(base.Args, []string{flagKey})
	// What makes a key expire has the events come again when the lane has forgotten them,
	// too.
	again := OffsetsRewound
	if base.Forgets != "" {
		again = Purged
	}
	for _, s := range base.Scopes {
		c, _ := base.Claim(again, s)
		l = l.claiming(s, Claims{Always: base.Claims[s].Always, Under: with(base.Claims[s].Under, map[Fault]Claim{KeyExpired: c})})
	}
	return l.claiming(HTTP, keyedCalls)
}

// claiming returns the lane with these claims in a scope, which it writes.
func (l Lane) claiming(s Scope, claims Claims) Lane {
	if !l.Writes(s) {
		l.Scopes = slices.Concat(l.Scopes, []Scope{s})
	}
	all := map[Scope]Claims{s: claims}
	for other, its := range l.Claims {
		if other != s {
			all[other] = its
		}
	}
	l.Claims = all
	return l
}

// SendsKey says whether the lane's calls to a third party carry a key by which it
// knows one that is made again.
func (l Lane) SendsKey() bool { return slices.Contains(l.Args, flagKey) }
