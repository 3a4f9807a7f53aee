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
	// EndingsFile is the file, beside that folder, that says how attempts ended.
	EndingsFile = "endings.jsonl"
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

// Ending says that a signal, or whatever else came from outside, ended or stopped
// an attempt. Only whoever started the process can know.
type Ending struct {
	Attempt string `json:"attempt"`
	// How is the signal by its name, such as SIGKILL, or what else it was.
	How string    `json:"how"`
	At  time.Time `json:"at"`
}

// AppendEnding adds an ending to those that dir has, which must exist.
func AppendEnding(dir string, e Ending) error {
	if err := jsonl.Append(filepath.Join(dir, EndingsFile), e); err != nil {
		return fmt.Errorf("keep how attempt %s ended: %w", e.Attempt, err)
	}
	return nil
}

// ReadEndings returns the endings that dir has, in the order in which they were
// added; none where it has none.
func ReadEndings(dir string) ([]Ending, error) {
	endings, err := jsonl.Read[Ending](filepath.Join(dir, EndingsFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read how attempts ended: %w", err)
	}
	return endings, nil
}
