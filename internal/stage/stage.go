// Package stage is where a lane is put on: topics, a group and a schema of its own,
// events, members that are started and ended by whoever holds the stage, and waits
// for what is to be waited for. What is done to the lane there, and what is found
// afterwards, is not its business.
package stage

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/failpoint"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/sandbox"
	"github.com/delivered-twice/delivered-twice/internal/trace"
)

const (
	// Batch is how many events a member takes at a time, at most.
	Batch = 25
	// maxEvents bounds the stream that a stage publishes from.
	maxEvents = 1 << 20
)

// Session timeouts of members, after which the group gives their partitions away.
const (
	// Patient is for faults in which nobody is to lose partitions.
	Patient = 20 * time.Second
	// Impatient is for those in which somebody is.
	Impatient = 2 * time.Second
)

// transactionTimeout is for faults in which no transaction is to be aborted because it
// took its time; those in which one is bring one of their own. Half of it is as long as
// a member may stand still without losing its partitions: in two-phase, nothing is
// decided after that.
const transactionTimeout = 2 * Patient

// Options say what is put on, and where.
type Options struct {
	Services *sandbox.Services
	Lane     lane.Lane
	// Name is the prefix of topics, groups, schemas and transactional ids: one stage's
	// alone among those that are open on the services.
	Name string
	// Seed decides the events, and whatever is drawn from [Stage.Random].
	Seed uint64
	// Dir is the folder for logs and traces.
	Dir string
	// Together is where stages meet whose services are disturbed; nil where this is
	// the only one.
	Together *Meeting
}

// Stage is one lane with all it needs. Its methods may be called from one goroutine
// at a time, unless they say otherwise.
type Stage struct {
	Lane     lane.Lane
	Services *sandbox.Services
	// Random is seeded: the same seed makes the same choices.
	Random *rand.Rand
	// Topics, the group and the address of the schema.
	Input, Output, DeadLetters, Group, DatabaseURL string
	// Dir is the folder for logs and traces.
	Dir string
	// API is the third party; nil where the lane calls none.
	API *API

	*Resources
	brokers  []string // as members get them; the services' own or a proxy's
	database string   // the same of DatabaseURL
	together *Meeting
	client   *kgo.Client // publishes
	next     func() (order.Event, bool, bool)
	stop     func()
	closers  []func() error
	poisoned int
	provider *provider // publishes, where events come by webhook; else nil

	mu          sync.Mutex
	members     []*Member        // all that were started
	planned     map[*Member]bool // those whose sudden end is no surprise
	incarnation map[int]int      // by instance
	sent        []order.Event    // distinct events, in the order sent
	unkept      error            // of keeping what happened
	injections  atomic.Int64
}

// Open creates topics and schema. Close must be called, whatever it returns.
func Open(ctx context.Context, o Options) (*Stage, error) {
	s := &Stage{
		Lane:        o.Lane,
		Services:    o.Services,
		Random:      rand.New(rand.NewPCG(o.Seed, 1)),
		Dir:         o.Dir,
		brokers:     o.Services.Brokers,
		together:    o.Together,
		planned:     make(map[*Member]bool),
		incarnation: make(map[int]int),
	}
	var err error
	if s.Resources, err = NewResources(o.Services.Brokers, o.Services.DatabaseURL); err != nil {
		return s, err
	}
	name := o.Name + "_" + o.Lane.Short
	if byWebhook(o.Lane) {
		return s, s.openWebhook(ctx, name, o.Seed)
	}
	if s.Input, err = s.Topic(ctx, name+".orders.paid", s.partitions()); err != nil {
		return s, err
	}
	if s.Output, err = s.Topic(ctx, name+".picked", s.partitions()); err != nil {
		return s, err
	}
	if o.Lane.Program == cli.EOSPipelineName {
		if s.DeadLetters, err = s.Topic(ctx, name+".dead-letters", 1); err != nil {
			return s, err
		}
	}
	s.Group = s.Resources.Group(name)
	if s.DatabaseURL, err = s.Schema(ctx, name); err != nil {
		return s, err
	}
	s.database = s.DatabaseURL
	if o.Lane.Writes(lane.HTTP) {
		if s.API, err = s.Resources.API(ctx, name+"_payments", o.Dir); err != nil {
			return s, err
		}
		s.closers = append(s.closers, s.API.Close)
	}
	s.client, err = kgo.NewClient(kgo.SeedBrokers(o.Services.Brokers...), kgo.ClientID("publisher"), kgo.ProducerLinger(0))
	if err != nil {
		return s, err
	}
	s.next, s.stop = pull(order.StreamOptions{Events: maxEvents, Seed: o.Seed})
	return s, nil
}

