package kafkatx

import (
	"strconv"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Headers of a dead letter: where the record came from, why it is here, and how
// often it was tried. They come after the record's own headers.
const (
	HeaderOriginTopic     = "dead-letter-topic"
	HeaderOriginPartition = "dead-letter-partition"
	HeaderOriginOffset    = "dead-letter-offset"
	HeaderError           = "dead-letter-error"
	HeaderAttempts        = "dead-letter-attempts"
	// HeaderOmitted is there when the dead-letter topic refused the record as too
	// large: it carries the size in bytes of the value, and key, value and the
	// record's own headers are left out. They are still at the origin for as long
	// as the input topic keeps them.
	HeaderOmitted = "dead-letter-omitted-bytes"
)

// maxErrorBytes bounds the error text in a dead letter, so that an error that
// quotes a large value doesn't make the letter too large itself.
const maxErrorBytes = 4096

func deadLetter(topic string, r *kgo.Record, v verdict) *kgo.Record {
	cause := v.cause.Error()
	if len(cause) > maxErrorBytes {
		cause = cause[:maxErrorBytes]
	}
	letter := &kgo.Record{Topic: topic}
	if !v.omitRecord {
		letter.Key, letter.Value = r.Key, r.Value
		letter.Headers = append(letter.Headers, r.Headers...)
	}
	letter.Headers = append(letter.Headers,
		kgo.RecordHeader{Key: HeaderOriginTopic, Value: []byte(r.Topic)},
		kgo.RecordHeader{Key: HeaderOriginPartition, Value: strconv.AppendInt(nil, int64(r.Partition), 10)},
		kgo.RecordHeader{Key: HeaderOriginOffset, Value: strconv.AppendInt(nil, r.Offset, 10)},
		kgo.RecordHeader{Key: HeaderError, Value: []byte(cause)},
		kgo.RecordHeader{Key: HeaderAttempts, Value: strconv.AppendInt(nil, int64(v.attempts), 10)},
	)
	if v.omitRecord {
		letter.Headers = append(letter.Headers, kgo.RecordHeader{
			Key: HeaderOmitted, Value: strconv.AppendInt(nil, int64(len(r.Value)), 10),
		})
	}
	return letter
}
