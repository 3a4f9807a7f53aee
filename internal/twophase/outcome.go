package twophase

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// outcome finds out how a transaction has ended that is not open any more, and why it
// counts as lost where it was not committed.
//
// The group's offsets cannot tell: where they have passed the transaction's, that may
// have been another attempt at the same events, after an abort. The log can: the control
// record that ends a transaction stands behind its records, in each partition that it
// wrote, under its producer id, before any record of a later one.
func (d *Decisions) outcome(ctx context.Context, one Decision) (committed bool, why string, err error) {
	if one.Output == nil {
		return d.outcomeByOffsets(ctx, one)
	}
	starts, err := kadm.NewClient(d.kafka).ListStartOffsets(ctx, one.Output.Topic)
	if err != nil {
		return false, "", fmt.Errorf("list start offsets of topic %s: %w", one.Output.Topic, err)
	}
	start, ok := starts.Lookup(one.Output.Topic, one.Output.Partition)
	switch {
	case !ok || errors.Is(start.Err, kerr.UnknownTopicOrPartition):
		return false, unknown(one, "the topic is not there any more"), nil
	case start.Err != nil:
		return false, "", fmt.Errorf("list start offsets of topic %s: %w", one.Output.Topic, start.Err)
	case start.Offset > one.Output.Offset:
		return false, unknown(one, fmt.Sprintf("the partition begins at %d by now", start.Offset)), nil
	}
	reader, err := kgo.NewClient(append(d.kafka.Opts(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{
			one.Output.Topic: {one.Output.Partition: kgo.NewOffset().At(one.Output.Offset)},
		}),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchIsolationLevel(kgo.ReadUncommitted()),
		kgo.KeepControlRecords())...)
	if err != nil {
		return false, "", err
	}
	defer reader.Close()
	for first := true; ; {
		fetches := reader.PollFetches(ctx)
		for _, f := range fetches.Errors() {
			if !kerr.IsRetriable(f.Err) {
				return false, "", fmt.Errorf("read %v: %w", one.Output, f.Err)
			}
		}
		for _, r := range fetches.Records() {
			if first && (r.Offset != one.Output.Offset || r.ProducerID != one.ProducerID) {
				return false, unknown(one, "its record is not there any more"), nil
			}
			first = false
			if !r.Attrs.IsControl() || r.ProducerID != one.ProducerID {
				continue
			}
			var key kmsg.ControlRecordKey
			if err := key.ReadFrom(r.Key); err != nil {
				return false, "", fmt.Errorf("read the control record at offset %d behind %v: %w", r.Offset, one.Output, err)
			}
			if key.Type == kmsg.ControlRecordKeyTypeCommit {
				return true, "", nil
			}
			return false, fmt.Sprintf("the broker has aborted it: control record at topic %s, partition %d, offset %d", r.Topic, r.Partition, r.Offset), nil
		}
	}
}

// outcomeByOffsets is for transactions that produced nothing. Where the group's offsets
// are behind it was not committed; where they are not, nobody knows.
func (d *Decisions) outcomeByOffsets(ctx context.Context, one Decision) (committed bool, why string, err error) {
	at, err := kadm.NewClient(d.kafka).FetchOffsets(ctx, one.Group)
	if err != nil {
		return false, "", fmt.Errorf("fetch offsets of group %s: %w", one.Group, err)
	}
	for topic, partitions := range one.Next {
		for partition, next := range partitions {
			if o, ok := at.Lookup(topic, partition); !ok || o.At < next {
				return false, fmt.Sprintf("the broker has aborted it: group %s is at offset %d of topic %s, partition %d, and would be at %d", one.Group, o.At, topic, partition, next), nil
			}
		}
	}
	return false, unknown(one, "it has produced nothing, and the group's offsets may have been moved by another transaction"), nil
}

// unknown counts as lost: told once too often is better than not at all.
func unknown(one Decision, why string) string {
	if one.Output != nil {
		why = fmt.Sprintf("%v: %s", one.Output, why)
	}
	return "nobody can tell any more whether the broker has committed or aborted it: " + why
}
