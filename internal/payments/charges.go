package payments

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// charge is one row of charges, and Stripe's charge object as far as it goes.
type charge struct {
	ID             string            `json:"id"`
	Object         string            `json:"object"`
	Amount         int64             `json:"amount"`
	AmountCaptured int64             `json:"amount_captured"`
	Captured       bool              `json:"captured"`
	Created        int64             `json:"created"`
	Currency       string            `json:"currency"`
	Description    *string           `json:"description"`
	FailureCode    *string           `json:"failure_code"`
	FailureMessage *string           `json:"failure_message"`
	Livemode       bool              `json:"livemode"`
	Metadata       map[string]string `json:"metadata"`
	Paid           bool              `json:"paid"`
	Status         string            `json:"status"`
}

// settle fills in what follows from the rest.
func (c *charge) settle() {
	c.Object, c.Status = "charge", "succeeded"
	c.Paid = c.FailureCode == nil
	if c.Captured = c.Paid; c.Paid {
		c.AmountCaptured = c.Amount
	} else {
		c.Status = "failed"
	}
}

// decline is what the bank says no with.
type decline struct{ code, declineCode, message string }

// sources are Stripe's test tokens (https://docs.stripe.com/testing) that may pay, and
// what becomes of it; nil is no decline.
var sources = map[string]*decline{
	"":                                    nil, // a client that has no cards to choose from
	"tok_visa":                            nil,
	"tok_mastercard":                      nil,
	"tok_amex":                            nil,
	"tok_chargeDeclined":                  {"card_declined", "generic_decline", "Your card was declined."},
	"tok_chargeDeclinedInsufficientFunds": {"card_declined", "insufficient_funds", "Your card has insufficient funds."},
	"tok_chargeDeclinedExpiredCard":       {"expired_card", "", "Your card has expired."},
	"tok_chargeDeclinedProcessingError":   {"processing_error", "", "An error occurred while processing your card. Try again in a little bit."},
}

var (
	// Stripe takes at most eight digits (https://docs.stripe.com/currencies).
	amounts    = regexp.MustCompile(`^[1-9][0-9]{0,7}$`)
	currencies = regexp.MustCompile(`^[A-Za-z]{3}$`)
)

// prepareCharge is the endpoint POST /v1/charges.
func prepareCharge(p params) (work, error) {
	metadata, err := p.metadata("amount", "currency", "source", "description")
	if err != nil {
		return nil, err
	}
	amount, err := p.required("amount")
	if err != nil {
		return nil, err
	}
	if !amounts.MatchString(amount) {
		return nil, invalid("amount", "parameter_invalid_integer", "Invalid amount: it must be a whole number from 1 to 99999999, in the smallest unit of the currency.")
	}
	currency, err := p.required("currency")
	if err != nil {
		return nil, err
	}
	if !currencies.MatchString(currency) {
		return nil, invalid("currency", "", "Invalid currency: it must be an ISO code of three letters.")
	}
	declined, known := sources[p["source"]]
	if !known {
		return nil, invalid("source", "resource_missing", "No such token. Use a test token such as tok_visa or tok_chargeDeclined.")
	}
	asked := charge{Currency: strings.ToLower(currency), Metadata: metadata}
	if asked.Amount, err = strconv.ParseInt(amount, 10, 64); err != nil {
		return nil, err
	}
	if description := p["description"]; description != "" {
		asked.Description = &description
	}
	if declined != nil {
		asked.FailureCode, asked.FailureMessage = &declined.code, &declined.message
	}
	return func(ctx context.Context, tx pgx.Tx, c call) (answer, error) {
		made := asked
		made.ID, made.Created = "ch_"+rand.Text(), time.Now().Unix()
		made.settle()
		if err := made.insert(ctx, tx, c); err != nil {
			return answer{}, err
		}
		if declined != nil {
			refused := &refusal{
				status: http.StatusPaymentRequired,
				Type:   typeCard, Code: declined.code, DeclineCode: declined.declineCode, Message: declined.message, Charge: made.ID,
			}
			return refused.answer()
		}
		return jsonAnswer(http.StatusOK, nil, made)
	}, nil
}

// insert writes the charge, and its line in the ledger if it was accepted.
func (m *charge) insert(ctx context.Context, tx pgx.Tx, c call) error {
	batch := &pgx.Batch{}
	batch.Queue(`
INSERT INTO charges (id, client_id, amount, currency, description, metadata, failure_code, failure_message, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
		m.ID, c.client, m.Amount, m.Currency, m.Description, m.Metadata, m.FailureCode, m.FailureMessage, time.Unix(m.Created, 0))
	if m.Paid {
		enter(batch, c, m.Object, m.ID)
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("insert a charge: %w", err)
	}
	return nil
}

// enter adds a line to the ledger.
func enter(batch *pgx.Batch, c call, object, id string) {
	orNull := func(text string, there bool) *string {
		if !there {
			return nil
		}
		return &text
	}
	eventID, hasEvent := c.params[nameOf(metadataEventID)]
	attempt, hasAttempt := c.params[nameOf(metadataAttempt)]
	batch.Queue(`INSERT INTO ledger (object, object_id, client_id, idem_key, event_id, attempt) VALUES ($1, $2, $3, $4, $5, $6)`,
		object, id, c.client, orNull(c.key, c.key != ""), orNull(eventID, hasEvent), orNull(attempt, hasAttempt))
}

// getCharge is the endpoint GET /v1/charges/{id}. A client sees its own charges only.
func (s *Server) getCharge(ctx context.Context, client, id string) (answer, error) {
	found, created := charge{ID: id}, time.Time{}
	err := s.pool.QueryRow(ctx, `
SELECT amount, currency, description, metadata, failure_code, failure_message, created_at
FROM charges WHERE id = $1 AND client_id = $2`, strings.ToValidUTF8(strings.ReplaceAll(id, "\x00", ""), ""), client).
		Scan(&found.Amount, &found.Currency, &found.Description, &found.Metadata, &found.FailureCode, &found.FailureMessage, &created)
	if errors.Is(err, pgx.ErrNoRows) {
		missing := invalid("id", "resource_missing", "No such charge.")
		missing.status = http.StatusNotFound
		return answer{}, missing
	}
	if err != nil {
		return answer{}, fmt.Errorf("look up a charge: %w", err)
	}
	found.Created = created.Unix()
	found.settle()
	return jsonAnswer(http.StatusOK, nil, found)
}
