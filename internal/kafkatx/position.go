package kafkatx

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
)

// partition is a partition of a topic.
type partition struct {
	topic string
	id    int32
}

// position is a record's place in the input.
type position struct {
	partition
	offset int64
}

func positionOf(r *kgo.Record) position {
	return position{partition{r.Topic, r.Partition}, r.Offset}
}

func (p position) String() string {
	return fmt.Sprintf("topic %s, partition %d, offset %d", p.topic, p.id, p.offset)
}

// offsets are places in the input, one a partition.
type offsets map[partition]kgo.EpochOffset

// byTopic is the form that the Kafka client takes.
func (o offsets) byTopic() map[string]map[int32]kgo.EpochOffset {
	topics := make(map[string]map[int32]kgo.EpochOffset)
	for p, at := range o {
		if topics[p.topic] == nil {
			topics[p.topic] = make(map[int32]kgo.EpochOffset)
		}
		topics[p.topic][p.id] = at
	}
	return topics
}

func samePartition(a, b *kgo.Record) bool {
	return a.Partition == b.Partition && a.Topic == b.Topic
}
