package webhook_test

import (
	"context"
	"fmt"
	"log"
	"net/http/httptest"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/delivered-twice/delivered-twice/internal/pginbox"
	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
	"github.com/delivered-twice/delivered-twice/internal/webhook"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

// A provider sends an event twice, and gets 200 for both.
func Example() {
	ctx := context.Background()
	t, end := sandboxtest.Example()
	defer end()
	databaseURL := sandboxtest.Database(t) // yours
	if err := pginbox.Migrate(ctx, databaseURL); err != nil {
		log.Fatal(err)
	}
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	inbox, err := pginbox.New(pool, pginbox.Options{
		Handlers: []pginbox.Handler{{
			Name: "warehouse",
			Handle: func(_ context.Context, _ pgx.Tx, events []pginbox.Event) error {
				for _, e := range events {
					fmt.Println("handled", e.ID)
				}
				return nil
			},
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	const secret = "whsec_123"
	verifier, err := webhook.NewVerifier(webhook.Stripe, secret)
	if err != nil {
		log.Fatal(err)
	}
	receiver, err := webhook.NewReceiver(webhook.Options{Verifier: verifier, Process: inbox.Process})
	if err != nil {
		log.Fatal(err)
	}
	server := httptest.NewServer(receiver) // receiver.Serve, in a program
	defer server.Close()

	provider, err := webhook.NewSender(webhook.SenderOptions{URLs: []string{server.URL}, Scheme: webhook.Stripe, Secret: secret})
	if err != nil {
		log.Fatal(err)
	}
	defer provider.Close()
	for range 2 {
		fmt.Println("sent:", provider.Send(ctx, "evt_9f3k", []byte(`{"id":"evt_9f3k","order":"ord_1"}`)))
	}
	// Output:
	// handled evt_9f3k
	// sent: <nil>
	// sent: <nil>
}
