package stage

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Resources are topics, groups and schemas that were created for something, and are
// removed with it. It is not safe for concurrent use.
type Resources struct {
	// Admin asks Kafka.
	Admin *kadm.Client

	kafka                   *kgo.Client
	databaseURL             string
	topics, groups, schemas []string
}

// NewResources returns resources on those services: none yet.
func NewResources(brokers []string, databaseURL string) (*Resources, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ClientID("compare"))
	if err != nil {
		return nil, err
	}
	return &Resources{Admin: kadm.NewClient(client), kafka: client, databaseURL: databaseURL}, nil
}

// Topic creates a topic with the broker's default replication factor. Where nobody knows
// whether it is there, as ctx ended before the answer, it is one to remove all the same;
// one that the broker refused, because there is such a topic, is somebody else's.
func (r *Resources) Topic(ctx context.Context, name string, partitions int32) (string, error) {
	created, err := r.Admin.CreateTopic(ctx, partitions, -1, nil, name)
	if err == nil {
		err = created.Err
	}
	if refused := (*kerr.Error)(nil); !errors.As(err, &refused) {
		r.topics = append(r.topics, name)
	}
	if err != nil {
		return "", fmt.Errorf("create topic %s: %w", name, err)
	}
	return name, r.awaitTopic(ctx, name)
}

// topicPatience bounds how long brokers may take to learn of a topic.
const topicPatience = 30 * time.Second

// awaitTopic waits until every broker knows the topic and a leader of each of its
// partitions: a member may ask any of them.
func (r *Resources) awaitTopic(ctx context.Context, name string) error {
	req := kmsg.NewPtrMetadataRequest()
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = &name
	req.Topics = append(req.Topics, topic)
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		brokers, err := r.Admin.ListBrokers(ctx)
		if err != nil {
			return struct{}{}, err
		}
		for _, broker := range brokers {
			resp, err := r.kafka.Broker(int(broker.NodeID)).RetriableRequest(ctx, req)
			if err != nil {
				return struct{}{}, err
			}
			for _, topic := range resp.(*kmsg.MetadataResponse).Topics {
				if err := kerr.ErrorForCode(topic.ErrorCode); err != nil {
					return struct{}{}, fmt.Errorf("broker %d: %w", broker.NodeID, err)
				}
				for _, p := range topic.Partitions {
					if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
						return struct{}{}, fmt.Errorf("broker %d, partition %d: %w", broker.NodeID, p.Partition, err)
					}
				}
			}
		}
		return struct{}{}, nil
	}, backoff.WithMaxElapsedTime(topicPatience))
	if err != nil {
		return fmt.Errorf("wait until all brokers know topic %s: %w", name, err)
	}
	return nil
}

// Group takes note of a group that members will create.
func (r *Resources) Group(name string) string {
	r.groups = append(r.groups, name)
	return name
}

// Schema creates a schema and returns the database's address with it as its
// search_path. What is said of [Resources.Topic] holds for it, too.
func (r *Resources) Schema(ctx context.Context, name string) (databaseURL string, err error) {
	connection, err := pgx.Connect(ctx, r.databaseURL)
	if err != nil {
		return "", err
	}
	defer connection.Close(ctx)
	_, err = connection.Exec(ctx, "CREATE SCHEMA "+pgx.Identifier{name}.Sanitize())
	if refused := (*pgconn.PgError)(nil); !errors.As(err, &refused) {
		r.schemas = append(r.schemas, name)
	}
	if err != nil {
		return "", fmt.Errorf("create schema %s: %w", name, err)
	}
	return withSearchPath(r.databaseURL, name)
}

func withSearchPath(databaseURL, schema string) (string, error) {
	if !isURL(databaseURL) {
		return databaseURL + " search_path=" + schema, nil // a list of key=value
	}
	u, err := url.Parse(databaseURL)
	if err != nil {
		return "", errors.New("the database address cannot be read") // the error would quote it, password included
	}
	query := u.Query()
	query.Set("search_path", schema)
	u.RawQuery = query.Encode()
	return u.String(), nil
}

