package payments_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v85"

	"github.com/delivered-twice/delivered-twice/internal/payments"
)

// newStripe is Stripe's own client, which takes this server for Stripe.
func newStripe(t *testing.T, url string, retries int64) *stripe.Client {
	t.Helper()
	config := &stripe.BackendConfig{
		URL:               stripe.String(url),
		MaxNetworkRetries: stripe.Int64(retries),
		LeveledLogger:     &stripe.LeveledLogger{Level: stripe.LevelNull},
		EnableTelemetry:   stripe.Bool(false),
		HTTPClient:        &http.Client{Timeout: patience},
	}
	return stripe.NewClient(shopSecret, stripe.WithBackends(&stripe.Backends{API: stripe.GetBackendWithConfig(stripe.APIBackend, config)}))
}

func chargeParams(key string, amount int64, source string) *stripe.ChargeCreateParams {
	params := &stripe.ChargeCreateParams{
		Amount:      stripe.Int64(amount),
		Currency:    stripe.String(string(stripe.CurrencyEUR)),
		Description: stripe.String("an order, & more"),
		Source:      &stripe.PaymentSourceSourceParams{Token: stripe.String(source)},
		Metadata:    map[string]string{"event_id": "evt_1", "attempt": "a.1"},
	}
	params.SetIdempotencyKey(key)
	return params
}

func TestStripesOwnClient(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	client := newStripe(t, a.url, 0)

	first, err := client.V1Charges.Create(t.Context(), chargeParams("k", 1999, "tok_visa"))
	require.NoError(t, err)
	require.EqualValues(t, 1999, first.Amount)
	require.Equal(t, stripe.CurrencyEUR, first.Currency)
	require.Equal(t, stripe.ChargeStatusSucceeded, first.Status)
	require.True(t, first.Paid)
	require.Equal(t, "an order, & more", first.Description)
	require.Equal(t, map[string]string{"event_id": "evt_1", "attempt": "a.1"}, first.Metadata)

	replay, err := client.V1Charges.Create(t.Context(), chargeParams("k", 1999, "tok_visa"))
	require.NoError(t, err)
	require.Equal(t, first.ID, replay.ID)
	require.Equal(t, "true", replay.LastResponse.Header.Get("Idempotent-Replayed"))
	require.Equal(t, first.LastResponse.RequestID, replay.LastResponse.RequestID)

	found, err := client.V1Charges.Retrieve(t.Context(), first.ID, nil)
	require.NoError(t, err)
	require.Equal(t, first.Metadata, found.Metadata)
	require.Len(t, a.ledger(), 1)

	// Its own types of errors.
	var refused *stripe.Error
	_, err = client.V1Charges.Create(t.Context(), chargeParams("k", 1, "tok_visa"))
	require.ErrorAs(t, err, &refused)
	require.Equal(t, stripe.ErrorTypeIdempotency, refused.Type)
	require.Equal(t, http.StatusBadRequest, refused.HTTPStatusCode)
	var conflict *stripe.IdempotencyError
	require.ErrorAs(t, refused.Err, &conflict)

	_, err = client.V1Charges.Create(t.Context(), chargeParams("k2", 1999, "tok_chargeDeclinedInsufficientFunds"))
	var declined *stripe.CardError
	require.ErrorAs(t, err, &refused)
	require.ErrorAs(t, refused.Err, &declined)
	require.Equal(t, stripe.DeclineCodeInsufficientFunds, declined.DeclineCode)
	require.Equal(t, stripe.ErrorCodeCardDeclined, refused.Code)
	require.NotEmpty(t, refused.ChargeID)

	_, err = client.V1Charges.Create(t.Context(), chargeParams("k3", 0, "tok_visa"))
	var invalid *stripe.InvalidRequestError
	require.ErrorAs(t, err, &refused)
	require.ErrorAs(t, refused.Err, &invalid)
	require.Equal(t, "amount", refused.Param)

	_, err = client.V1Charges.Retrieve(t.Context(), "ch_none", nil)
	require.ErrorAs(t, err, &refused)
	require.Equal(t, stripe.ErrorCodeResourceMissing, refused.Code)
}

func TestStripesOwnClientInFlight(t *testing.T) {
	t.Parallel()
	g := newGate(payments.Claimed)
	a := newAPI(t, func(o *payments.Options) { o.Hook = g.hook; o.Stall = patience })
	first := make(chan string, 1)
	go func() {
		defer close(first)
		if made, err := newStripe(t, a.url, 0).V1Charges.Create(context.WithoutCancel(t.Context()), chargeParams("k", 1999, "tok_visa")); err == nil {
			first <- made.ID
		}
	}()
	<-g.reached
	_, err := newStripe(t, a.url, 0).V1Charges.Create(t.Context(), chargeParams("k", 1999, "tok_visa"))
	var refused *stripe.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, http.StatusConflict, refused.HTTPStatusCode)
	require.Equal(t, stripe.ErrorCodeIdempotencyKeyInUse, refused.Code)
	close(g.opened)
	id := <-first
	again, err := newStripe(t, a.url, 0).V1Charges.Create(t.Context(), chargeParams("k", 1999, "tok_visa"))
	require.NoError(t, err)
	require.Equal(t, id, again.ID)
}

// Its own retries, which it makes for lost connections and not for an answer of 500 or
// 409, come through a bad network with one charge each.
func TestStripesOwnRetries(t *testing.T) {
	t.Parallel()
	a := newAPI(t, func(o *payments.Options) {
		o.Network = payments.Network{DropResponseRate: 0.5, Seed: 3}
	})
	client := newStripe(t, a.url, 20)
	charged := make(map[string]bool)
	for _, key := range []string{"a", "b", "c", "d"} {
		made, err := client.V1Charges.Create(t.Context(), chargeParams(key, 1999, "tok_visa"))
		require.NoError(t, err)
		charged[made.ID] = true
	}
	require.Len(t, charged, 4)
	require.Len(t, a.ledger(), 4)
}
