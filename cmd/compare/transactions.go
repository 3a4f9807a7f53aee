package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/endpoint"
	"github.com/delivered-twice/delivered-twice/internal/kafkatx"
	"github.com/delivered-twice/delivered-twice/internal/report"
	"github.com/delivered-twice/delivered-twice/internal/twophase"
)

const flagAlthoughDecided = "although-decided"

func transactionsCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "transactions",
		Short: "Show the transactions of --guarantee=two-phase that are open, and finish them by hand",
		Args:  cli.NoSuchCommand,
		RunE:  cli.CommandMissing,
	}
	manual := cli.Manual{Environment: []cli.Variable{cli.KafkaBrokers, cli.DatabaseURL}, OK: "done"}
	manual.Of(root)
	var s serviceFlags
	f := root.PersistentFlags()
	cli.BrokersFlag(f, &s.brokers, "Kafka's seed brokers, host:port with commas between (default $KAFKA_BROKERS)")
	f.StringVar(&s.databaseURL, "database-url", "", "Postgres, with the pipeline's search_path (default $DATABASE_URL)")
	commit := commitTransaction(&s)
	manual.Broken = "the broker has aborted what was decided: its events are done twice"
	manual.Of(commit)
	root.AddCommand(listTransactions(&s), commit, abortTransaction(&s))
	return root
}

func listTransactions(s *serviceFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "list [flags]",
		Short: "Show stored decisions, and what the brokers say is open",
		Args:  cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withDecisions(cmd.Context(), s, func(d *twophase.Decisions, admin *kadm.Client) error {
				return writeTransactions(cmd.Context(), cmd.OutOrStdout(), d, admin)
			})
		},
	}
}

func commitTransaction(s *serviceFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "commit [flags] TRANSACTIONAL_ID",
		Short: "Commit in Kafka what is decided in Postgres, as every member of the group does by itself",
		Args:  oneTransactionalID,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			return withDecisions(ctx, s, func(d *twophase.Decisions, _ *kadm.Client) error {
				one, decided, err := d.Of(ctx, args[0])
				if err != nil {
					return err
				}
				if !decided {
					return fmt.Errorf("nothing is decided on %s: somebody else may have committed it by now; otherwise its work is not in Postgres, and to commit its output would lose that work: see compare transactions list", args[0])
				}
				err = d.Finish(ctx, one)
				if errors.Is(err, twophase.ErrLost) {
					return fmt.Errorf("%w: %w; the events come again and are done twice; their ids are in table lost_transactions", cli.ErrBroken, err)
				}
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "committed: %v, %s\n", one, report.Count(len(one.EventIDs), "event"))
				return nil
			})
		},
	}
}

