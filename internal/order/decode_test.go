package order

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestWhatEncodeWritesIsDecodedWithoutReflection(t *testing.T) {
	for e := range Stream(StreamOptions{Events: 1000, Seed: 1}) {
		got, ok := decodeOwn(append(e.Encode(), " \n"...))
		require.True(t, ok)
		require.Equal(t, e, got)
	}
	// The strings, and the time's bytes.
	value := (Event{ID: "evt_1", OrderID: "ord_1", Customer: "cus_1", Currency: "EUR", Sequence: 1, OccurredAt: epoch}).Encode()
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() { _, _ = decodeOwn(value) }), 2.0)
}

// FuzzDecodeOwn: what is read without reflection is what encoding/json reads.
func FuzzDecodeOwn(f *testing.F) {
	e := Event{ID: "evt_1", OrderID: "ord_1", Customer: "cus_1", AmountMinor: 4200, Currency: "EUR", Sequence: 3, OccurredAt: epoch}
	whole := string(e.Encode())
	f.Add(whole)
	e.OccurredAt = time.Date(2026, 1, 5, 14, 2, 11, 120_000_000, time.FixedZone("", 3600))
	f.Add(string(e.Encode()))
	for _, change := range [][2]string{
		{`}`, `} `}, {`}`, ``}, {`}`, `}}`}, {`}`, "}\x00"}, {`}`, "}\v"}, {`}`, `,"sequence":9}`}, {`{`, ` {`},
		{`4200`, `-4200`}, {`4200`, `04200`}, {`4200`, `0`}, {`4200`, `00`}, {`4200`, `4200.5`}, {`4200`, `42e2`}, {`4200`, ``}, {`4200`, `"4200"`},
		{`4200`, `999999999999999999`}, {`4200`, `9223372036854775807`}, {`4200`, `9223372036854775808`}, {`4200`, `99999999999999999999999`},
		{`ord_1`, `ord\u005f1`}, {`ord_1`, "ord\n1"}, {`ord_1`, "ord\x001"}, {`ord_1`, "ord\x7f1"}, {`ord_1`, `ord_ü`}, {`ord_1`, "ord\xff"}, {`ord_1`, ``},
		{`2026-01-05T14:02:11Z`, `2026-1-5T14:02:11Z`}, {`2026-01-05T14:02:11Z`, `2026-01-05T14:02:11,5Z`}, {`2026-01-05T14:02:11Z`, `2026-01-05t14:02:11z`},
		{`2026-01-05T14:02:11Z`, `2026-01-05T24:02:11Z`}, {`2026-01-05T14:02:11Z`, `2026-01-05T14:02:11+25:00`}, {`2026-01-05T14:02:11Z`, ``}, {`"2026-01-05T14:02:11Z"`, `null`},
		{`"id"`, `"ID"`}, {`"id":`, `"id": `},
	} {
		f.Add(strings.Replace(whole, change[0], change[1], 1))
	}
	f.Fuzz(func(t *testing.T, value string) {
		if !utf8.ValidString(value) {
			return
		}
		got, ok := decodeOwn([]byte(value))
		if !ok {
			return
		}
		var want Event
		require.NoError(t, json.Unmarshal([]byte(value), &want))
		require.True(t, want.OccurredAt.Equal(got.OccurredAt))
		require.Equal(t, want.OccurredAt.String(), got.OccurredAt.String())
		want.OccurredAt, got.OccurredAt = time.Time{}, time.Time{}
		require.Equal(t, want, got)
	})
}

func BenchmarkDecode(b *testing.B) {
	value := (Event{ID: "evt_0123456789abcdef", OrderID: "ord_000001", Customer: "cus_001", AmountMinor: 4200, Currency: "EUR", Sequence: 3, OccurredAt: epoch}).Encode()
	b.Run("own", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = Decode(value)
		}
	})
	b.Run("json", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var e Event
			_ = json.Unmarshal(value, &e)
		}
	})
}