// openWebhook takes no Kafka.
func (s *Stage) openWebhook(ctx context.Context, name string, seed uint64) (err error) {
	if s.DatabaseURL, err = s.Schema(ctx, name); err != nil {
		return err
	}
	s.database = s.DatabaseURL
	if s.provider, err = newProvider(); err != nil {
		return err
	}
	s.closers = append(s.closers, s.provider.close)
	s.next, s.stop = pull(order.StreamOptions{Events: maxEvents, Seed: seed})
	return nil
}

// RedisPrefix is what the keys begin with that members claim in Redis.
func (s *Stage) RedisPrefix() string { return s.Input + "/" }

// Close kills what still runs, closes everything and, unless keep says otherwise,
// removes topics, group and schema.
func (s *Stage) Close(ctx context.Context, keep bool) error {
	var errs []error
	for _, m := range s.all() {
		errs = append(errs, m.Kill())
		<-m.Ended()
	}
	for _, closer := range slices.Backward(s.closers) {
		errs = append(errs, closer())
	}
	if s.stop != nil {
		s.stop()
	}
	if s.client != nil {
		s.client.Close()
	}
	if s.Resources != nil {
		if !keep {
			errs = append(errs, s.Remove(ctx))
		}
		s.Resources.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(append(errs, s.unkept)...)
}

// Struck says that the fault has struck once more. It may be called from any
// goroutine.
func (s *Stage) Struck() { s.injections.Add(1) }

// Injections is how often it has.
func (s *Stage) Injections() int { return int(s.injections.Load()) }

// Happened keeps, for whoever explains later, that something was just done to the lane that
// no signal to a member tells: a sentence without a full stop, in the past tense, and the
// ids of the events that it was about, none where it was about all. It may be called from
// any goroutine; [Stage.Close] returns what went wrong.
func (s *Stage) Happened(what string, events ...string) { s.happened(time.Now(), what, events...) }

func (s *Stage) happened(at time.Time, what string, events ...string) {
	err := os.MkdirAll(s.Dir, 0o755)
	if err == nil {
		err = trace.AppendIncident(s.Dir, trace.Incident{At: at, What: what, Events: events})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unkept = errors.Join(s.unkept, err)
}

// Meet waits until all stages that meet here have called Meet.
func (s *Stage) Meet(ctx context.Context) error {
	return s.together.Do(ctx, func(context.Context) error { return nil })
}

// partitions of the topics: on three brokers, each leads one. A share group with fewer
// members than partitions gives each member partitions of its own (KIP-932); it takes
// a single one for them to share it.
func (s *Stage) partitions() int32 {
	if s.Lane.Progress == lane.SharedRecords {
		return 1
	}
	return 3
}

// Together disturbs services once for all stages that meet here: when the last of them has
// called Together, with what that one says. It returns when that is over, with its error.
func (s *Stage) Together(ctx context.Context, d Disturbance) error {
	s.Struck()
	struck, err := s.together.do(ctx, d)
	if err == nil {
		s.happened(struck, d.Struck)
		s.Happened(d.Mended)
	}
	return err
}

// --- members ---------------------------------------------------------------------

// Entry says how a member enters.
type Entry struct {
	// Instance is its number in the group: the same one again is the next incarnation
	// of the same member.
	Instance int
	// Failpoint is a planned mishap: step[:n[:kill|pause|fail]]; "" plans none.
	Failpoint string
	// SessionTimeout is Patient where it is 0.
	SessionTimeout time.Duration
	// Group is another group than the stage's, "" for that one.
	Group string
	// Args come on top of the lane's own.
	Args []string
}

// Enter starts a member.
func (s *Stage) Enter(e Entry) (*Member, error) {
	var planned *failpoint.Failpoint
	if e.Failpoint != "" {
		var err error
		if planned, err = failpoint.Parse(e.Failpoint); err != nil {
			return nil, err
		}
	}
	if e.SessionTimeout == 0 {
		e.SessionTimeout = Patient
	}
	if e.Group == "" {
		e.Group = s.Group
	}
	s.mu.Lock()
	s.incarnation[e.Instance]++
	attempt := fmt.Sprintf("%s-%d.%d", s.Lane.Short, e.Instance, s.incarnation[e.Instance])
	s.mu.Unlock()
	source := []string{
		"--input=" + s.Input,
		"--output=" + s.Output,
		"--group=" + e.Group,
		fmt.Sprintf("--instance=%d", e.Instance),
		"--session-timeout=" + e.SessionTimeout.String(),
	}
	env := append(s.API.Env(),
		"KAFKA_BROKERS="+strings.Join(s.brokers, ","),
		"DATABASE_URL="+s.database, // not an argument: everybody on the machine can read those
		"REDIS_URL="+s.Services.RedisURL,
	)
	if byWebhook(s.Lane) {
		source, env = s.provider.args(e.Instance), append(env, s.provider.env()...)
	}
	m, err := Start(Launch{
		Role:      s.Lane.Program,
		Args:      slices.Concat(s.Lane.Args, s.sizes(), source, e.Args),
		Env:       env,
		Attempt:   attempt,
		Failpoint: planned,
		Dir:       s.Dir,
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", attempt, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.members = append(s.members, m)
	if planned != nil && planned.Action == failpoint.Kill {
		s.planned[m] = true
	}
	return m, nil
}

// sizes are the flags that keep batches small, so that there are many steps, and
// transactions open, however busy the machine is.
func (s *Stage) sizes() []string {
	if s.Lane.Program == cli.EOSPipelineName {
		sizes := []string{
			"--dead-letters=" + s.DeadLetters,
			fmt.Sprintf("--max-transaction-records=%d", Batch),
			"--commit-interval=20ms",
		}
		if s.Lane.Transactional {
			sizes = append(sizes, "--transaction-timeout="+transactionTimeout.String())
		}
		return sizes
	}
	return []string{fmt.Sprintf("--batch-size=%d", Batch)}
}

// Kill ends a member with SIGKILL and waits until it is gone.
func (s *Stage) Kill(ctx context.Context, m *Member) error {
	s.mu.Lock()
	s.planned[m] = true
	s.mu.Unlock()
	if err := m.Kill(); err != nil {
		return err
	}
	_, err := m.Wait(ctx)
	return err
}

// End ends members with SIGTERM, all at once, and waits until they are gone. One
// that does not exit with 0 is an error.
func (s *Stage) End(ctx context.Context, members ...*Member) error {
	for _, m := range members {
		if err := m.Terminate(ctx); err != nil {
			return err
		}
	}
	for _, m := range members {
		if err := s.AwaitEnd(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// AwaitEnd waits until a member is gone that was told to end. One that does not exit
// with 0 is an error.
func (s *Stage) AwaitEnd(ctx context.Context, m *Member) error {
	how, err := m.Wait(ctx)
	if err != nil {
		return err
	}
	if how != "" {
		return fmt.Errorf("%s was told to end by SIGTERM, and ended with %s", m.Attempt, how)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.planned[m] = true
	return nil
}

// Disband ends all members and puts them out of the group, in which they, being
// static, would be waited for until their sessions time out.
func (s *Stage) Disband(ctx context.Context) error {
	if err := s.End(ctx, s.Running()...); err != nil {
		return err
	}
	if s.Lane.Progress == lane.SharedRecords || byWebhook(s.Lane) {
		return nil // its members are never static, or there is no group
	}
	return s.Await(ctx, "group "+s.Group+" to disband", func(ctx context.Context) (bool, error) {
		err := s.putOut(ctx, s.Group)
		return err == nil, err
	})
}

// AwaitDeath waits until a member dies of its failpoint. Should all events be
// consumed before, it publishes more: a failpoint that finds nothing to do was not
// tried.
func (s *Stage) AwaitDeath(ctx context.Context, m *Member) error {
	for {
		select {
		case <-m.Ended():
			if how := m.ending(); how != Killed {
				return fmt.Errorf("%s was to die of SIGKILL, and ended with %q", m.Attempt, how)
			}
			s.Struck()
			return nil
		case <-ctx.Done():
			return fmt.Errorf("%s was to die of SIGKILL, and lives: %w", m.Attempt, ctx.Err())
		case <-time.After(poll):
		}
		if done, err := s.consumed(ctx, s.Group); err == nil && done {
			if err := s.Publish(ctx, Batch); err != nil {
				return err
			}
		}
	}
}

// Running returns the members that are there.
func (s *Stage) Running() []*Member {
	return slices.DeleteFunc(s.all(), func(m *Member) bool { return !m.Running() })
}

func (s *Stage) all() []*Member {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.members)
}

// surprise returns an error if a member, or the third party, has ended that nobody has
// ended.
func (s *Stage) surprise() error {
	if err := s.API.surprise(); err != nil {
		return err
	}
	for _, m := range s.all() {
		s.mu.Lock()
		expected := s.planned[m]
		s.mu.Unlock()
		if !expected && !m.Running() {
			return fmt.Errorf("%s ended by itself with %q; its log: %s", m.Attempt, m.ending(), m.log)
		}
	}
	return nil
}

// Settle lets the lane finish: it starts a member if none is there, publishes a last
// batch, which shows that the lane goes on after all, waits until everything is
// consumed, and ends the members and the third party.
func (s *Stage) Settle(ctx context.Context) error {
	if len(s.Running()) == 0 {
		if _, err := s.Enter(Entry{}); err != nil {
			return err
		}
	}
	if err := s.Publish(ctx, Batch); err != nil {
		return err
	}
	if err := s.AwaitConsumed(ctx); err != nil {
		return err
	}
	if err := s.End(ctx, s.Running()...); err != nil {
		return err
	}
	return s.API.End(ctx)
}

// Folder is where a stage of that name keeps its files below dir.
func Folder(dir string, l lane.Lane, f lane.Fault) string {
	return filepath.Join(dir, l.Slug(), lane.Slug(string(f)))
}
