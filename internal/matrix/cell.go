// Package matrix runs lanes against faults: every pair is a cell, with claims that
// were written down before, and each cell is audited against them.
package matrix

import (
	"fmt"
	"strings"

	"github.com/delivered-twice/delivered-twice/internal/fault"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/sandbox"
)

// Cell is one lane under one fault, with the seed that decides what is left to
// chance.
type Cell struct {
	Lane  lane.Lane
	Fault fault.Fault
	Seed  uint64
}

// Cells returns every pair of a lane and a fault, by fault.
func Cells(lanes []lane.Lane, faults []fault.Fault, seed uint64) []Cell {
	cells := make([]Cell, 0, len(lanes)*len(faults))
	for _, f := range faults {
		for _, l := range lanes {
			cells = append(cells, Cell{l, f, seed})
		}
	}
	return cells
}

// Unfit says why the fault can't be applied to the lane on these services; "" says
// that it can.
func (c Cell) Unfit(s *sandbox.Services) string {
	if c.Fault.Unfit == nil {
		return ""
	}
	return c.Fault.Unfit(c.Lane, s)
}

// MustShow says that the cell exists to show something.
func (c Cell) MustShow() bool { return c.Lane.MustShow(c.Fault.Name) }

func (c Cell) String() string { return fmt.Sprintf("%s under %s", c.Lane.Name, c.Fault.Name) }

// Repeat is the command that runs this cell alone, on services like these.
func (c Cell) Repeat(s *sandbox.Services) string {
	parts := []string{"go run ./cmd/compare matrix", "--lane=" + c.Lane.Slug(), "--fault=" + c.Fault.Slug(), fmt.Sprintf("--seed=%d", c.Seed)}
	if strings.HasPrefix(s.KafkaVersion, "Apache") {
		parts = append(parts, "--kafka=apache")
	}
	return strings.Join(parts, " ")
}

// Quick returns the cells without which something that differs would go unseen: all
// that exist to show something; each lane under SIGKILL, which is what all of them
// are about; and each fault on a lane that holds, so that it is seen to be survived.
func Quick(cells []Cell, s *sandbox.Services) []Cell {
	held := make(map[lane.Fault]map[lane.Progress]bool)
	var quick []Cell
	for _, c := range cells {
		if c.Unfit(s) != "" {
			continue
		}
		survived := held[c.Fault.Name]
		if survived == nil {
			survived = make(map[lane.Progress]bool)
			held[c.Fault.Name] = survived
		}
		kind := c.Lane.Progress
		if c.Lane.Transactional {
			kind = "transactions"
		}
		if c.MustShow() || c.Fault.Name == lane.Kill9 || !survived[kind] && c.reference() {
			survived[kind] = survived[kind] || c.reference()
			quick = append(quick, c)
		}
	}
	return quick
}

// reference says that the lane is one of the reference implementations by itself, or
// with calls that carry a key: they are to survive everything that is theirs to survive.
func (c Cell) reference() bool {
	switch c.Lane.Name {
	case "inbox", "inbox + offsets", "inbox on a share group", "inbox behind a webhook", "inbox + http + key", "kafka eos", "eos + http + key":
		return true
	}
	return false
}
