package stage_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/delivered-twice/delivered-twice/internal/stage"
)

// Whoever interrupts the creation of a topic does not hear that it was created. It is
// removed with the others, and nothing that was there before.
func TestRemoveAfterAnInterruption(t *testing.T) {
	broker := kfake.MustCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "theirs"))
	defer broker.Close()
	r, err := stage.NewResources(broker.ListenAddrs(), "")
	require.NoError(t, err)
	defer r.Close()
	_, err = r.Topic(t.Context(), "ours", 1)
	require.NoError(t, err)
	_, err = r.Topic(t.Context(), "theirs", 1)
	require.ErrorIs(t, err, kerr.TopicAlreadyExists)

	interrupted, interrupt := context.WithCancel(t.Context())
	broker.ControlKey(int16(kmsg.CreateTopics), func(kmsg.Request) (kmsg.Response, error, bool) {
		interrupt()
		<-interrupted.Done()
		return nil, nil, false // and it is created
	})
	_, err = r.Topic(interrupted, "unknown", 1)
	require.ErrorIs(t, err, context.Canceled)

	require.NoError(t, r.Remove(t.Context()))
	other, err := kgo.NewClient(kgo.SeedBrokers(broker.ListenAddrs()...)) // the first remembers topics for a while
	require.NoError(t, err)
	defer other.Close()
	topics, err := kadm.NewClient(other).ListTopics(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"theirs"}, topics.Names())
}
