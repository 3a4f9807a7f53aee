// Command peers has the peers in this folder, or this project's own pipelines, do the
// work of a contest, and prints the settings, the figures and the audit.
//
//	cd benchmarks/peers && go run . run kafka-streams --events 1000000
//	cd benchmarks/peers && go run . run eos-pipeline -- --transactions-in-flight=2
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/delivered-twice/delivered-twice/benchmarks/contest"
	"github.com/delivered-twice/delivered-twice/benchmarks/suite"
	"github.com/delivered-twice/delivered-twice/internal/endpoint"
	"github.com/delivered-twice/delivered-twice/internal/warehouse"
)

// errUnclean is how a run ends whose audit is not clean.
var errUnclean = errors.New("not every event is there once and in order")

func main() {
	suite.Init()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{Use: "peers", Short: "The same work through other software, measured and audited", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(runCommand(), suiteCommand())
	err := root.ExecuteContext(ctx)
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "peers:", err)
	if errors.Is(err, errUnclean) {
		os.Exit(1)
	}
	os.Exit(2)
}

func runCommand() *cobra.Command {
	o := contest.Options{DatabaseURL: os.Getenv("DATABASE_URL")}
	var verbose bool
	var table string
	cmd := &cobra.Command{
		Use:   "run NAME [flags] [-- flags of the program]",
		Short: "Run one of: " + strings.Join(names(), ", "),
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			p, err := find(args[0])
			if err != nil {
				return err
			}
			dir, err := os.MkdirTemp("", "delivered-twice-peers-")
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
			if o.Contender, err = p.build(cmd.Context(), dir, args[1:]); err != nil {
				return err
			}
			if table != "" {
				o.Contender.Table = table
			}
			if verbose {
				o.Log = os.Stderr
			}
			o.Brokers = brokers()
			if err := printEnvironment(cmd.Context(), o); err != nil {
				return err
			}
			figures, err := contest.Run(cmd.Context(), o)
			if err != nil {
				return err
			}
			printFigures(os.Stdout, figures)
			if !figures.Audit.Clean() {
				return errUnclean
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.Events, "events", 100_000, "how many")
	f.IntVar(&o.Rate, "rate", 0, "events due in a second; 0: all are there before the program starts")
	f.IntVar(&o.Instances, "instances", 1, "processes that share the work")
	f.IntVar(&o.Partitions, "partitions", 4, "of the topics")
	f.IntVar(&o.RequestEvents, "count-requests", 0, "count the requests to Kafka in another pass of so many events")
	f.DurationVar(&o.Patience, "patience", time.Minute, "how long nothing may come of the events")
	f.StringVar(&table, "table", "", fmt.Sprintf("table whose rows are the effects, %s or %s (default: that of the program)", warehouse.LoyaltyPoints, warehouse.PickTasks))
	f.BoolVarP(&verbose, "verbose", "v", false, "show what the program says")
	return cmd
}

func brokers() []string {
	return strings.FieldsFunc(os.Getenv("KAFKA_BROKERS"), func(r rune) bool { return r == ',' || r == ' ' })
}

func printEnvironment(ctx context.Context, o contest.Options) error {
	kafka, err := endpoint.Kafka(ctx, o.Brokers)
	if err != nil {
		return err
	}
	fmt.Printf("kafka: %s\n", kafka)
	if o.Contender.Table != "" {
		postgres, err := endpoint.Postgres(ctx, o.DatabaseURL)
		if err != nil {
			return err
		}
		fmt.Printf("postgres: %s\n", postgres)
	}
	fmt.Printf("cpus: %d\nevents: %d\nrate: %d\ninstances: %d\npartitions: %d\nvalue-bytes: %d\nwarm-up: the first %g %% are not measured\n",
		runtime.NumCPU(), o.Events, o.Rate, o.Instances, o.Partitions, contest.ValueBytes, 100*contest.WarmUp)
	return nil
}

func printFigures(w io.Writer, f contest.Figures) {
	for _, setting := range f.Settings {
		fmt.Fprintf(w, "setting: %s\n", setting)
	}
	fmt.Fprintf(w, "events/s: %.0f\n", f.EventsPerSecond)
	if h := f.Latency; h != nil {
		ms := func(microseconds int64) float64 { return float64(microseconds) / 1000 }
		fmt.Fprintf(w, "p50-ms: %.1f\np99-ms: %.1f\nmax-ms: %.1f\n", ms(h.ValueAtPercentile(50)), ms(h.ValueAtPercentile(99)), ms(h.Max()))
	}
	fmt.Fprintf(w, "cpu-s/million: %.2f\nmax-rss-MB: %.0f\n", f.CPUSecondsPerMillion, float64(f.MaxRSSBytes)/1e6)
	if f.WALBytesPerRecord > 0 {
		fmt.Fprintf(w, "wal-bytes/event: %.0f\n", f.WALBytesPerRecord)
	}
	if f.RequestsPerRecord > 0 {
		fmt.Fprintf(w, "requests/event: %.5f\n", f.RequestsPerRecord)
	}
	fmt.Fprintf(w, "audit: %s\n", f.Audit)
}

// peer is a program that can be run here.
type peer struct {
	name string
	// dir is that of its module, and path that of its package or Maven project there.
	dir, path string
	maven     bool
	table     string
	args      []string
}

func peers() []peer {
	const main = "../.." // the module with the pipelines
	return []peer{
		{name: "kafka-streams", path: "./kafka-streams", maven: true},
		{name: "librdkafka", path: "./librdkafka"},
		{name: "sarama", path: "./sarama"},
		{name: "group-transact-session", path: "./group-transact-session"},
		{name: "kafkatx", path: "./kafkatx"},
		{name: "watermill", path: "./watermill", table: warehouse.LoyaltyPoints},
		{name: "plain-inbox", path: "./plain-inbox", table: warehouse.LoyaltyPoints},
		{name: "eos-pipeline", dir: main, path: "./cmd/eos-pipeline"},
		{name: "inbox-pipeline", dir: main, path: "./cmd/inbox-pipeline", table: warehouse.LoyaltyPoints, args: []string{"--handlers=loyalty"}},
	}
}

func names() (names []string) {
	for _, p := range peers() {
		names = append(names, p.name)
	}
	return names
}

func find(name string) (peer, error) {
	for _, p := range peers() {
		if p.name == name {
			return p, nil
		}
	}
	return peer{}, fmt.Errorf("there is no %q; there are %s", name, strings.Join(names(), ", "))
}

// build builds the program into dir, and returns it as a contender that gets more
// arguments. The working directory must be benchmarks/peers.
func (p peer) build(ctx context.Context, dir string, more []string) (contest.Contender, error) {
	if _, err := os.Stat("kafka-streams/pom.xml"); err != nil {
		return contest.Contender{}, errors.New("the peers are not here: change to benchmarks/peers first")
	}
	var building *exec.Cmd
	var program []string
	if p.maven {
		building = exec.CommandContext(ctx, "mvn", "-q", "-B", "-f", filepath.Join(p.path, "pom.xml"), "package")
		program = []string{"java", "-Xmx1g", "-cp", filepath.Join(p.path, "target", "lib", "*"), "peer.Streams"}
	} else {
		binary := filepath.Join(dir, p.name)
		building = exec.CommandContext(ctx, "go", "build", "-o", binary, p.path)
		program = []string{binary}
	}
	building.Dir = p.dir
	building.Stdout, building.Stderr = os.Stderr, os.Stderr
	if err := building.Run(); err != nil {
		return contest.Contender{}, fmt.Errorf("build %s: %w", p.name, err)
	}
	return contest.Contender{
		Name:  p.name,
		Table: p.table,
		Command: func(a contest.Assignment) *exec.Cmd {
			args := append(program[1:len(program):len(program)],
				"--input="+a.Input, "--output="+a.Output, "--group="+a.Group, "--instance="+strconv.Itoa(a.Instance))
			args = append(append(args, p.args...), more...)
			return exec.Command(program[0], args...)
		},
	}, nil
}
