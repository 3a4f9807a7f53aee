// Package report holds the results of a run: it writes and reads results.json and
// renders them for a terminal.
package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/delivered-twice/delivered-twice/internal/audit"
	"github.com/delivered-twice/delivered-twice/internal/lane"
)

// Report is everything that is known about a run.
type Report struct {
	Environment Environment `json:"environment"`
	// Plan are the kills that were drawn before the run, in the order in which
	// they were drawn: an empty list where none were, and nil in a matrix, in which each
	// fault plans its own strikes and Result.Injections counts them.
	Plan    []Kill   `json:"plan,omitzero"`
	Results []Result `json:"results"`
}

// Environment is what the figures were measured on.
type Environment struct {
	// Kafka names the broker and its version, such as "Apache Kafka 4.4.0".
	Kafka string `json:"kafka"`
	// Brokers is how many of them there were, where it was more than one.
	Brokers int `json:"brokers,omitempty"`
	// Postgres is the server's version.
	Postgres string `json:"postgres"`
	// Go is the version that built the pipelines.
	Go string `json:"go"`
	// CPUs is how many the run could use.
	CPUs int `json:"cpus"`
	// Seed gives the same events and the same plan again.
	Seed      uint64    `json:"seed"`
	StartedAt time.Time `json:"started_at"`
}

// Kill is one planned death of one instance.
type Kill struct {
	Lane     string `json:"lane"`
	Instance int    `json:"instance"`
	// Step is where it was to die, at the Passing-th passing (from 1).
	Step    string `json:"step"`
	Passing int    `json:"passing"`
	// Fired says that it did die there: an instance may have run out of events
	// before.
	Fired bool `json:"fired"`
	// RecoveryMS is the time from the death to the first acknowledgement of the
	// instance that took over; null where that was not seen.
	RecoveryMS *float64 `json:"recovery_ms"`
}

// Result is one lane under one fault.
type Result struct {
	Lane  string     `json:"lane"`
	Fault lane.Fault `json:"fault"`
	// Command gives the same lane by hand.
	Command string `json:"command"`
	// Seed gives the same events and strikes again, and Repeat is the command that
	// does, for this lane and this fault alone.
	Seed   uint64 `json:"seed,omitempty"`
	Repeat string `json:"repeat,omitempty"`
	// NotApplicable says why the fault cannot be done to the lane; "" where it can.
	// Nothing was run then, and there are no scopes.
	NotApplicable string `json:"not_applicable,omitempty"`
	// Failure says why the cell could not be carried through, or what went wrong that
	// no scope shows; "" where all went well.
	Failure string `json:"failure,omitempty"`
	// Folder is where the logs and traces are that were kept; "" where none were.
	Folder string `json:"folder,omitempty"`
	// Events is how many distinct events were sent.
	Events int `json:"events"`
	// Injections is how often the fault struck.
	Injections int `json:"injections"`
	// DeadLetters is how many events the lane gave up on and stored as such. They
	// are counted as lost where they are missing, and told here beside it.
	DeadLetters int `json:"dead_letters,omitempty"`
	// Unexpected are effects of events that nobody sent, or the first of them.
	Unexpected []audit.Effect       `json:"unexpected,omitempty"`
	Scopes     map[lane.Scope]Scope `json:"scopes"`
	// Throughput is events per second from the first to the last.
	Throughput float64 `json:"throughput"`
	// LatencyMS is from the creation of an event to the commit of its effects;
	// null where the commits have no time.
	LatencyMS *audit.Latency `json:"latency_ms"`
	// RecoveryMS is the longest of the lane's kills; null where there was none.
	RecoveryMS *float64 `json:"recovery_ms"`
	WallS      float64  `json:"wall_s"`
}

// Scope is what was counted in one scope, and whether that is what was claimed.
type Scope struct {
	lane.Counts
	Claim lane.Promise `json:"claim"`
	Held  bool         `json:"held"`
}

