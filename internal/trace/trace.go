// Package trace keeps which process incarnation passed which step with which
// events, one line of JSON a passing, so that what was lost or done twice can be
// explained afterwards.
package trace

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"
)

// Variable is the environment variable that names the file which [FromEnv] writes.
// Every attempt needs a file of its own: one that is killed may leave half a line,
// and whatever another appended to that could not be read.
const Variable = "TRACE_FILE"

// Passing says that an attempt passed a step.
type Passing struct {
	At time.Time `json:"at"`
	// Attempt is the process incarnation.
	Attempt string `json:"attempt"`
	Step    string `json:"step"`
	// Handler is the one that passed it; "" where all did together.
	Handler string `json:"handler,omitempty"`
	// Events are the ids concerned, in the order of their delivery.
	Events []string `json:"events,omitempty"`
}

// Writer appends passings to a file. A nil *Writer writes nothing. It is safe for
// concurrent use.
type Writer struct {
	attempt string
	mu      sync.Mutex
	file    *os.File
}

// FromEnv returns the writer of an attempt to the file that the environment
// variable [Variable] names, nil where it names none.
func FromEnv(attempt string) (*Writer, error) {
	path := os.Getenv(Variable)
	if path == "" {
		return nil, nil
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("environment variable %s: %w", Variable, err)
	}
	return &Writer{attempt: attempt, file: file}, nil
}

// Pass appends one passing, in one write and before it returns: a process that is
// killed a moment later has left the line. It must be called before whatever a
// failpoint does at that step.
func (w *Writer) Pass(step, handler string, events []string) error {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	// The time is taken where nobody can come between: lines stand in the order of their times.
	line, err := json.Marshal(Passing{At: time.Now(), Attempt: w.attempt, Step: step, Handler: handler, Events: events})
	if err != nil {
		return err
	}
	if _, err := w.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("trace step %s: %w", step, err)
	}
	return nil
}