func abortTransaction(s *serviceFlags) *cobra.Command {
	var althoughDecided bool
	cmd := &cobra.Command{
		Use:   "abort [flags] TRANSACTIONAL_ID",
		Short: "Abort in Kafka what is not decided, as its next incarnation does by itself",
		Args:  oneTransactionalID,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			return withDecisions(ctx, s, func(d *twophase.Decisions, _ *kadm.Client) error {
				err := d.Abort(ctx, args[0], althoughDecided)
				switch {
				case errors.Is(err, twophase.ErrDecided):
					return fmt.Errorf("%w: aborted, its events come again and their work is done twice; commit it, or abort it with --%s", err, flagAlthoughDecided)
				case err != nil:
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "aborted: the open transaction of %s\n", args[0])
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&althoughDecided, flagAlthoughDecided, false, "abort it even where its work is committed in Postgres, and have that done twice")
	return cmd
}

func oneTransactionalID(_ *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return cli.Usage(errors.New("name one transactional id; compare transactions list shows them"))
	}
	return nil
}

// undefinedTable is the SQLSTATE of a table that is not there (PostgreSQL manual,
// appendix A).
const undefinedTable = "42P01"

// withDecisions connects to the services.
func withDecisions(ctx context.Context, s *serviceFlags, do func(*twophase.Decisions, *kadm.Client) error) error {
	if len(s.brokers) == 0 {
		return cli.Usage(errors.New("no Kafka brokers: set --brokers or KAFKA_BROKERS"))
	}
	if s.databaseURL == "" {
		s.databaseURL = os.Getenv("DATABASE_URL")
	}
	if s.databaseURL == "" {
		return cli.Usage(errors.New("no database: set --database-url or DATABASE_URL"))
	}
	if _, err := endpoint.Postgres(ctx, s.databaseURL); err != nil {
		return err
	}
	if _, err := endpoint.Kafka(ctx, s.brokers); err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, s.databaseURL)
	if err != nil {
		return errors.New("the database address cannot be read") // the error would quote it, password included
	}
	defer pool.Close()
	client, err := kgo.NewClient(kgo.SeedBrokers(s.brokers...), kgo.ClientID("compare"))
	if err != nil {
		return err
	}
	defer client.Close()
	if epochs, err := kafkatx.TransactionEpochs(ctx, client); err != nil {
		return err
	} else if !epochs {
		return errors.New("the cluster's feature transaction.version is below 2 (KIP-890): nothing here can be finished from outside with certainty")
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	err = do(twophase.NewDecisions(pool, client, logger), kadm.NewClient(client))
	var answered *pgconn.PgError
	if errors.As(err, &answered) && answered.Code == undefinedTable {
		return fmt.Errorf("%w: no pipeline with --guarantee=two-phase has used this schema; is the search_path in the address the pipeline's?", err)
	}
	return err
}

// writeTransactions writes one line for each transaction that is decided or open.
func writeTransactions(ctx context.Context, w io.Writer, d *twophase.Decisions, admin *kadm.Client) error {
	decided, err := d.All(ctx)
	if err != nil {
		return err
	}
	listed, err := admin.ListTransactions(ctx, nil, []string{"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
	if err != nil {
		return fmt.Errorf("list transactions: %w", err)
	}
	var ids []string
	for _, one := range decided {
		ids = append(ids, one.TransactionalID)
	}
	for _, id := range listed.TransactionalIDs() {
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	described := kadm.DescribedTransactions{}
	if len(ids) > 0 {
		if described, err = admin.DescribeTransactions(ctx, ids...); err != nil {
			return fmt.Errorf("describe transactions %v: %w", ids, err)
		}
	}
	lines := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(ids) > 0 {
		fmt.Fprintln(lines, "TRANSACTIONAL ID\tIN POSTGRES\tEVENTS\tIN KAFKA\tWHAT IS RIGHT")
	}
	for i, id := range ids {
		broker := described[id]
		if i >= len(decided) {
			fmt.Fprintf(lines, "%s\tnothing\t\t%s\twait, or abort\n", id, inKafka(broker))
			continue
		}
		one := decided[i]
		right := "commit"
		if broker.ProducerID != one.ProducerID || broker.ProducerEpoch != one.ProducerEpoch {
			right = "commit, which finds out what became of it"
		}
		fmt.Fprintf(lines, "%s\tdecided %v ago (producer id %d, epoch %d)\t%d\t%s\t%s\n",
			id, one.Age.Round(time.Millisecond), one.ProducerID, one.ProducerEpoch, len(one.EventIDs), inKafka(broker), right)
	}
	if len(ids) == 0 {
		fmt.Fprintln(lines, "nothing is decided, and nothing is open")
	}
	if err := lines.Flush(); err != nil {
		return err
	}
	transactions, events, err := d.Lost(ctx)
	if err != nil || transactions == 0 {
		return err
	}
	_, err = fmt.Fprintf(w, "lost so far: %s with %s; table lost_transactions has their ids\n", report.Count(transactions, "transaction"), report.Count(events, "event"))
	return err
}

// inKafka says what the broker knows of an id.
func inKafka(t kadm.DescribedTransaction) string {
	if t.Err != nil {
		return t.Err.Error()
	}
	text := fmt.Sprintf("%s (producer id %d, epoch %d", t.State, t.ProducerID, t.ProducerEpoch)
	if t.State == "Ongoing" {
		text += fmt.Sprintf(", open for %v of %v", time.Since(time.UnixMilli(t.StartTimestamp)).Round(time.Millisecond), time.Duration(t.TimeoutMillis)*time.Millisecond)
	}
	return text + ")"
}
