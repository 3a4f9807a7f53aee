package trial

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/audit"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/report"
)

// auditTime bounds the audit of one lane. Most of it is patience with a
// transaction that a dead instance left open.
const auditTime = time.Minute

// unexpectedShown is how many effects that nobody asked for a report names.
const unexpectedShown = 10

// report audits what is there and puts the findings together.
func (t *trial) report(ctx context.Context, started time.Time) (report.Report, error) {
	t.Progress.Phase("auditing")
	r := report.Report{
		Plan: []report.Kill{}, // also where there are none: without one it would be a matrix
		Environment: report.Environment{
			Kafka:     t.Services.KafkaVersion,
			Postgres:  t.Services.PostgresVersion,
			Go:        runtime.Version(),
			CPUs:      runtime.NumCPU(),
			Seed:      t.Seed,
			StartedAt: started,
		},
	}
	expected := audit.Expect(t.stream())
	created, err := audit.Created(ctx, t.input, kgo.SeedBrokers(t.Services.Brokers...))
	if err != nil {
		return report.Report{}, err
	}
	for _, c := range t.contenders {
		result, kills, err := t.result(ctx, c, expected, created)
		if err != nil {
			return report.Report{}, fmt.Errorf("lane %s: %w", c.lane.Name, err)
		}
		r.Results = append(r.Results, result)
		r.Plan = append(r.Plan, kills...)
	}
	return r, nil
}

func (t *trial) result(ctx context.Context, c *contender, expected audit.Expected, created map[string]time.Time) (report.Result, []report.Kill, error) {
	ctx, cancel := context.WithTimeout(ctx, auditTime)
	defer cancel()
	wall := c.consumed.Sub(t.sendBegan).Seconds()
	result := report.Result{
		Lane:       c.lane.Name,
		Fault:      t.fault(c),
		Command:    c.lane.Command(),
		Events:     t.Events,
		Throughput: float64(t.Events) / wall,
		WallS:      wall,
	}
	records, err := audit.Topic(ctx, c.output, expected, kgo.SeedBrokers(t.Services.Brokers...))
	if err != nil {
		return result, nil, err
	}
	rows, deadLetterRows, err := auditTables(ctx, c.databaseURL, expected)
	if err != nil {
		return result, nil, err
	}
	var charges audit.LedgerAudit
	if c.api != nil {
		if charges, err = c.api.Audit(ctx, expected); err != nil {
			return result, nil, err
		}
	}
	if err := audit.WriteEffects(c.dir, slices.Concat(records.Effects, rows.Effects, charges.Effects)); err != nil {
		return result, nil, err
	}
	result.Unexpected = slices.Concat(records.Unexpected, rows.Unexpected, charges.Unexpected)
	result.Unexpected = result.Unexpected[:min(len(result.Unexpected), unexpectedShown)]
	result.Scopes, err = report.Judge(c.lane, result.Fault, map[lane.Scope]lane.Counts{
		lane.Kafka:            records.Committed,
		lane.KafkaUncommitted: records.Uncommitted,
		lane.Postgres:         rows.Rows,
		lane.HTTP:             charges.Charges,
	})
	if err != nil {
		return result, nil, err
	}

	// Time is taken where the lane's own guarantee ends: at a read_committed reader,
	// or at the commit in Postgres.
	effects := rows.Effects
	if c.deadLetters != "" {
		effects = t.observer.seen[c.output]
		if result.DeadLetters, err = audit.CommittedRecords(ctx, c.deadLetters, kgo.SeedBrokers(t.Services.Brokers...)); err != nil {
			return result, nil, err
		}
	} else {
		result.DeadLetters = deadLetterRows
	}
	result.LatencyMS = audit.Latencies(created, effects)
	kills := c.kills(effects)
	for _, k := range kills {
		if !k.Fired {
			continue
		}
		result.Injections++
		if k.RecoveryMS != nil && (result.RecoveryMS == nil || *k.RecoveryMS > *result.RecoveryMS) {
			result.RecoveryMS = k.RecoveryMS
		}
	}
	return result, kills, nil
}

// fault is what was done to a lane.
func (t *trial) fault(c *contender) lane.Fault {
	repeats := false
	for _, repeated := range order.Stream(t.stream()) {
		repeats = repeats || repeated
	}
	switch {
	case len(c.plan) > 0 && repeats:
		return lane.Kill9AndDuplicates
	case len(c.plan) > 0:
		return lane.Kill9
	case repeats:
		return lane.PublisherDuplicates
	}
	return lane.NoFault
}

func auditTables(ctx context.Context, databaseURL string, expected audit.Expected) (found audit.TableAudit, deadLetters int, err error) {
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return found, 0, errors.New("the database address cannot be read")
	}
	defer pool.Close()
	if found, err = audit.Tables(ctx, pool, expected); err != nil {
		return found, 0, err
	}
	deadLetters, err = audit.DeadLetterRows(ctx, pool)
	return found, deadLetters, err
}

// kills is the plan with what came of it. The recovery of a kill is the time from
// the death to the first effect of any later incarnation of that instance.
func (c *contender) kills(effects []audit.Effect) []report.Kill {
	first := make(map[string]time.Time) // effect, by attempt
	for _, e := range effects {
		if e.At.IsZero() {
			continue
		}
		if at, ok := first[e.Attempt]; !ok || e.At.Before(at) {
			first[e.Attempt] = e.At
		}
	}
	var kills []report.Kill
	for _, member := range c.instances {
		for n, planned := range member.kills {
			kill := report.Kill{Lane: c.lane.Name, Instance: planned.Instance, Step: planned.Step, Passing: planned.Passing}
			if n < len(member.deaths) {
				kill.Fired = true
				kill.RecoveryMS = member.recovery(member.deaths[n], first)
			}
			kills = append(kills, kill)
		}
	}
	return kills
}

func (i *instance) recovery(d death, first map[string]time.Time) *float64 {
	for n := d.attempt + 1; n <= len(i.deaths)+1; n++ {
		if at, ok := first[i.attemptName(n)]; ok {
			ms := float64(at.Sub(d.at).Microseconds()) / 1000
			return &ms
		}
	}
	return nil
}
