package cli_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/audit"
	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/process"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
	"github.com/delivered-twice/delivered-twice/internal/trace"
)

func TestMain(m *testing.M) {
	process.Register(cli.EOSPipelineName, cli.EOSPipeline)
	process.Register(cli.InboxPipelineName, cli.InboxPipeline)
	process.Register(cli.PaymentsAPIName, cli.PaymentsAPI)
	sandboxtest.Main(m)
}

// patience bounds every wait. It is no part of any claim: reaching it is a failure.
const patience = 60 * time.Second

// bench is a place for one pipeline: topics, a group, a schema.
type bench struct {
	t                      *testing.T
	input, output, letters string
	group                  string
	database               string
	admin                  *kadm.Client
	env                    []string // of every pipeline
}

func newBench(t *testing.T) *bench {
	return &bench{
		t:        t,
		input:    sandboxtest.Topic(t, 2),
		output:   sandboxtest.Topic(t, 2),
		letters:  sandboxtest.Topic(t, 1),
		group:    sandboxtest.Name(t),
		database: sandboxtest.Database(t),
		admin:    kadm.NewClient(sandboxtest.Client(t)),
	}
}

// send produces records and waits until the broker has them.
func (b *bench) send(records ...*kgo.Record) {
	b.t.Helper()
	require.NoError(b.t, sandboxtest.Client(b.t).ProduceSync(b.t.Context(), records...).FirstErr())
}

// publish sends a stream of events.
func (b *bench) publish(o order.StreamOptions) audit.Expected {
	b.t.Helper()
	var records []*kgo.Record
	for e := range order.Stream(o) {
		records = append(records, e.Record(b.input))
	}
	b.send(records...)
	return audit.Expect(o)
}

// pipeline is a running pipeline.
type pipeline struct {
	t      *testing.T
	cmd    *process.Cmd
	trace  string
	stderr bytes.Buffer
}

// start runs a program as a process of its own. env is added to its environment.
func (b *bench) start(program string, env []string, args ...string) *pipeline {
	b.t.Helper()
	args = append([]string{"--input=" + b.input, "--output=" + b.output, "--group=" + b.group, "--session-timeout=6s"}, args...)
	if program == cli.EOSPipelineName {
		args = append(args, "--dead-letters="+b.letters)
	}
	env = append([]string{
		"KAFKA_BROKERS=" + strings.Join(sandboxtest.Brokers(b.t), ","),
		"DATABASE_URL=" + b.database,
	}, append(slices.Clone(b.env), env...)...)
	return startProgram(b.t, program, env, args...)
}

func startProgram(t *testing.T, program string, env []string, args ...string) *pipeline {
	t.Helper()
	p := newProgram(t, program, env, args...)
	p.start()
	return p
}

// newProgram is a program that is yet to be started.
func newProgram(t *testing.T, program string, env []string, args ...string) *pipeline {
	p := &pipeline{t: t, cmd: process.Command(program, args...), trace: filepath.Join(t.TempDir(), "trace.jsonl")}
	p.cmd.Stderr = &p.stderr
	p.cmd.Env = append(p.cmd.Environ(), trace.Variable+"="+p.trace)
	for _, variable := range env {
		if path, ok := strings.CutPrefix(variable, trace.Variable+"="); ok {
			p.trace = path
		}
		p.cmd.Env = append(p.cmd.Env, variable)
	}
	return p
}

func (p *pipeline) start() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Start())
	p.t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
		if p.t.Failed() {
			p.t.Logf("%s:\n%s", p.cmd.Args[0], p.stderr.String())
		}
	})
}

// wait returns the exit code, or minus the signal that ended the process.
func (p *pipeline) wait() int {
	p.t.Helper()
	overdue := time.AfterFunc(patience, func() { _ = p.cmd.Process.Signal(syscall.SIGQUIT) })
	defer overdue.Stop()
	err := p.cmd.Wait()
	if err == nil {
		return 0
	}
	var exit *exec.ExitError
	require.ErrorAs(p.t, err, &exit)
	if status := exit.Sys().(syscall.WaitStatus); status.Signaled() {
		return -int(status.Signal())
	}
	return exit.ExitCode()
}

// end stops the pipeline with SIGTERM, which a program that was started a moment ago
// listens for from before it begins its trace.
func (p *pipeline) end() {
	p.t.Helper()
	require.Eventually(p.t, func() bool {
		_, err := os.Stat(p.trace)
		return err == nil
	}, patience, time.Millisecond, "%s does not start", p.cmd.Args[0])
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(p.t, cli.ExitOK, p.wait(), p.stderr.String())
}

// awaitConsumed waits until the group has committed all of the input.
func (b *bench) awaitConsumed() {
	b.t.Helper()
	require.Eventually(b.t, b.consumed, patience, 10*time.Millisecond, "the group does not get to the end of the input")
}

func (b *bench) consumed() bool {
	ends, err := b.admin.ListEndOffsets(b.t.Context(), b.input)
	if err != nil {
		return false
	}
	committed, err := b.admin.FetchOffsets(b.t.Context(), b.group)
	if err != nil {
		return false
	}
	all := true
	ends.Each(func(end kadm.ListedOffset) {
		at, ok := committed.Lookup(end.Topic, end.Partition)
		all = all && (end.Offset == 0 || ok && at.At == end.Offset)
	})
	return all
}

// deadLetters returns the causes of a handler's dead letters.
func (b *bench) deadLetters(handler string) []string {
	b.t.Helper()
	rows, err := b.pool().Query(b.t.Context(), `SELECT error FROM dead_letters WHERE handler = $1`, handler)
	require.NoError(b.t, err)
	letters, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(b.t, err)
	return letters
}

func (b *bench) auditTopic(expected audit.Expected) audit.TopicAudit {
	b.t.Helper()
	found, err := audit.Topic(b.t.Context(), b.output, expected, kgo.SeedBrokers(sandboxtest.Brokers(b.t)...))
	require.NoError(b.t, err)
	return found
}

func (b *bench) auditTables(expected audit.Expected) audit.TableAudit {
	b.t.Helper()
	found, err := audit.Tables(b.t.Context(), b.pool(), expected)
	require.NoError(b.t, err)
	return found
}

func (b *bench) pool() *pgxpool.Pool {
	b.t.Helper()
	pool, err := pgxpool.New(b.t.Context(), b.database)
	require.NoError(b.t, err)
	b.t.Cleanup(pool.Close)
	return pool
}
