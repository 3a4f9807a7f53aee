package payments

import (
	"net/http"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/stretchr/testify/require"
)

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 12, 2, 12, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"":                                  0,
		"0":                                 0,
		"3":                                 3 * time.Second,
		"3600":                              maxRetryAfter,
		"9999999999":                        maxRetryAfter,
		"-1":                                0,
		"1.5":                               0,
		"Wed, 02 Dec 2026 12:00:04 GMT":     4 * time.Second,
		"Wed, 02 Dec 2026 11:00:00 GMT":     0,
		"Thu, 03 Dec 2026 12:00:00 GMT":     maxRetryAfter,
		"Wednesday, 02-Dec-26 12:00:05 GMT": 5 * time.Second,
	} {
		r := reply{header: http.Header{"Retry-After": {value}}}
		require.Equal(t, want, r.retryAfter(now), value)
	}
}

// What the API asks for is waited for once, and on top.
func TestPauses(t *testing.T) {
	p := &pauses{ExponentialBackOff: backoff.NewExponentialBackOff()}
	p.InitialInterval, p.MaxInterval = time.Millisecond, time.Millisecond
	p.asked = time.Second
	require.Greater(t, p.NextBackOff(), time.Second)
	require.Less(t, p.NextBackOff(), time.Second)
}
