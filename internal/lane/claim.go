package lane

import (
	"fmt"
	"strings"
)

// Scope is a place where effects land, seen in one particular way.
type Scope string

const (
	// Kafka is the output topic as a read_committed reader sees it.
	Kafka Scope = "kafka"
	// KafkaUncommitted is the same topic as a reader on the default isolation
	// level sees it: records of open and of aborted transactions too.
	KafkaUncommitted Scope = "kafka-uncommitted"
	// Postgres is the rows of the handlers' tables: of an event's effects in all of
	// them the worst counts.
	Postgres Scope = "postgres"
	// PickTasks and LoyaltyPoints are one of those tables each, for lanes that hold
	// in the one and not in the other.
	PickTasks     Scope = "postgres/pick_tasks"
	LoyaltyPoints Scope = "postgres/loyalty_points"
	// HTTP is the calls that a third party has accepted, by its own ledger.
	HTTP Scope = "http"
	// Order is the effects of one key, as to whether they were applied in the order
	// of its events. It is about effects that are there: what is lost elsewhere is
	// not expected here, and of a duplicate the first effect is the one that counts.
	Order Scope = "order"
)

// Scopes returns all scopes, in the order in which they are shown.
func Scopes() []Scope {
	return []Scope{Kafka, KafkaUncommitted, Postgres, PickTasks, LoyaltyPoints, HTTP, Order}
}

// Outcome is what became of one event in one scope.
type Outcome string

const (
	// Once: the effect is there exactly one time.
	Once Outcome = "once"
	// Lost: it is not there.
	Lost Outcome = "lost"
	// Duplicated: it is there more than one time.
	Duplicated Outcome = "duplicated"
	// AbortedVisible: it is there one time, and an aborted attempt at it can be
	// seen too.
	AbortedVisible Outcome = "aborted-visible"
	// Reordered: it was applied after the effect of a later event of its key.
	Reordered Outcome = "reordered"
)

// Counts says how many events had which outcome in one scope. Each expected event
// has exactly one, so the outcomes add up to Expected.
type Counts struct {
	Expected       int `json:"expected"`
	Once           int `json:"once"`
	Lost           int `json:"lost"`
	Duplicated     int `json:"duplicated"`
	AbortedVisible int `json:"aborted_visible"`
	// Reordered is counted in [Order], where nothing else but Once is.
	Reordered int `json:"reordered"`
	// Unexpected counts effects of events that nobody sent. No claim is held
	// where there is one: what else was counted cannot be believed either.
	Unexpected int `json:"unexpected,omitempty"`
}

// Add counts one expected event.
func (n *Counts) Add(o Outcome) {
	n.Expected++
	switch o {
	case Once:
		n.Once++
	case Lost:
		n.Lost++
	case Duplicated:
		n.Duplicated++
	case AbortedVisible:
		n.AbortedVisible++
	case Reordered:
		n.Reordered++
	}
}

// Of returns how many events had that outcome.
func (n Counts) Of(o Outcome) int {
	switch o {
	case Once:
		return n.Once
	case Lost:
		return n.Lost
	case Duplicated:
		return n.Duplicated
	case AbortedVisible:
		return n.AbortedVisible
	case Reordered:
		return n.Reordered
	}
	return 0
}

// Promise is what may be seen in a scope beside events that are once: the outcomes
// that it names and no other. Promises are combined with |.
type Promise uint8

const (
	// MayLose allows lost events.
	MayLose Promise = 1 << iota
	// MayDuplicate allows duplicated events.
	MayDuplicate
	// MayReorder allows reordered events.
	MayReorder
	// ShowsAborted allows aborted-visible events.
	ShowsAborted
	// NotApplicable says that there is nothing to count in a scope. It stands alone,
	// and no counts hold it.
	NotApplicable

	// ClaimsOnce: every event once, and nothing else.
	ClaimsOnce Promise = 0
	// MayDuplicateAndShowAborted allows both.
	MayDuplicateAndShowAborted = MayDuplicate | ShowsAborted
)

// allowances are what promises are made of, in the order in which they are said.
var allowances = []struct {
	promise Promise
	says    string
	outcome Outcome
}{
	{MayLose, "may lose", Lost},
	{MayDuplicate, "may duplicate", Duplicated},
	{MayReorder, "may reorder", Reordered},
	{ShowsAborted, "aborted visible", AbortedVisible},
}

const (
	saysOnce          = "once"
	saysNotApplicable = "not applicable"
)

// String says the promise as it stands in tables and files, such as "once" or
// "may lose, may duplicate".
func (p Promise) String() string {
	switch p {
	case ClaimsOnce:
		return saysOnce
	case NotApplicable:
		return saysNotApplicable
	}
	var parts []string
	for _, a := range allowances {
		if p&a.promise != 0 {
			parts = append(parts, a.says)
		}
	}
	return strings.Join(parts, ", ")
}

// MarshalText writes what String says.
func (p Promise) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what MarshalText has written.
func (p *Promise) UnmarshalText(text []byte) error {
	*p = ClaimsOnce
	switch string(text) {
	case saysOnce:
		return nil
	case saysNotApplicable:
		*p = NotApplicable
		return nil
	}
next:
	for part := range strings.SplitSeq(string(text), ", ") {
		for _, a := range allowances {
			if part == a.says {
				*p |= a.promise
				continue next
			}
		}
		return fmt.Errorf("%q is no claim", text)
	}
	return nil
}

// Claim is written down before a lane is run, and judged afterwards.
type Claim struct {
	// Says is what the counts are held against.
	Says Promise
	// MustShow says that something that Says allows must have happened to one event
	// at least: a lane that exists to show a fault and does not show it proves
	// nothing.
	MustShow bool
	// Shows is for a claim that allows several outcomes: each that is named here must
	// have happened to one event at least.
	Shows Promise
	// Why is one sentence for whoever reads the grid; it goes on from "because".
	Why string
}

// Held says whether the counts are what the claim says. Counts of no events, or
// counts that do not add up, hold no claim.
func (c Claim) Held(n Counts) bool {
	accounted := n.Once
	for _, a := range allowances {
		count := n.Of(a.outcome)
		if c.Says&a.promise == 0 && count != 0 || c.Shows&a.promise != 0 && count == 0 {
			return false
		}
		accounted += count
	}
	return c.Says != NotApplicable &&
		n.Expected > 0 && accounted == n.Expected && n.Unexpected == 0 &&
		(n.Once < n.Expected || !c.MustShow)
}