// Judge holds the counts of a lane's scopes against what it claims under a fault.
// Each of the lane's scopes must have been counted, but those to which the fault is
// not applicable: they are left out of the result.
func Judge(l lane.Lane, f lane.Fault, counted map[lane.Scope]lane.Counts) (map[lane.Scope]Scope, error) {
	judged := make(map[lane.Scope]Scope, len(l.Scopes))
	for _, s := range l.Scopes {
		claim, claimed := l.Claim(f, s)
		counts, hasCounts := counted[s]
		switch {
		case !claimed:
			return nil, fmt.Errorf("lane %q claims nothing of %s under %q: write its claim down before it is run", l.Name, s, f)
		case claim.Says == lane.NotApplicable:
			continue
		case !hasCounts:
			return nil, fmt.Errorf("lane %q writes %s, but nobody audited it", l.Name, s)
		}
		judged[s] = Scope{Counts: counts, Claim: claim.Says, Held: claim.Held(counts)}
	}
	return judged, nil
}

// Held says whether every claim was.
func (r Report) Held() bool {
	return !slices.ContainsFunc(r.Results, func(result Result) bool { return !result.Held() })
}

// Held says whether every claim of the lane under the fault was, and nothing else went
// wrong.
func (r Result) Held() bool {
	if r.Failure != "" {
		return false
	}
	for _, s := range r.Scopes {
		if !s.Held {
			return false
		}
	}
	return true
}

// FileName is what [Report.Write] calls the file.
const FileName = "results.json"

// Write puts the report into dir/results.json; dir is made where it is missing.
func (r Report) Write(dir string) error {
	var b bytes.Buffer
	if err := r.Encode(&b); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("keep the results: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, FileName), b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("keep the results: %w", err)
	}
	return nil
}

// Read reads what [Report.Write] wrote.
func Read(dir string) (Report, error) {
	path := filepath.Join(dir, FileName)
	b, err := os.ReadFile(path)
	if err != nil {
		return Report{}, fmt.Errorf("read the results of a run: %w; name a folder that compare run or compare matrix has kept", err)
	}
	var r Report
	if err := json.Unmarshal(b, &r); err != nil {
		return Report{}, fmt.Errorf("%s is not what a run writes: %w", path, err)
	}
	return r, nil
}

// Encode writes the report as JSON, indented and closed by a newline. Figures are
// rounded to a tenth, and passwords in addresses are left out.
func (r Report) Encode(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(r.published()); err != nil {
		return fmt.Errorf("write the results as JSON: %w", err)
	}
	return nil
}

// published is a copy for others to see: its figures say no more than was
// measured, its lists are never null (a matrix has no plan), and no address has a password.
func (r Report) published() Report {
	r.Environment.Kafka = redact(r.Environment.Kafka)
	r.Environment.Postgres = redact(r.Environment.Postgres)
	if r.OfMatrix() {
		r.Plan = nil
	} else {
		r.Plan = append([]Kill{}, r.Plan...)
	}
	for i := range r.Plan {
		r.Plan[i].RecoveryMS = tenths(r.Plan[i].RecoveryMS)
	}
	r.Results = append([]Result{}, r.Results...)
	for i := range r.Results {
		result := &r.Results[i]
		result.Command = redact(result.Command)
		result.Repeat = redact(result.Repeat)
		if result.Scopes == nil {
			result.Scopes = map[lane.Scope]Scope{}
		}
		result.Throughput = tenth(result.Throughput)
		result.RecoveryMS = tenths(result.RecoveryMS)
		result.WallS = tenth(result.WallS)
	}
	return r
}

func tenth(f float64) float64 { return math.Round(f*10) / 10 }

func tenths(f *float64) *float64 {
	if f == nil {
		return nil
	}
	rounded := tenth(*f)
	return &rounded
}

var (
	// Up to the last @ of the word, since a password may hold one.
	urlPassword = regexp.MustCompile(`(://[^:/@\s]*:)\S*@`)
	keyPassword = regexp.MustCompile(`(?i)((?:password|passwd|pwd)\s*=\s*)(?:'(?:\\.|[^'])*'|[^\s&]+)`)
)

// redact leaves passwords out of a text, in whatever form PostgreSQL's programs
// accept addresses.
func redact(text string) string {
	text = urlPassword.ReplaceAllString(text, "${1}xxxxx@")
	return keyPassword.ReplaceAllString(text, "${1}xxxxx")
}
