package sabotage

// recordsNotInOrder: two producers' requests overtake each other, which a kill may show
// and may not.
var recordsNotInOrder = Sabotage{
	Name:  "records_not_in_order",
	Wrong: "a transaction's records are sent before those of the transaction before it are acknowledged",
	File:  "internal/kafkatx/transaction.go",
	Old: `
	if err := tx.before.produced.wait(ctx); err != nil {
		return err
	}
`,
	New:  "\n",
	Test: "TestNothingOvertakes/Produce",
}
