package payments_test

import (
	"context"
	"fmt"
	"log"
	"net/http/httptest"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/delivered-twice/delivered-twice/internal/payments"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
)

// Both sides of a call: what is charged under one key is charged once.
func Example() {
	ctx := context.Background()
	t, end := sandboxtest.Example()
	defer end()
	databaseURL := sandboxtest.Database(t) // the third party's

	// The third party.
	if err := payments.Migrate(ctx, databaseURL); err != nil {
		log.Fatal(err)
	}
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	secrets, err := payments.ParseSecrets("shop=sk_test_123")
	if err != nil {
		log.Fatal(err)
	}
	server, err := payments.NewServer(pool, payments.Options{Secrets: secrets})
	if err != nil {
		log.Fatal(err)
	}
	api := httptest.NewServer(server)
	defer api.Close()

	// Its client.
	client, err := payments.NewClient(payments.ClientOptions{URL: api.URL, Key: "sk_test_123"})
	if err != nil {
		log.Fatal(err)
	}
	var first payments.Charge
	for range 2 { // the event is delivered twice
		charge, err := client.Charge(ctx, payments.ChargeParams{
			Amount:         1999,
			Currency:       "eur",
			IdempotencyKey: payments.Key("evt_9f3k", "payment"),
		})
		if err != nil {
			log.Fatal(err)
		}
		if first.ID == "" {
			first = charge
		}
		fmt.Println("the same charge:", charge.ID == first.ID, "replayed:", charge.Replayed)
	}
	// Output:
	// the same charge: true replayed: false
	// the same charge: true replayed: true
}
