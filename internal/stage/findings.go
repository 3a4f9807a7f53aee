package stage

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/audit"
	"github.com/delivered-twice/delivered-twice/internal/lane"
)

// Findings are what is really there.
type Findings struct {
	// Counts has the outcomes of each of the lane's scopes.
	Counts map[lane.Scope]lane.Counts
	// Effects are all records, rows and charges; Unexpected are those of events that
	// nobody sent.
	Effects, Unexpected []audit.Effect
	// DeadLetters is how many records and rows keep what could not be handled.
	DeadLetters int
}

// Audit looks at what the lane has left behind. It waits for transactions that are
// still open.
func (s *Stage) Audit(ctx context.Context) (Findings, error) {
	f := Findings{Counts: make(map[lane.Scope]lane.Counts)}
	if s.Lane.Writes(lane.Kafka) {
		if err := s.auditTopics(ctx, &f); err != nil {
			return f, err
		}
	}
	if s.Lane.Writes(lane.Postgres) {
		if err := s.auditTables(ctx, &f); err != nil {
			return f, err
		}
	}
	if s.Lane.Writes(lane.HTTP) {
		if err := s.auditLedger(ctx, &f); err != nil {
			return f, err
		}
	}
	return f, nil
}

func (s *Stage) auditTopics(ctx context.Context, f *Findings) error {
	seeds := kgo.SeedBrokers(s.Services.Brokers...)
	found, err := audit.Topic(ctx, s.Output, s.Expected(), seeds)
	if err != nil {
		return err
	}
	f.Counts[lane.Kafka] = found.Committed
	f.Counts[lane.KafkaUncommitted] = found.Uncommitted
	f.Counts[lane.Order] = found.Order
	f.Effects = slices.Concat(f.Effects, found.Effects)
	f.Unexpected = slices.Concat(f.Unexpected, found.Unexpected)
	if s.DeadLetters == "" {
		return nil
	}
	letters, err := audit.CommittedRecords(ctx, s.DeadLetters, seeds)
	f.DeadLetters += letters
	return err
}

func (s *Stage) auditTables(ctx context.Context, f *Findings) error {
	pool, err := pgxpool.New(ctx, s.DatabaseURL)
	if err != nil {
		return errors.New("the database address cannot be read") // the error would quote it, password included
	}
	defer pool.Close()
	found, err := audit.Tables(ctx, pool, s.Expected())
	if err != nil {
		return err
	}
	f.Counts[lane.Postgres] = found.Rows
	f.Counts[lane.PickTasks] = found.PickTasks
	f.Counts[lane.LoyaltyPoints] = found.LoyaltyPoints
	if !s.Lane.Writes(lane.Kafka) {
		f.Counts[lane.Order] = found.Order
	}
	f.Effects = slices.Concat(f.Effects, found.Effects)
	f.Unexpected = slices.Concat(f.Unexpected, found.Unexpected)
	letters, err := audit.DeadLetterRows(ctx, pool)
	f.DeadLetters += letters
	return err
}

func (s *Stage) auditLedger(ctx context.Context, f *Findings) error {
	found, err := s.API.Audit(ctx, s.Expected())
	f.Counts[lane.HTTP] = found.Charges
	f.Effects = slices.Concat(f.Effects, found.Effects)
	f.Unexpected = slices.Concat(f.Unexpected, found.Unexpected)
	return err
}
