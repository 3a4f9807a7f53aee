package trace

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/delivered-twice/delivered-twice/internal/jsonl"
)

const (
	// Folder is the folder, in one that a run has kept, that has a file of passings
	// for each attempt.
	Folder = "traces"
	// IncidentsFile is the file, beside that folder, that says what came from outside.
	IncidentsFile = "incidents.jsonl"
	// ThirdParty is the folder, beside both, that has the same of the third party that
	// was called.
	ThirdParty = "payments"
)

// Read returns the passings in a file, in the order in which they were written. A
// last line that is not complete is left out: its attempt died while writing it.
func Read(path string) ([]Passing, error) {
	passings, err := jsonl.Read[Passing](path)
	if err != nil {
		return nil, fmt.Errorf("read a trace: %w", err)
	}
	return passings, nil
}

// ReadDir returns the passings in all files of dir whose names end in .jsonl, the
// earliest first.
func ReadDir(dir string) ([]Passing, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return nil, fmt.Errorf("read traces: %w", err)
	}
	var all []Passing
	for _, path := range paths {
		passings, err := Read(path)
		if err != nil {
			return nil, err
		}
		all = append(all, passings...)
	}
	slices.SortStableFunc(all, func(a, b Passing) int { return a.At.Compare(b.At) })
	return all, nil
}

// Incident is something that came from outside: a signal that an attempt got, its end, or
// something that was done to all. Only whoever started the processes can know.
type Incident struct {
	At time.Time `json:"at"`
	// Attempt is the one that it happened to; "" where it was no attempt's alone.
	Attempt string `json:"attempt,omitempty"`
	// What is a signal by its name, such as SIGSTOP, [Exit] or how else an attempt ended,
	// or a sentence without a full stop.
	What string `json:"what"`
	// Ended says that the attempt ended with it.
	Ended bool `json:"ended,omitempty"`
	// Plan is the failpoint that did it, as its environment variable had it; "" where none
	// did.
	Plan string `json:"plan,omitempty"`
	// Events are those that it was about; none where it was about all.
	Events []string `json:"events,omitempty"`
}

// Exit is what an attempt ended with that ended by itself, and well.
const Exit = "exit 0"

// AppendIncident adds an incident to those that dir has, which must exist.
func AppendIncident(dir string, i Incident) error {
	if err := jsonl.Append(filepath.Join(dir, IncidentsFile), i); err != nil {
		return fmt.Errorf("keep what happened (%s): %w", i.What, err)
	}
	return nil
}

// ReadIncidents returns the incidents that dir has, the earliest first; none where it has
// none.
func ReadIncidents(dir string) ([]Incident, error) {
	incidents, err := jsonl.Read[Incident](filepath.Join(dir, IncidentsFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read what happened: %w", err)
	}
	slices.SortStableFunc(incidents, func(a, b Incident) int { return a.At.Compare(b.At) })
	return incidents, nil
}
