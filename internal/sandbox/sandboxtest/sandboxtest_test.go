package sandboxtest

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestMain(m *testing.M) { Main(m) }

func TestTopicLivesAsLongAsItsTest(t *testing.T) {
	admin := kadm.NewClient(Client(t))
	var topic, deleted string
	t.Run("inner", func(t *testing.T) {
		topic = Topic(t, 3, map[string]string{"retention.ms": "1000"}, map[string]string{"retention.ms": "2000"})
		topics, err := admin.ListTopics(t.Context(), topic)
		require.NoError(t, err)
		require.Len(t, topics[topic].Partitions, 3)
		configs, err := admin.DescribeTopicConfigs(t.Context(), topic)
		require.NoError(t, err)
		for _, config := range configs[0].Configs {
			if config.Key == "retention.ms" {
				require.Equal(t, "2000", config.MaybeValue())
			}
		}

		client := Client(t, kgo.DefaultProduceTopic(topic))
		require.NoError(t, client.ProduceSync(t.Context(), kgo.StringRecord("x")).FirstErr())

		deleted = Topic(t, 1)
		_, err = admin.DeleteTopic(t.Context(), deleted) // gone before its cleanup
		require.NoError(t, err)
	})
	require.NotEqual(t, topic, deleted)
	topics, err := admin.ListTopics(t.Context(), topic, deleted)
	require.NoError(t, err)
	require.False(t, topics.Has(topic))
	require.False(t, topics.Has(deleted))
}

func TestDatabaseIsASchemaOfTheTestsOwn(t *testing.T) {
	var schemas []string
	for range 2 {
		t.Run("inner", func(t *testing.T) {
			address := Database(t)

			conn, err := pgx.Connect(t.Context(), address)
			require.NoError(t, err)
			defer func() { require.NoError(t, conn.Close(context.Background())) }()
			_, err = conn.Exec(t.Context(), "CREATE TABLE things (id int); INSERT INTO things VALUES (1)")
			require.NoError(t, err)

			db, err := sql.Open("pgx", address) // as migration tools connect
			require.NoError(t, err)
			defer func() { require.NoError(t, db.Close()) }()
			var schema string
			var things int
			require.NoError(t, db.QueryRowContext(t.Context(), "SELECT current_schema(), (SELECT count(*) FROM things)").Scan(&schema, &things))
			require.Equal(t, 1, things)
			schemas = append(schemas, schema)
		})
	}
	require.NotEqual(t, schemas[0], schemas[1])

	conn, err := pgx.Connect(t.Context(), Database(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	var left int
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_namespace WHERE nspname = any($1)", schemas).Scan(&left))
	require.Zero(t, left, "the schema is not dropped")
}

func TestSearchPathInEveryForm(t *testing.T) {
	for _, address := range []string{
		"postgres://u:p@h:1/d",
		"postgres://u:p%40@h:1/d?sslmode=disable",
		"postgres://u:p@h:1/d?search_path=other&sslmode=disable",
		"host=h port=1 user=u password='p q' dbname=d",
		"host=h port=1 user=u password=p dbname=d search_path=other",
	} {
		before, err := pgx.ParseConfig(address)
		require.NoError(t, err)
		after, err := pgx.ParseConfig(withSearchPath(t, address, "mine"))
		require.NoError(t, err)
		require.Equal(t, "mine", after.RuntimeParams["search_path"], address)
		require.Equal(t, before.Password, after.Password)
		require.Equal(t, before.Database, after.Database)
	}
}

func TestNamesAreUniqueAndPlain(t *testing.T) {
	for _, name := range []string{"a", "Ünïcode / slashes", "a name that is far longer than what PostgreSQL keeps of an identifier"} {
		t.Run(name, func(t *testing.T) {
			one, other := Name(t), Name(t)
			require.NotEqual(t, one, other)
			require.Regexp(t, `^[a-z0-9_]{1,40}$`, one)
		})
	}
}
