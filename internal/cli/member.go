package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/endpoint"
	"github.com/delivered-twice/delivered-twice/internal/failpoint"
)

// defaultPartitions is how many partitions a pipeline gives a topic that it has
// to create.
const defaultPartitions = 4

// coordinatorPatience bounds how long the group's coordinator is waited for.
const coordinatorPatience = 15 * time.Second

// member are the flags that both pipelines have: who they are and where they
// stand.
type member struct {
	program        string // which pipeline this is: its client id in Kafka
	brokers        []string
	databaseURL    string
	input, output  string
	group          string
	instance       string
	attempt        string
	maxAttempts    int
	sessionTimeout time.Duration
	workers        int  // members of the group that this process is; 0 is one
	shareGroup     bool // group is a share group (KIP-932)
	withoutKafka   bool // events come another way
}

func (m *member) flags(cmd *cobra.Command, program, output string) {
	m.program = program
	f := cmd.Flags()
	BrokersFlag(f, &m.brokers, "Kafka's seed brokers, host:port with commas between (default $KAFKA_BROKERS)")
	f.StringVar(&m.databaseURL, "database-url", "", "Postgres (default $DATABASE_URL)")
	f.StringVar(&m.input, "input", "orders.paid", "topic of OrderPaid events")
	f.StringVar(&m.output, "output", output, "topic of pick requests")
	f.StringVar(&m.group, "group", program, "consumer group")
	f.StringVar(&m.instance, "instance", "0", "name of this member, its own among the group's and the same after a restart")
	f.StringVar(&m.attempt, "attempt", "", "name of this incarnation, kept with every effect (default: instance, pid and start time)")
	f.IntVar(&m.maxAttempts, "max-attempts", 3, "failures after which an event becomes a dead letter")
	f.DurationVar(&m.sessionTimeout, "session-timeout", 10*time.Second, "silence after which the group gives a member's partitions away")
}

// complete fills in what depends on the environment, and checks.
func (m *member) complete() error {
	if len(m.brokers) == 0 && !m.withoutKafka {
		return Usage(errors.New("no Kafka brokers: set --brokers or KAFKA_BROKERS"))
	}
	if m.databaseURL == "" {
		// Not the flag's default, or --help would print a password.
		m.databaseURL = os.Getenv("DATABASE_URL")
	}
	if m.attempt == "" {
		m.attempt = fmt.Sprintf("%s.%d.%d", m.instance, os.Getpid(), time.Now().UnixMilli())
	}
	if m.instance == "" {
		return Usage(errors.New("--instance is empty"))
	}
	if m.maxAttempts < 1 {
		return Usage(fmt.Errorf("--max-attempts is %d, must be at least 1", m.maxAttempts))
	}
	return inMilliseconds("session-timeout", m.sessionTimeout)
}

// inMilliseconds refuses what Kafka's protocol can't say: it has 32 bits for so many
// milliseconds.
func inMilliseconds(flag string, d time.Duration) error {
	const longest = math.MaxInt32 * time.Millisecond
	if d < time.Millisecond || d > longest {
		return Usage(fmt.Errorf("--%s is %v, must be from 1ms to %v", flag, d, longest.Truncate(time.Hour)))
	}
	return nil
}

func (m *member) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, nil)).With("attempt", m.attempt)
}

func (m *member) client() []kgo.Opt {
	return []kgo.Opt{kgo.SeedBrokers(m.brokers...), kgo.ClientID(m.program)}
}

// plannedFailpoint reads the planned mishap, if any, for a pipeline with those steps.
func plannedFailpoint[S ~string](steps []S) (*failpoint.Failpoint, error) {
	names := make([]string, len(steps))
	for i, s := range steps {
		names[i] = string(s)
	}
	f, err := failpoint.FromEnv(names)
	if err != nil {
		return nil, Usage(err)
	}
	return f, nil
}

// checkKafka refuses to start where the pipeline would hang or do harm.
func (m *member) checkKafka(ctx context.Context, topics ...string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	reached := make(chan error, 1)
	go func() {
		_, err := endpoint.Kafka(ctx, m.brokers)
		if err != nil {
			cancel()
		}
		reached <- err
	}()
	err := m.checkTopicsAndGroup(ctx, topics)
	// Brokers that can't be reached are why the rest failed, and not the other way.
	return cmp.Or(<-reached, err)
}

func (m *member) checkTopicsAndGroup(ctx context.Context, topics []string) error {
	client, err := kgo.NewClient(m.client()...)
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	partitions, err := ensureTopics(ctx, admin, append([]string{m.input}, topics...))
	if err != nil {
		return err
	}
	// A cluster's first group waits until the coordinator's own topic is there.
	_, err = backoff.Retry(ctx, func() (struct{}, error) {
		err := m.checkGroup(ctx, admin, partitions[m.input])
		if err != nil && !kerr.IsRetriable(err) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithMaxElapsedTime(coordinatorPatience))
	return err
}

// EnsureTopic creates a topic if it is missing.
func EnsureTopic(ctx context.Context, brokers []string, topic string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return err
	}
	defer client.Close()
	_, err = ensureTopics(ctx, kadm.NewClient(client), []string{topic})
	return err
}

