package order

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzEncodePick: what is written without reflection is what encoding/json writes.
func FuzzEncodePick(f *testing.F) {
	f.Add("evt_0123", "ord_1", int64(7))
	for c := range rune(0x100) {
		f.Add("evt"+string(c), "ord", int64(c))
		f.Add("evt", "ord"+string([]byte{byte(c)}), -int64(c))
	}
	f.Add("\u2028", "", int64(math.MinInt64))
	f.Fuzz(func(t *testing.T, id, orderID string, sequence int64) {
		p := PickRequested{EventID: id, OrderID: orderID, Sequence: sequence}
		want, err := json.Marshal(p)
		require.NoError(t, err)
		require.Equal(t, string(want), string(p.encode()))
	})
}
