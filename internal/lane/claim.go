package lane

// Scope is a place where effects land, seen in one particular way.
type Scope string

const (
	// Kafka is the output topic as a read_committed reader sees it.
	Kafka Scope = "kafka"
	// KafkaUncommitted is the same topic as a reader on the default isolation
	// level sees it: records of open and of aborted transactions too.
	KafkaUncommitted Scope = "kafka-uncommitted"
	// Postgres is the rows of the handlers' tables.
	Postgres Scope = "postgres"
	// Order is the order of effects.
	Order Scope = "order"
	// PickTasks and LoyaltyPoints are the handlers' tables, each alone.
	PickTasks     Scope = "postgres/pick_tasks"
	LoyaltyPoints Scope = "postgres/loyalty_points"
)

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
	// Reordered is counted only where a scope watches the order of effects;
	// none of [Kafka], [KafkaUncommitted] and [Postgres] does.
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

// Promise is what may be seen in a scope.
type Promise string

const (
	// ClaimsOnce: every event once, and nothing else.
	ClaimsOnce Promise = "once"
	// MayLose allows lost events, and nothing else.
	MayLose Promise = "may lose"
	// MayDuplicate allows duplicated events, and nothing else.
	MayDuplicate Promise = "may duplicate"
	// MayReorder allows reordered events, and nothing else.
	MayReorder Promise = "may reorder"
	// ShowsAborted allows aborted-visible events, and nothing else.
	ShowsAborted Promise = "aborted visible"
	// MayDuplicateAndShowAborted allows both, and nothing else.
	MayDuplicateAndShowAborted Promise = "may duplicate, aborted visible"
)

// Claim is written down before a lane is run, and judged afterwards.
type Claim struct {
	// Says is what the counts are held against.
	Says Promise
	// MustShow says that what Says allows must have happened to one event at
	// least: a lane that exists to show a fault and does not show it proves
	// nothing.
	MustShow bool
	// Why is one sentence for whoever reads the grid; it goes on from "because".
	Why string
}

// Held says whether the counts are what the claim says. Counts of no events, or
// counts that do not add up, hold no claim.
func (c Claim) Held(n Counts) bool {
	var allowed int
	switch c.Says {
	case MayLose:
		allowed = n.Lost
	case MayDuplicate:
		allowed = n.Duplicated
	case MayReorder:
		allowed = n.Reordered
	case ShowsAborted:
		allowed = n.AbortedVisible
	case MayDuplicateAndShowAborted:
		allowed = n.Duplicated + n.AbortedVisible
	}
	return n.Expected > 0 &&
		n.Once+allowed == n.Expected &&
		n.Lost+n.Duplicated+n.AbortedVisible+n.Reordered == allowed &&
		n.Unexpected == 0 &&
		(allowed > 0 || !c.MustShow)
}
