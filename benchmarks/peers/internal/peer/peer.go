// Package peer is what the programs under benchmarks/peers have in common: one command
// line, so that any of them can be started in place of another.
//
//	KAFKA_BROKERS=… [DATABASE_URL=…] program --input=… --output=… --group=… --instance=0 --commit-interval=100ms
//
// A program tells each setting that it was tuned with on standard error, as a line
// "setting name=value", and "ready" on standard output when all its workers have their
// partitions. It runs until it gets a SIGTERM, finishes what is open, and ends with
// exit code 0.
package peer

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// Flags are the command line.
type Flags struct {
	Brokers        []string
	DatabaseURL    string
	Input, Output  string
	Group          string
	Instance       string
	CommitInterval time.Duration
	// Workers is how many consumers, each with a producer or a connection of its own,
	// run in this process.
	Workers int

	ready *atomic.Int64
}

// Worker is one of the workers.
type Worker struct {
	Flags
	// Name is this worker's, its own in the group and the same after a restart.
	Name  string
	ready *sync.Once
}

// Ready is to be called when the worker has its partitions; again does nothing.
func (w Worker) Ready() {
	w.ready.Do(func() {
		if w.Flags.ready.Add(-1) == 0 {
			fmt.Println("ready")
		}
	})
}

// Setting tells a setting.
func Setting(name string, value any) { fmt.Fprintf(os.Stderr, "setting %s=%v\n", name, value) }

// Main runs a program with its own flags beside the common ones.
func Main(workers int, own func(*flag.FlagSet), settings func(Flags), run func(context.Context, Worker) error) {
	f := Flags{
		Brokers:     strings.FieldsFunc(os.Getenv("KAFKA_BROKERS"), func(r rune) bool { return r == ',' || r == ' ' }),
		DatabaseURL: os.Getenv("DATABASE_URL"),
		ready:       new(atomic.Int64),
	}
	flag.StringVar(&f.Input, "input", "orders.paid", "topic of events")
	flag.StringVar(&f.Output, "output", "orders.picked", "topic to pass them on to")
	flag.StringVar(&f.Group, "group", "peer", "consumer group")
	flag.StringVar(&f.Instance, "instance", "0", "name of this process, its own in the group")
	flag.DurationVar(&f.CommitInterval, "commit-interval", 100*time.Millisecond, "time between commits")
	flag.IntVar(&f.Workers, "workers", workers, "consumers in this process")
	own(flag.CommandLine)
	flag.Parse()
	if len(f.Brokers) == 0 || flag.NArg() > 0 || f.Workers < 1 {
		fmt.Fprintln(os.Stderr, "set KAFKA_BROKERS; --workers must be at least 1, and there are no arguments but flags")
		os.Exit(2)
	}
	f.ready.Store(int64(f.Workers))
	Setting("workers", f.Workers)
	Setting("commit-interval", f.CommitInterval)
	settings(f)

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	all, ctx := errgroup.WithContext(ctx)
	for i := range f.Workers {
		w := Worker{Flags: f, Name: fmt.Sprintf("%s-%d", f.Instance, i), ready: new(sync.Once)}
		all.Go(func() error { return run(ctx, w) })
	}
	if err := all.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