// Remove takes everything away again.
func (r *Resources) Remove(ctx context.Context) error {
	var errs []error
	for _, group := range r.groups {
		if err := r.removeGroup(ctx, group); err != nil {
			errs = append(errs, fmt.Errorf("remove group %s: %w", group, err))
		}
	}
	if len(r.topics) > 0 {
		deleted, err := r.Admin.DeleteTopics(ctx, r.topics...)
		if err != nil {
			errs = append(errs, fmt.Errorf("remove topics %v: %w", r.topics, err))
		}
		for _, topic := range deleted {
			if topic.Err != nil && !errors.Is(topic.Err, kerr.UnknownTopicOrPartition) {
				errs = append(errs, fmt.Errorf("remove topic %s: %w", topic.Topic, topic.Err))
			}
		}
	}
	if len(r.schemas) > 0 {
		if err := r.dropSchemas(ctx); err != nil {
			errs = append(errs, fmt.Errorf("drop schemas %v: %w", r.schemas, err))
		}
	}
	return errors.Join(errs...)
}

// removeGroup deletes a group, whoever is still in it.
func (r *Resources) removeGroup(ctx context.Context, name string) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		if err := r.putOut(ctx, name); err != nil {
			return struct{}{}, err
		}
		_, err := r.Admin.DeleteGroup(ctx, name)
		switch {
		case errors.Is(err, kerr.GroupIDNotFound):
			return struct{}{}, nil
		case errors.Is(err, kerr.NonEmptyGroup):
			err = errors.Join(err, r.putOutOfShareGroup(ctx, name))
		}
		return struct{}{}, err
	}, backoff.WithMaxElapsedTime(10*time.Second))
	return err
}

// putOut puts out the static members of a group, which linger until their session
// times out.
func (r *Resources) putOut(ctx context.Context, group string) error {
	groups, err := r.Admin.DescribeGroups(ctx, group)
	if err != nil {
		return err
	}
	var members []string
	for _, member := range groups[group].Members {
		if member.InstanceID != nil {
			members = append(members, *member.InstanceID)
		}
	}
	if len(members) == 0 {
		return nil
	}
	_, err = r.Admin.LeaveGroup(ctx, kadm.LeaveGroup(group).InstanceIDs(members...))
	return err
}

// putOutOfShareGroup says goodbye for members that died, and linger until their
// session times out. It does nothing to groups of another kind.
func (r *Resources) putOutOfShareGroup(ctx context.Context, group string) error {
	groups, err := r.Admin.DescribeShareGroups(ctx, group)
	if err != nil {
		return err
	}
	for _, member := range groups[group].Members {
		goodbye := kmsg.NewPtrShareGroupHeartbeatRequest()
		goodbye.GroupID, goodbye.MemberID, goodbye.MemberEpoch = group, member.MemberID, -1
		if _, err := goodbye.RequestWith(ctx, r.kafka); err != nil {
			return err
		}
	}
	return nil
}

func (r *Resources) dropSchemas(ctx context.Context) error {
	connection, err := pgx.Connect(ctx, r.databaseURL)
	if err != nil {
		return err
	}
	defer connection.Close(ctx)
	for _, schema := range r.schemas {
		if _, err := connection.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{schema}.Sanitize()+" CASCADE"); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the connection to Kafka. It removes nothing.
func (r *Resources) Close() { r.Admin.Close() }

// Consumed returns how many records of a topic a group has committed, and how many
// there are.
func (r *Resources) Consumed(ctx context.Context, group, topic string) (committed, total int64, err error) {
	ends, err := r.Admin.ListEndOffsets(ctx, topic)
	if err != nil {
		return 0, 0, fmt.Errorf("list end offsets of topic %s: %w", topic, err)
	}
	offsets, err := r.Admin.FetchOffsets(ctx, group)
	if err != nil {
		return 0, 0, fmt.Errorf("fetch offsets of group %s: %w", group, err)
	}
	ends.Each(func(end kadm.ListedOffset) {
		total += end.Offset
		if at, ok := offsets.Lookup(end.Topic, end.Partition); ok {
			committed += at.At
		}
	})
	return committed, total, nil
}
