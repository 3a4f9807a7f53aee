package main

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/kafkatx"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
	"github.com/delivered-twice/delivered-twice/internal/twophase"
)

// What is decided or open is shown, and finished only in the way that is right, unless
// somebody says that they know.
func TestTransactions(t *testing.T) {
	ctx := t.Context()
	database := sandboxtest.Database(t)
	env := []string{"KAFKA_BROKERS=" + strings.Join(sandboxtest.Brokers(t), ","), "DATABASE_URL=" + database}
	transactions := func(args ...string) compared { return compare(t, env, append([]string{"transactions"}, args...)...) }

	nobody := transactions("list")
	require.Equal(t, cli.ExitUnusable, nobody.code)
	require.Contains(t, nobody.stderr, "no pipeline with --guarantee=two-phase has used this schema")
	require.NoError(t, twophase.Migrate(ctx, database))

	pool, err := pgxpool.New(ctx, database)
	require.NoError(t, err)
	defer pool.Close()
	topic := sandboxtest.Topic(t, 1)
	group := sandboxtest.Name(t)
	id := kafkatx.TransactionalID(group, "0", 0)
	producer := sandboxtest.Client(t, kgo.TransactionalID(id), kgo.TransactionTimeout(time.Minute))
	coordinator := twophase.New(pool, sandboxtest.Client(t), twophase.Options{
		Group: group, Instance: "0", TransactionTimeout: time.Minute,
		ID:     func(r *kgo.Record) string { return string(r.Value) },
		Logger: slog.New(slog.DiscardHandler),
	})
	open := func(event string) kafkatx.Prepared {
		require.NoError(t, producer.BeginTransaction())
		r := &kgo.Record{Topic: topic, Value: []byte(event)}
		require.NoError(t, producer.ProduceSync(ctx, r).FirstErr())
		p := kafkatx.Prepared{TransactionalID: id, Begun: time.Now(), Output: r}
		p.ProducerID, p.ProducerEpoch, err = producer.ProducerID(ctx)
		require.NoError(t, err)
		return p
	}
	line := func() string {
		listed := transactions("list")
		require.Equal(t, cli.ExitOK, listed.code, listed.stderr)
		for l := range strings.Lines(listed.stdout) {
			if strings.HasPrefix(l, id+" ") {
				return l
			}
		}
		return ""
	}
	decide := func(p kafkatx.Prepared) {
		require.NoError(t, coordinator.Recover(ctx))
		require.NoError(t, coordinator.Decide(ctx, p))
	}
	require.Empty(t, line())

	undecided := open("evt_1")
	require.Regexp(t, `nothing .*Ongoing .*wait, or abort`, line())
	refused := transactions("commit", id)
	require.Equal(t, cli.ExitUnusable, refused.code)
	require.Contains(t, refused.stderr, "nothing is decided on "+id)

	decide(undecided)
	require.Regexp(t, `decided .* ago .*Ongoing .*commit`, line())
	refused = transactions("abort", id)
	require.Equal(t, cli.ExitUnusable, refused.code)
	require.Contains(t, refused.stderr, "--although-decided")
	done := transactions("commit", id)
	require.Equal(t, cli.ExitOK, done.code, done.stderr)
	require.Contains(t, done.stdout, "committed: transaction of "+id)
	require.Empty(t, line())
	require.NoError(t, producer.EndTransaction(ctx, kgo.TryCommit), "its owner goes on")

	_ = open("evt_2")
	done = transactions("abort", id)
	require.Equal(t, cli.ExitOK, done.code, done.stderr)
	require.Empty(t, line())
	refused = transactions("abort", id)
	require.Equal(t, cli.ExitUnusable, refused.code)
	require.Contains(t, refused.stderr, "no transaction is open")

	producer = sandboxtest.Client(t, kgo.TransactionalID(id), kgo.TransactionTimeout(time.Minute))
	decide(open("evt_3"))
	done = transactions("abort", "--although-decided", id)
	require.Equal(t, cli.ExitOK, done.code, done.stderr)
	require.Contains(t, transactions("list").stdout, "lost so far: 1 transaction with 0 events;")

	producer = sandboxtest.Client(t, kgo.TransactionalID(id), kgo.TransactionTimeout(time.Minute))
	decide(open("evt_4"))
	thief := sandboxtest.Client(t, kgo.TransactionalID(id))
	_, _, err = thief.ProducerID(ctx)
	require.NoError(t, err)
	broken := transactions("commit", id)
	require.Equal(t, cli.ExitBroken, broken.code, "%s%s", broken.stdout, broken.stderr)
	require.Contains(t, broken.stderr, "the broker has aborted it")
}

func TestTransactionsUnusable(t *testing.T) {
	env := []string{"KAFKA_BROKERS=", "DATABASE_URL="}
	config, err := pgx.ParseConfig(sandboxtest.Database(t))
	require.NoError(t, err)
	for says, args := range map[string][]string{
		"name one transactional id": {"commit"},
		"no Kafka brokers":          {"list"},
		"no database":               {"list", "--brokers=127.0.0.1:1"},
		"no answer from PostgreSQL": {"list", "--brokers=127.0.0.1:1", "--database-url=postgres://u:open-sesame@127.0.0.1:1/" + config.Database},
	} {
		got := compare(t, env, append([]string{"transactions"}, args...)...)
		require.Equal(t, cli.ExitUnusable, got.code, says)
		require.Contains(t, got.stderr, says)
		require.NotContains(t, got.stderr, "open-sesame")
	}
}
