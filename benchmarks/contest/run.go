package contest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/wire"
)

const (
	// lookEvery is how often the scope is looked at, and so how exactly moments are
	// known.
	lookEvery = 10 * time.Millisecond
	// askEvery is how often it is asked whether everything is done.
	askEvery = 100 * time.Millisecond
	// primer is how many events must have passed before a fixed rate begins, at most.
	primer = 100
	// cleanupPatience bounds the removal of topics and schema.
	cleanupPatience = 30 * time.Second
)

// sample is a look, with what else is counted.
type sample struct {
	mark
	cpu      float64
	requests int64
}

// race is one pass.
type race struct {
	Options
	Assignment
	client  *kgo.Client
	admin   *kadm.Client
	scope   scope
	ledger  *ledger
	proxy   *wire.Proxy // nil unless requests are counted
	members members
	due     []time.Time // by event, at a fixed rate
	samples []sample
	lastNew time.Time
}

var unnameable = regexp.MustCompile(`[^a-z0-9]+`)

// pass has the contender do the work once.
func pass(ctx context.Context, o Options, counting bool) (_ Figures, err error) {
	// Names of schemas are cut at 63 bytes (PostgreSQL manual, section 4.1.1).
	name := unnameable.ReplaceAllString(strings.ToLower(o.Contender.Name), "_")
	name = fmt.Sprintf("contest_%.30s_%d", name, time.Now().UnixNano())
	r := &race{Options: o, Assignment: Assignment{Input: name + "_in", Output: name + "_out", Group: name}}
	defer func() { err = errors.Join(err, r.cleanUp()) }()
	environment, err := r.prepare(ctx, name, counting)
	if err != nil {
		return Figures{}, err
	}
	if r.Rate == 0 {
		err = r.atFullSpeed(ctx, environment)
	} else {
		err = r.atRate(ctx, environment)
	}
	if err != nil {
		return Figures{}, err
	}
	memory := r.members.memory()
	if err := r.members.stop(); err != nil {
		return Figures{}, err
	}
	figures, err := r.figures(ctx)
	figures.MaxRSSBytes = memory
	return figures, err
}

// prepare creates what the contender is to work on, and returns its environment.
func (r *race) prepare(ctx context.Context, schema string, counting bool) (environment []string, err error) {
	if r.client, err = kgo.NewClient(kgo.SeedBrokers(r.Brokers...), kgo.ClientID("contest")); err != nil {
		return nil, err
	}
	r.admin = kadm.NewClient(r.client)
	created, err := r.admin.CreateTopics(ctx, int32(r.Partitions), -1, nil, r.Input, r.Output)
	if err == nil {
		err = created.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("create topics: %w", err)
	}
	r.ledger = newLedger(r.Events)
	brokers := r.Brokers
	if counting {
		if r.proxy, err = wire.Kafka(r.Brokers); err != nil {
			return nil, err
		}
		brokers = r.proxy.Addrs()
	}
	environment = append(environment, "KAFKA_BROKERS="+strings.Join(brokers, ","))
	if r.Contender.Table == "" {
		r.scope = openTopic(r.Brokers, r.client, r.Output, r.Partitions)
		return environment, nil
	}
	table, err := openTable(ctx, r.DatabaseURL, schema, r.Contender.Table)
	if err != nil {
		return nil, fmt.Errorf("prepare Postgres: %w", err)
	}
	r.scope = table
	return append(environment, "DATABASE_URL="+table.url), nil
}

// atFullSpeed has the contender begin when all events are there.
func (r *race) atFullSpeed(ctx context.Context, environment []string) error {
	p, err := newPublisher(r.Brokers, r.Input)
	if err != nil {
		return err
	}
	defer p.close()
	for _, e := range stream(r.Events) {
		p.send(ctx, e, time.Time{})
	}
	if err := p.flush(ctx); err != nil {
		return err
	}
	if err := r.start(environment); err != nil {
		return err
	}
	return r.watch(ctx, r.Events)
}

// atRate has the contender begin, and then sends the events when they are due.
func (r *race) atRate(ctx context.Context, environment []string) error {
	p, err := newPublisher(r.Brokers, r.Input)
	if err != nil {
		return err
	}
	defer p.close()
	if err := r.scope.follow(ctx, r.ledger); err != nil {
		return err
	}
	if err := r.start(environment); err != nil {
		return err
	}
	r.due = make([]time.Time, r.Events)
	first := min(primer, r.Events/10)
	begin, sent := make(chan struct{}), make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		n := 0
		for _, e := range stream(r.Events) {
			if n == first {
				break
			}
			r.due[n] = time.Now()
			p.send(ctx, e, r.due[n])
			n++
		}
		sent <- p.flush(ctx)
		select {
		case <-begin:
			err := errors.Join(r.pace(ctx, p, first), p.flush(ctx))
			if err != nil {
				cancel() // the rest is not worth waiting for
			}
			sent <- err
		case <-ctx.Done():
		}
	}()
	if err := errors.Join(<-sent, r.watch(ctx, first)); err != nil {
		return err
	}
	close(begin)
	err = r.watch(ctx, r.Events)
	cancel()
	return errors.Join(<-sent, err)
}

