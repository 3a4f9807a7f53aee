// Package contest has programs do the same work on the same services, measures them
// from the outside, and audits what they left behind. A program may be anything that
// can be started: a pipeline of this project, or a peer in another language.
//
// The work is a topic of OrderPaid events with values of [ValueBytes]. What is to come
// of each is one record in an output topic, with the event's headers, or one row in a
// table of Postgres.
//
// # What is measured
//
// At full speed ([Options].Rate is 0) the topic is filled before the program starts.
// At a fixed rate it starts first, and the clock when it has passed on the first few
// events; each event is then due at a moment of its own, whether or not anybody keeps
// up, and its latency counts from that moment: no coordinated omission.
//
// [WarmUp] of the events is left out of all figures: so connecting, joining the group,
// and a virtual machine's compiling are, as far as they are done by then.
//
// Speed is that of what is there for all to see: in Kafka up to the last stable offset,
// which is what a read_committed reader is given; in Postgres by the time of the commit,
// so track_commit_timestamp must be on. Nothing is read while the program works at
// full speed, and so no reader takes its processor time; the offsets that were seen
// are matched with the records afterwards. At a fixed rate there is a read_committed
// reader, and what it saw when is the latency.
package contest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	// ValueBytes is the size of an event's value.
	ValueBytes = 256
	// WarmUp is the share of the events that is not measured.
	WarmUp = 0.2
	// Seed is that of the events.
	Seed = 1
)

// Assignment is what one instance of a contender is to work on. The addresses of the
// services are in its environment, as KAFKA_BROKERS and DATABASE_URL, for a password
// must not be among the arguments of a process.
type Assignment struct {
	// Input is the topic of events, and Output the topic for what becomes of them.
	Input, Output string
	// Group is the consumer group of all instances.
	Group string
	// Instance counts the instances from 0.
	Instance int
}

// Contender is a program that can be started.
type Contender struct {
	// Name stands in names of topics, groups and errors.
	Name string
	// Command returns the command that is one instance. It runs until it gets a
	// SIGTERM, and then ends by itself, with exit code 0. Its standard input stays
	// open for as long as it may live. A line "setting name=value" on its standard
	// error is something it wants to be known with the figures.
	Command func(Assignment) *exec.Cmd
	// Table is the table of package warehouse that gets a row for each event; empty
	// for a program that produces to the output topic.
	Table string
}

// Options say what to contend with.
type Options struct {
	Brokers []string
	// DatabaseURL is needed by contenders with a Table. They get a schema of their own.
	DatabaseURL string
	Contender   Contender
	// Events is how many there are.
	Events int
	// Rate is how many of them are due in a second; 0 has all of them there before the
	// contender starts.
	Rate int
	// Instances is how many processes share the work; 0 is 1.
	Instances int
	// Partitions are those of input and output; 0 is 4.
	Partitions int
	// RequestEvents is with how many events, at the same rate, the requests to Kafka
	// are counted, in a pass of its own behind a proxy that nothing else is measured
	// with; 0: they are not counted.
	RequestEvents int
	// Patience is how long nothing may come of the events; 0 is a minute.
	Patience time.Duration
	// Log gets what the contender writes to standard error; nil: nobody does.
	Log io.Writer
}

// Figures are what was measured, and what was left behind.
type Figures struct {
	// EventsPerSecond is how many events came out, from the end of the warm-up to the
	// last.
	EventsPerSecond float64
	// Latency is from the moment an event was due until its effect could be seen, in
	// microseconds; nil at full speed, where it would only say how long events queued.
	Latency *hdrhistogram.Histogram
	// CPUSecondsPerMillion are seconds of processor time of the contender's processes
	// for a million events; that of Kafka and of Postgres is not in it.
	CPUSecondsPerMillion float64
	// MaxRSSBytes is the most memory that any instance had resident.
	MaxRSSBytes int64
	// WALBytesPerRecord is by how much PostgreSQL's write-ahead log grew, whoever wrote
	// to it, for each event; 0 without a table.
	WALBytesPerRecord float64
	// RequestsPerRecord are requests to Kafka, of every kind, for each event; 0 unless
	// they were counted.
	RequestsPerRecord float64
	Audit             Audit
	// Settings are the command line and what the contender wants to be known.
	Settings []string
}

// Audit counts the events by what was found of each.
type Audit struct {
	Expected   int
	Once       int
	Lost       int
	Duplicated int
	// Reordered are the events whose first effect came after one of a later event of
	// the same key; they are counted above, too.
	Reordered int
	// Unexpected are effects of no event that was sent.
	Unexpected int
}

// Clean says that everything is there once and in order.
func (a Audit) Clean() bool { return a.Once == a.Expected && a.Reordered == 0 && a.Unexpected == 0 }

// String is one line.
func (a Audit) String() string {
	return fmt.Sprintf("expected %d, once %d, lost %d, duplicated %d, reordered %d, unexpected %d",
		a.Expected, a.Once, a.Lost, a.Duplicated, a.Reordered, a.Unexpected)
}

// ErrTooFew is wrapped by the error of [Run] where all was done between two looks, and so
// nothing could be measured: it takes more events.
var ErrTooFew = errors.New("done too fast, or too few events, to measure")

// Run has a contender do the work, on topics, a group and a schema of its own, which
// are removed at the end. That events are lost or duplicated is no error, but in the
// Audit; that the contender ends by itself, or that nothing comes of the events any
// more, is.
func Run(ctx context.Context, o Options) (Figures, error) {
	o.Instances, o.Partitions, o.Patience = cmp.Or(o.Instances, 1), cmp.Or(o.Partitions, 4), cmp.Or(o.Patience, time.Minute)
	if err := o.check(); err != nil {
		return Figures{}, err
	}
	figures, err := pass(ctx, o, false)
	if err == nil && o.RequestEvents > 0 {
		counting := o
		counting.Events = o.RequestEvents
		var counted Figures
		if counted, err = pass(ctx, counting, true); err == nil {
			figures.RequestsPerRecord = counted.RequestsPerRecord
		}
	}
	if err != nil {
		return Figures{}, fmt.Errorf("%s: %w", o.Contender.Name, err)
	}
	return figures, nil
}

func (o Options) check() error {
	switch {
	case o.Contender.Name == "" || o.Contender.Command == nil:
		return errors.New("a contender needs a name and a command")
	case len(o.Brokers) == 0:
		return errors.New("no Kafka brokers")
	case o.Contender.Table != "" && o.DatabaseURL == "":
		return fmt.Errorf("%s writes to Postgres, and there is no database", o.Contender.Name)
	case o.Events < 100 || o.RequestEvents < 0 || o.RequestEvents > 0 && o.RequestEvents < 100:
		return errors.New("fewer than 100 events say nothing")
	case o.Rate < 0 || o.Instances < 0 || o.Partitions < 0 || o.Patience < 0:
		return errors.New("a rate, or a number, is negative")
	}
	return nil
}

// settingPrefix begins a line in which a contender tells a setting.
const settingPrefix = "setting "
