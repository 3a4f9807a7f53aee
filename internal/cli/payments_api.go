package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/delivered-twice/delivered-twice/internal/endpoint"
	"github.com/delivered-twice/delivered-twice/internal/payments"
	"github.com/delivered-twice/delivered-twice/internal/trace"
)

// PaymentsAPIName is the program's name, and the role under which another program
// can be it.
const PaymentsAPIName = "payments-api"

// PaymentsKeys is the environment variable with the API keys of the clients:
// client=secret,client2=secret2.
const PaymentsKeys = "PAYMENTS_KEYS"

type paymentsAPI struct {
	listen      string
	databaseURL string
	attempt     string
	retention   time.Duration
	network     payments.Network
}

// PaymentsAPI runs the third party and returns its exit code.
func PaymentsAPI(args []string) int {
	var p paymentsAPI
	cmd := &cobra.Command{
		Use:   PaymentsAPIName + " [flags]",
		Short: "Take charges and send emails over HTTP, each of them once for an Idempotency-Key",
		Long: `payments-api is a third party in the form of Stripe's API, on tables of its own:
POST /v1/charges, GET /v1/charges/{id}, POST /v1/emails, form-encoded or JSON. No
money moves and no mail is sent; what was accepted is in the table ledger.

A request with an Idempotency-Key is worked on once. Its retries get the first answer
again; one that comes while the first is being worked on gets 409 and Retry-After.

` + PaymentsKeys + ` has the API keys of its clients: client=secret,client2=secret2.
The first line on standard output is the address it listens on.
SIGTERM answers what is in flight and ends it.`,
		Args: NoArgs,
	}
	cmd.RunE = untilStopped(func(ctx context.Context) error {
		if err := p.check(); err != nil {
			return err
		}
		return p.run(ctx)
	})
	f := cmd.Flags()
	f.StringVar(&p.listen, "listen", "127.0.0.1:8420", "address to listen on; port 0 takes a free one")
	f.StringVar(&p.databaseURL, "database-url", "", "Postgres (default $DATABASE_URL)")
	f.StringVar(&p.attempt, "attempt", "", "name of this incarnation in traces and logs (default: pid and start time)")
	f.DurationVar(&p.retention, "key-retention", 24*time.Hour, "age at which a key expires: a request that comes again after that is done again")
	f.DurationVar(&p.network.Latency, "latency", 0, "how long new work takes on top, while its key is in flight")
	f.Float64Var(&p.network.FailRate, "fail-rate", 0, "share of requests, from 0 to 1, that get a 500 before any work")
	f.Float64Var(&p.network.DropResponseRate, "drop-response-rate", 0, "share of requests, from 0 to 1, whose answer is lost after the work")
	f.Uint64Var(&p.network.Seed, "seed", 1, "decides which requests those rates hit")
	return Run(cmd, args)
}

// check completes what depends on the environment, and refuses what means nothing.
func (p *paymentsAPI) check() error {
	if p.databaseURL == "" {
		// Not the flag's default, or --help would print a password.
		p.databaseURL = os.Getenv("DATABASE_URL")
	}
	if p.databaseURL == "" {
		return Usage(errors.New("no database: set --database-url or DATABASE_URL"))
	}
	if p.attempt == "" {
		p.attempt = fmt.Sprintf("%d.%d", os.Getpid(), time.Now().UnixMilli())
	}
	if p.retention <= 0 {
		return Usage(fmt.Errorf("--key-retention is %v, must be positive", p.retention))
	}
	if err := p.network.Validate(); err != nil {
		return Usage(err)
	}
	return nil
}

// run answers requests until ctx ends. The flags have been checked.
func (p *paymentsAPI) run(ctx context.Context) error {
	given := os.Getenv(PaymentsKeys)
	if given == "" {
		return Usage(errors.New("no client: set " + PaymentsKeys + " to client=secret,client2=secret2"))
	}
	secrets, err := payments.ParseSecrets(given)
	if err != nil {
		return Usage(fmt.Errorf("environment variable %s: %w", PaymentsKeys, err))
	}
	hook, err := p.hook()
	if err != nil {
		return err
	}
	pool, err := p.openDatabase(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("attempt", p.attempt)
	server, err := payments.NewServer(pool, payments.Options{
		Secrets:   secrets,
		Retention: p.retention,
		Network:   p.network,
		Hook:      hook,
		Logger:    log,
	})
	if err != nil {
		return Usage(err)
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", p.listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w; choose another --listen", p.listen, err)
	}
	fmt.Println(listener.Addr())

	both, ctx := errgroup.WithContext(ctx)
	purging, stopPurging := context.WithCancel(ctx)
	both.Go(func() error {
		p.purgeNowAndThen(purging, server, log)
		return nil
	})
	both.Go(func() error {
		defer stopPurging()
		return server.Serve(ctx, listener)
	})
	return both.Wait()
}

// hook returns what happens at every step: it is traced, and then a planned mishap
// strikes.
func (p *paymentsAPI) hook() (payments.Hook, error) {
	planned, err := plannedFailpoint(payments.Steps())
	if err != nil {
		return nil, err
	}
	writer, err := trace.FromEnv(p.attempt)
	if err != nil {
		return nil, Usage(err)
	}
	return func(_ context.Context, passage payments.Passage) error {
		var events []string
		if passage.EventID != "" {
			events = []string{passage.EventID}
		}
		if err := writer.Pass(string(passage.Step), "", events); err != nil {
			return err
		}
		return planned.Pass(string(passage.Step))
	}, nil
}

// paymentsConnections is how many requests payments-api works on at once. Each has a
// connection to itself, and there should be one left for a retry that is to be told
// that its key is in flight.
const paymentsConnections = 24

// openDatabase connects to Postgres and brings the tables up to date.
func (p *paymentsAPI) openDatabase(ctx context.Context) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(p.databaseURL)
	if err != nil {
		return nil, endpoint.ErrUnreadable // the error would quote it, and it has a password
	}
	config.MaxConns = paymentsConnections
	config.ConnConfig.ConnectTimeout = firstAnswer
	pool, err := pgxpool.NewWithConfig(ctx, config)
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

func (p *paymentsAPI) migrate(ctx context.Context, pool *pgxpool.Pool) error {
	looking, cancel := context.WithTimeout(ctx, firstAnswer)
	defer cancel()
	done, err := payments.UpToDate(looking, pool)
	if err != nil || done {
		return err
	}
	return payments.Migrate(ctx, p.databaseURL)
}

// purgeNowAndThen removes expired keys until ctx ends. A purge that fails is tried
// again later: until then the table is only larger than it need be.
func (p *paymentsAPI) purgeNowAndThen(ctx context.Context, server *payments.Server, log *slog.Logger) {
	tick := time.NewTicker(purgeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			removed, err := server.Purge(ctx)
			if err != nil && ctx.Err() == nil {
				log.Warn("purging idempotency keys failed; it is tried again later", "cause", err)
			} else if removed > 0 {
				log.Info("purged idempotency keys", "rows", removed, "older than", p.retention)
			}
		}
	}
}
