package sabotage

import "github.com/delivered-twice/delivered-twice/internal/lane"

// recordsNotInOrder: two producers' requests overtake each other.
var recordsNotInOrder = Sabotage{
	Name:  "records_not_in_order",
	Wrong: "a transaction's records are sent before those of the transaction before it are acknowledged",
	File:  "internal/kafkatx/transaction.go",
	Old: `
	if err := tx.before.produced.wait(ctx); err != nil {
		return err
	}
`,
	New:   "\n",
	Lane:  "kafka eos, pipelined",
	Fault: lane.Kill9,
	Red:   breaks(lane.Order, lane.Reordered),
}
