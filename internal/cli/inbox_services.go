package cli

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/delivered-twice/delivered-twice/internal/endpoint"
	"github.com/delivered-twice/delivered-twice/internal/outbox"
	"github.com/delivered-twice/delivered-twice/internal/pginbox"
	"github.com/delivered-twice/delivered-twice/internal/warehouse"
)

// prepare refuses to start where the services are not as they must be, and connects
// to Postgres. It looks at both at once, because a member that dies is waited for
// until it is back.
func (p *inboxPipeline) prepare(ctx context.Context) (*pgxpool.Pool, error) {
	if p.databaseURL == "" {
		return nil, Usage(errors.New("no database: set --database-url or DATABASE_URL"))
	}
	var topics []string
	if p.publish != publishNothing {
		topics = append(topics, p.output)
	}
	var pool *pgxpool.Pool
	services, checking := errgroup.WithContext(ctx)
	if !p.withoutKafka {
		services.Go(func() error { return p.checkKafka(checking, topics...) })
	}
	services.Go(func() error { return p.calls.ping(checking) })
	services.Go(func() (err error) {
		pool, err = p.openDatabase(checking)
		return err
	})
	err := services.Wait()
	if err != nil && pool != nil {
		pool.Close()
		return nil, err
	}
	return pool, err
}

// openDatabase connects to Postgres and brings the tables up to date.
func (p *inboxPipeline) openDatabase(ctx context.Context) (*pgxpool.Pool, error) {
	idle := p.inboxIdle()
	if p.source == sourceWebhook {
		idle = p.answerWithin // by then another may have been sent what this one has in hand
	}
	if p.shortcut() {
		idle = 0 // whoever takes a shortcut has not thought of it
	}
	pool, err := p.pool(ctx, idle)
	if err == nil {
		if err = p.migrate(ctx, pool); err == nil {
			return pool, nil
		}
		pool.Close()
	}
	// It says best what is wrong with an address, and never shows the password.
	if _, unusable := endpoint.Postgres(ctx, p.databaseURL); unusable != nil {
		return nil, unusable
	}
	return nil, err
}

// firstAnswer bounds the first answer of Postgres.
const firstAnswer = 5 * time.Second

// migrate brings the tables up to date. Mostly they are, and one connection of the
// pool is all that it takes to see that; a migration takes several more.
func (p *inboxPipeline) migrate(ctx context.Context, pool *pgxpool.Pool) error {
	looking, cancel := context.WithTimeout(ctx, firstAnswer)
	defer cancel()
	type tables struct {
		upToDate func(context.Context, *pgxpool.Pool) (bool, error)
		migrate  func(ctx context.Context, databaseURL string) error
	}
	var needed []tables
	if p.consumes() {
		needed = append(needed, tables{warehouse.UpToDate, warehouse.Migrate}, tables{pginbox.UpToDate, pginbox.Migrate})
	}
	if p.hasOutbox() {
		needed = append(needed, tables{outbox.UpToDate, outbox.Migrate})
	}
	for _, tables := range needed {
		done, err := tables.upToDate(looking, pool)
		if err != nil {
			return err
		}
		if done {
			continue
		}
		if err := tables.migrate(ctx, p.databaseURL); err != nil {
			return err
		}
	}
	return nil
}