// pace sends the events from the given number on when they are due.
func (r *race) pace(ctx context.Context, p *publisher, first int) error {
	start := time.Now()
	for n, e := range stream(r.Events) {
		if n < first {
			continue
		}
		r.due[n] = start.Add(time.Duration(n-first) * time.Second / time.Duration(r.Rate))
		if wait := time.Until(r.due[n]); wait > 0 {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		p.send(ctx, e, r.due[n])
	}
	return nil
}

// start starts the instances.
func (r *race) start(environment []string) error {
	for i := range r.Instances {
		a := r.Assignment
		a.Instance = i
		m, err := start(r.Contender.Command(a), environment, r.Log)
		if err != nil {
			return err
		}
		r.members = append(r.members, m)
	}
	r.lastNew = time.Now()
	return nil
}

// watch keeps looking until so many events are done, and then once more.
func (r *race) watch(ctx context.Context, events int) error {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	asked := time.Now()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		m, err := r.sample(ctx)
		if err == nil {
			err = r.members.ended()
		}
		if err != nil {
			return err
		}
		if m.at.Sub(asked) < askEvery {
			continue
		}
		asked = m.at
		done, err := r.done(ctx, m, events)
		if err != nil {
			return err
		}
		if done {
			_, err := r.sample(ctx) // the last may have come after that look
			return err
		}
		if idle := m.at.Sub(r.lastNew); idle > r.Patience {
			return fmt.Errorf("nothing has come of the events for %v; its last words:\n%s", idle.Round(time.Second), r.members[0].lastWords())
		}
	}
}

// sample looks, and keeps what it sees.
func (r *race) sample(ctx context.Context) (mark, error) {
	m, err := r.scope.look(ctx)
	if err != nil {
		return m, err
	}
	if len(r.samples) == 0 || m.effects != r.samples[len(r.samples)-1].effects {
		r.lastNew = m.at
	}
	s := sample{mark: m, cpu: r.members.cpu()}
	if r.proxy != nil {
		s.requests = r.proxy.Requests()
	}
	r.samples = append(r.samples, s)
	return m, nil
}

// done reports whether the contender has acknowledged so many events, or their
// effects are there, and all that it did can be seen.
func (r *race) done(ctx context.Context, m mark, events int) (bool, error) {
	acknowledged, err := r.acknowledged(ctx)
	if err != nil {
		return false, err
	}
	return r.scope.settled(ctx, m, acknowledged >= int64(events), events)
}

// acknowledged is how many records of the input the group has committed.
func (r *race) acknowledged(ctx context.Context) (n int64, err error) {
	committed, err := r.admin.FetchOffsetsForTopics(ctx, r.Group, r.Input)
	if kerr.IsRetriable(err) || errors.Is(err, kerr.GroupIDNotFound) {
		// A cluster's first group waits for the coordinator's own topic, and a group is
		// not there before its first member.
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look up the offsets of group %s: %w", r.Group, err)
	}
	committed.Each(func(o kadm.OffsetResponse) {
		if o.Err == nil {
			n += max(0, o.At)
		}
	})
	return n, nil
}

// figures audits, and counts from the end of the warm-up to the last effect.
func (r *race) figures(ctx context.Context) (f Figures, err error) {
	if err := r.scope.audit(ctx, r.ledger); err != nil {
		return f, err
	}
	f.Audit = r.ledger.result()
	warm := int(WarmUp * float64(r.Events))
	// The first samples that show the end of the warm-up, and everything.
	showing := func(n int) int {
		return sort.Search(len(r.samples)-1, func(i int) bool { return r.scope.visible(r.samples[i].mark) >= n })
	}
	last := r.samples[showing(r.scope.visible(r.samples[len(r.samples)-1].mark))]
	first := r.samples[showing(warm)]
	n := float64(r.scope.visible(last.mark) - r.scope.visible(first.mark))
	if n == 0 {
		return f, fmt.Errorf("%d events (%v): %w", r.Events, f.Audit, ErrTooFew)
	}
	f.EventsPerSecond = n / last.at.Sub(first.at).Seconds()
	f.CPUSecondsPerMillion = (last.cpu - first.cpu) / n * 1e6
	f.WALBytesPerRecord = float64(last.wal-first.wal) / n
	f.RequestsPerRecord = float64(last.requests-first.requests) / n
	f.Settings = append([]string{"command=" + r.commandLine()}, r.members[0].settings...)
	if r.Rate > 0 {
		f.Latency, err = r.latency(warm)
	}
	return f, err
}

// commandLine is that of the first instance, without what is another one each time.
func (r *race) commandLine() string {
	args := slices.Clone(r.members[0].cmd.Args)
	args[0] = filepath.Base(args[0])
	return strings.NewReplacer(r.Input, "INPUT", r.Output, "OUTPUT", r.Group, "GROUP").Replace(strings.Join(args, " "))
}

// latency is that of the events after the warm-up, in microseconds.
func (r *race) latency(warm int) (*hdrhistogram.Histogram, error) {
	const longest = int64(time.Hour / time.Microsecond)
	h := hdrhistogram.New(1, longest, 3)
	for n, at := range r.scope.seen() {
		if n < warm || at.IsZero() {
			continue
		}
		if err := h.RecordValue(min(max(1, at.Sub(r.due[n]).Microseconds()), longest)); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// cleanUp ends what still runs and removes what was created.
func (r *race) cleanUp() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupPatience)
	defer cancel()
	var errs []error
	r.members.kill()
	if r.scope != nil {
		errs = append(errs, r.scope.close(ctx))
	}
	if r.proxy != nil {
		errs = append(errs, r.proxy.Close())
	}
	if r.admin != nil {
		_, err := r.admin.DeleteTopics(ctx, r.Input, r.Output)
		errs = append(errs, err)
		_, _ = r.admin.DeleteGroups(ctx, r.Group) // there may be none
	}
	if r.client != nil {
		r.client.Close()
	}
	return errors.Join(errs...)
}