// ensureTopics creates the missing topics and returns how many partitions each has.
func ensureTopics(ctx context.Context, admin *kadm.Client, topics []string) (map[string]int, error) {
	details, err := admin.ListTopics(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("look up topics %v: %w", topics, err)
	}
	partitions := make(map[string]int)
	for _, topic := range topics {
		detail := details[topic]
		switch {
		case detail.Err == nil:
			partitions[topic] = len(detail.Partitions)
			continue
		case !errors.Is(detail.Err, kerr.UnknownTopicOrPartition):
			return nil, fmt.Errorf("look up topic %s: %w", topic, detail.Err)
		}
		created, err := admin.CreateTopic(ctx, defaultPartitions, -1, nil, topic)
		if err == nil {
			err = created.Err
		}
		if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			return nil, fmt.Errorf("topic %s is missing and cannot be created, create it or name another: %w", topic, err)
		}
		partitions[topic] = defaultPartitions
	}
	return partitions, nil
}

// checkGroup refuses a group whose members would share the input with this one
// without doing the same with it, and one that has no partition left.
func (m *member) checkGroup(ctx context.Context, admin *kadm.Client, partitions int) error {
	listed, err := admin.ListGroups(ctx)
	if err != nil {
		return fmt.Errorf("list groups: %w", err)
	}
	wanted := "classic"
	if m.shareGroup {
		wanted = "share"
	}
	if kind := listed[m.group].GroupType; kind != "" && kind != wanted {
		return fmt.Errorf("group %s is in use as a %s group: choose another --group", m.group, kind)
	}
	if m.shareGroup {
		return m.checkShareGroup(ctx, admin)
	}
	groups, err := admin.DescribeGroups(ctx, m.group)
	if err == nil {
		err = groups[m.group].Err
	}
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return fmt.Errorf("look up group %s: %w", m.group, err)
	}
	others := 0
	for _, other := range groups[m.group].Members {
		if other.InstanceID != nil && m.isWorker(*other.InstanceID) {
			continue // an earlier incarnation, or a live one that this one fences off
		}
		if other.ClientID != m.program {
			return fmt.Errorf("group %s is in use by another program (client id %q at %s): choose another --group", m.group, other.ClientID, other.ClientHost)
		}
		others++
	}
	switch idle := others + max(m.workers, 1) - partitions; {
	case idle > 0 && m.workers > 1:
		return fmt.Errorf("topic %s has %d partitions, too few: group %s has %d other members already, and %d of the %d workers of instance %s would get none", m.input, partitions, m.group, others, min(idle, m.workers), m.workers, m.instance)
	case idle > 0:
		return fmt.Errorf("topic %s has %d partitions, too few: group %s has %d other members already, and instance %s would get none", m.input, partitions, m.group, others, m.instance)
	}
	return nil
}

// worker names one of the members of the group that this process is.
func (m *member) worker(number int) string {
	if number == 0 {
		return m.instance
	}
	return fmt.Sprintf("%s.%d", m.instance, number)
}

func (m *member) isWorker(instance string) bool {
	for number := range max(m.workers, 1) {
		if instance == m.worker(number) {
			return true
		}
	}
	return false
}

// checkShareGroup refuses a share group with members that are another program. There
// may be more members than partitions.
func (m *member) checkShareGroup(ctx context.Context, admin *kadm.Client) error {
	groups, err := admin.DescribeShareGroups(ctx, m.group)
	if err == nil {
		err = groups[m.group].Err
	}
	if errors.Is(err, kerr.GroupIDNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up share group %s: %w", m.group, err)
	}
	for _, other := range groups[m.group].Members {
		if other.ClientID != m.program {
			return fmt.Errorf("share group %s is in use by another program (client id %q at %s): choose another --group", m.group, other.ClientID, other.ClientHost)
		}
	}
	return nil
}

// pool returns a pool of connections to Postgres, of which none is open yet. The server
// ends a transaction that stands idle for longer than idle; 0 is for ever.
func (m *member) pool(ctx context.Context, idle time.Duration) (*pgxpool.Pool, error) {
	if m.databaseURL == "" {
		return nil, Usage(errors.New("no database: set --database-url or DATABASE_URL"))
	}
	config, err := poolConfig(ctx, m.databaseURL)
	if err != nil {
		return nil, err
	}
	if idle > 0 {
		config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, fmt.Sprintf("SET idle_in_transaction_session_timeout = %d", idle.Milliseconds()))
			return err
		}
	}
	return pgxpool.NewWithConfig(ctx, config)
}

// poolConfig reads an address. What pgx says of one that it can't read quotes it.
func poolConfig(ctx context.Context, databaseURL string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(databaseURL)
	if err == nil {
		return config, nil
	}
	if _, err := endpoint.Postgres(ctx, databaseURL); err != nil {
		return nil, err
	}
	return nil, Usage(errors.New("the database address has settings of a pool (pool_…) that cannot be read: leave them out"))
}

// inboxIdle is how long the transaction of an inbox may stand idle. A member that
// stands still in the middle of one keeps its locks, and whoever has taken its
// partitions over waits for them: so they are gone when the group gives the member up.
func (m *member) inboxIdle() time.Duration { return m.sessionTimeout }
