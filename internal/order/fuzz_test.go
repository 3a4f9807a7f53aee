package order_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/order"
)

// Whatever comes: no panic. What is taken is an event that has what it must have and
// goes through the codec unchanged; what is refused says why, since that becomes the cause of
// a dead letter.
func FuzzDecode(f *testing.F) {
	for e := range order.Stream(order.StreamOptions{Events: 3, Seed: 1}) {
		f.Add(e.Encode())
	}
	for _, value := range []string{
		"", "null", "[]", "{}", `"x"`, "7", "{\"order_id\":\"o\xff\",\"customer\":\"c\",\"sequence\":1}", "\xef\xbb\xbf{}",
		`{"order_id":"o","customer":"c","sequence":1}`,
		`{"order_id":"o","customer":"c","sequence":1}x`,
		`{"order_id":"o","customer":"c","sequence":0}`,
		`{"order_id":"o","customer":"c","sequence":1.0}`,
		`{"order_id":"o","customer":"c","sequence":9223372036854775808}`,
		`{"order_id":"o","customer":"c","sequence":1,"sequence":2,"ORDER_ID":"p"}`,
		`{"order_id":"\ud800","customer":"c","sequence":1}`,
		`{"order_id":"\ud83d\ude80","customer":"\u0000<&>\u2028","sequence":1}`,
		`{"order_id":"o","customer":"c","sequence":1,"occurred_at":"2026-01-05T14:02:11.000000001+23:59"}`,
		`{"order_id":"o","customer":"c","sequence":1,"occurred_at":"9999-12-31T23:59:60Z"}`,
		`{"order_id":"o","customer":"c","sequence":1,"occurred_at":"0000-01-01T00:00:00-24:00"}`,
		`{"order_id":"o","customer":"c","sequence":1,"occurred_at":null,"id":null,"amount_minor":-9223372036854775808}`,
	} {
		f.Add([]byte(value))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		received := bytes.Clone(value)
		e, err := order.Decode(value)
		require.Equal(t, received, value, "the bytes are the event's identity, where it has no other")
		if err != nil {
			require.ErrorIs(t, err, order.ErrMalformed)
			require.Greater(t, len(err.Error()), len(order.ErrMalformed.Error()), "it names no cause")
			require.Zero(t, e)
			return
		}
		require.NotEmpty(t, e.OrderID)
		require.NotEmpty(t, e.Customer)
		require.Positive(t, e.Sequence)
		encoded := e.Encode()
		again, err := order.Decode(encoded)
		require.NoError(t, err, "what it encodes to is refused: %s", encoded)
		require.Equal(t, encoded, again.Encode())
		require.True(t, e.OccurredAt.Equal(again.OccurredAt))
		e.OccurredAt = again.OccurredAt // its zone may have another name
		require.Equal(t, e, again)
	})
}
