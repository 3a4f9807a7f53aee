package order_test

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/order"
)

func TestIdentity(t *testing.T) {
	value := []byte(`{"order_id":"ord_1","customer":"cus_1","sequence":1}`)
	reordered := []byte(`{"sequence":1,"customer":"cus_1","order_id":"ord_1"}`)
	hash := func(b []byte) string {
		sum := sha256.Sum256(b)
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	header := func(id string) []kgo.RecordHeader {
		return []kgo.RecordHeader{{Key: "trace", Value: []byte("x")}, {Key: order.HeaderEventID, Value: []byte(id)}}
	}
	for name, c := range map[string]struct {
		record kgo.Record
		want   string
	}{
		"the header":                              {kgo.Record{Headers: header("evt_9f3k"), Value: value}, "evt_9f3k"},
		"the header as received, spaces and all":  {kgo.Record{Headers: header(" evt\x00\xff")}, " evt\x00\xff"},
		"no header: the bytes":                    {kgo.Record{Value: value}, hash(value)},
		"an empty header: the bytes":              {kgo.Record{Headers: header(""), Value: value}, hash(value)},
		"re-serialized: another identity":         {kgo.Record{Value: reordered}, hash(reordered)},
		"a tombstone without header has one, too": {kgo.Record{}, hash(nil)},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, order.ID(&c.record))
		})
	}
	require.NotEqual(t, hash(value), hash(reordered))
}

func TestCodec(t *testing.T) {
	event := order.Event{
		ID: "evt_9f3k", OrderID: "ord_1", Customer: "cus_1", AmountMinor: 4990, Currency: "EUR",
		Sequence: 2, OccurredAt: time.Date(2026, 1, 5, 14, 2, 11, 0, time.UTC),
	}
	decoded, err := order.Decode(event.Encode())
	require.NoError(t, err)
	require.Equal(t, event, decoded)

	for name, value := range map[string]string{
		"a tombstone":           "",
		"not JSON":              "\xff\xfe",
		"no UTF-8":              "{\"order_id\":\"o\xff\",\"customer\":\"c\",\"sequence\":1}",
		"not an object":         `[1]`,
		"no order":              `{"customer":"c","sequence":1}`,
		"no customer":           `{"order_id":"o","sequence":1}`,
		"no sequence":           `{"order_id":"o","customer":"c"}`,
		"a wrong type":          `{"order_id":7,"customer":"c","sequence":1}`,
		"half a pair, order":    `{"order_id":"\ud800","customer":"c","sequence":1}`,
		"half a pair, customer": `{"order_id":"o","customer":"\udfff","sequence":1}`,
		"no zone on earth":      `{"order_id":"o","customer":"c","sequence":1,"occurred_at":"2026-01-05T14:02:11-24:00"}`,
		"cut off half way":      string(event.Encode()[:20]),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := order.Decode([]byte(value))
			require.ErrorIs(t, err, order.ErrMalformed)
		})
	}
}

type sent struct {
	event    order.Event
	repeated bool
}

func collect(o order.StreamOptions) (all []sent) {
	for e, repeated := range order.Stream(o) {
		all = append(all, sent{e, repeated})
	}
	return all
}

func TestStreamIsItsSeed(t *testing.T) {
	o := order.StreamOptions{Events: 2_000, Seed: 7, PublisherDuplicates: 0.05}
	require.Equal(t, collect(o), collect(o))
	other := o
	other.Seed = 8
	require.NotEqual(t, collect(o), collect(other))
}

func TestStream(t *testing.T) {
	all := collect(order.StreamOptions{Events: 5_000, Seed: 1})
	require.Len(t, all, 5_000)
	ids := make(map[string]bool)
	sequences := make(map[string]int64)
	for _, s := range all {
		require.False(t, s.repeated)
		require.False(t, ids[s.event.ID], "id %s twice", s.event.ID)
		ids[s.event.ID] = true
		sequences[s.event.OrderID]++
		require.Equal(t, sequences[s.event.OrderID], s.event.Sequence, "order %s", s.event.OrderID)
		_, err := order.Decode(s.event.Encode())
		require.NoError(t, err)
	}
}

func TestPublisherDuplicates(t *testing.T) {
	all := collect(order.StreamOptions{Events: 10_000, Seed: 1, PublisherDuplicates: 0.01})
	first := make(map[string]order.Event)
	repeats := 0
	for _, s := range all {
		if !s.repeated {
			first[s.event.ID] = s.event
			continue
		}
		repeats++
		require.Equal(t, first[s.event.ID], s.event, "a second send has the bytes of the first, and comes after it")
	}
	require.Len(t, first, 10_000)
	require.InDelta(t, 100, repeats, 40)
	require.Len(t, collect(order.StreamOptions{Events: 50, Seed: 1, PublisherDuplicates: 1}), 100, "every planned second send is sent")
}

func TestLatest(t *testing.T) {
	events := []order.Event{
		{OrderID: "a", Sequence: 1}, {OrderID: "b", Sequence: 5}, {OrderID: "a", Sequence: 3}, {OrderID: "b", Sequence: 4},
	}
	require.Equal(t, []order.Event{{OrderID: "a", Sequence: 3}, {OrderID: "b", Sequence: 5}}, order.Latest(events))
}
