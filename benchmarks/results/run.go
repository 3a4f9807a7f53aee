// Package results keeps what was measured, one line a run, and makes of it what people
// read: goals that were reached or not, and what each guarantee costs.
package results

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/jszwec/csvutil"
)

// Run is one contender's run: one line of results.csv. A figure that was not measured
// is zero here and empty there.
type Run struct {
	// Part is the part of the set that it belongs to. Case is what it is compared by: its
	// own among the contenders of a round. Rounds count from 1: runs of one round
	// followed one another, and only those are compared.
	Part  string `csv:"part"`
	Case  string `csv:"case"`
	Round int    `csv:"round"`
	// Contender is the program; Settings is its command line, or what a peer was set to.
	Contender string `csv:"contender"`
	Settings  string `csv:"settings"`
	// Batch is how many events are committed together, at most, InFlight how many
	// transactions of one process may be under way, Instances how many processes there
	// were. Rate is how many events a second were created; 0: all were there before.
	Batch     int `csv:"batch,omitempty"`
	InFlight  int `csv:"in_flight,omitempty"`
	Instances int `csv:"instances,omitempty"`
	Rate      int `csv:"rate,omitempty"`
	Events    int `csv:"events"`

	EventsPerSecond float64 `csv:"events_s,omitempty"`
	// Milliseconds from an event's creation, or from when it should have been created,
	// until a read_committed reader had its record, or Postgres had committed its rows.
	P50 float64 `csv:"p50_ms,omitempty"`
	P99 float64 `csv:"p99_ms,omitempty"`
	Max float64 `csv:"max_ms,omitempty"`
	// RequestsPerRecord are requests to the broker, WALBytesPerRecord what Postgres wrote
	// ahead.
	RequestsPerRecord float64 `csv:"requests_record,omitempty"`
	WALBytesPerRecord float64 `csv:"wal_bytes_record,omitempty"`
	// CPUSecondsPerMillion are of the contender's processes, for a million events.
	CPUSecondsPerMillion float64 `csv:"cpu_s_million,omitempty"`
	// MaxRSSBytes is of its largest process.
	MaxRSSBytes int64 `csv:"max_rss_bytes,omitempty"`
	// Audit begins with Passed, or is what is wrong with what the contender left behind, or why it
	// did not finish.
	Audit string `csv:"audit"`
}

// Passed is how the audit of a run begins that did what it promises.
const Passed = "ok"

// Passed says whether it did.
func (r Run) Passed() bool { return strings.HasPrefix(r.Audit, Passed) }

// Write writes a table of runs with a header.
func Write(w io.Writer, runs []Run) error {
	table, err := csvutil.Marshal(runs)
	if err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	_, err = w.Write(table)
	return err
}

// Read reads what Write wrote. A column that it does not know is an error.
func Read(r io.Reader) ([]Run, error) {
	table, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	var runs []Run
	if err := csvutil.Unmarshal(table, &runs); err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	return runs, nil
}

// ReadFile reads a file of runs. Where there is none, there are no runs.
func ReadFile(path string) ([]Run, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	runs, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return runs, nil
}

// WriteFile replaces a file of runs. It is always whole: an interrupted write leaves the
// old one.
func WriteFile(path string, runs []Run) error {
	f, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	if err := errors.Join(Write(f, runs), f.Close()); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// Without returns the runs that are of other parts.
func Without(runs []Run, part string) []Run {
	return slices.DeleteFunc(slices.Clone(runs), func(r Run) bool { return r.Part == part })
}
