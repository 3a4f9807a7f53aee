package payments

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/mail"
	"time"

	"github.com/jackc/pgx/v5"
)

// email is one row of emails, and the object that a client gets. Nothing is sent.
type email struct {
	ID       string            `json:"id"`
	Object   string            `json:"object"`
	Created  int64             `json:"created"`
	Livemode bool              `json:"livemode"`
	Metadata map[string]string `json:"metadata"`
	Subject  string            `json:"subject"`
	Text     string            `json:"text"`
	To       string            `json:"to"`
}

// prepareEmail is the endpoint POST /v1/emails.
func prepareEmail(p params) (work, error) {
	metadata, err := p.metadata("to", "subject", "text")
	if err != nil {
		return nil, err
	}
	asked := email{Object: "email", Metadata: metadata, Text: p["text"]}
	if asked.To, err = p.required("to"); err != nil {
		return nil, err
	}
	if address, err := mail.ParseAddress(asked.To); err != nil || address.Address != asked.To {
		return nil, invalid("to", "email_invalid", "Invalid to: it must be one plain email address.")
	}
	if asked.Subject, err = p.required("subject"); err != nil {
		return nil, err
	}
	return func(ctx context.Context, tx pgx.Tx, c call) (answer, error) {
		sent := asked
		sent.ID, sent.Created = "em_"+rand.Text(), time.Now().Unix()
		batch := &pgx.Batch{}
		batch.Queue(`
INSERT INTO emails (id, client_id, recipient, subject, body, metadata, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
			sent.ID, c.client, sent.To, sent.Subject, sent.Text, sent.Metadata, time.Unix(sent.Created, 0))
		enter(batch, c, sent.Object, sent.ID)
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return answer{}, fmt.Errorf("insert an email: %w", err)
		}
		return jsonAnswer(http.StatusOK, nil, sent)
	}, nil
}
