package payments

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
)

// ChargeParams are one charge to be made.
type ChargeParams struct {
	// Amount is in minor units (cents) of Currency.
	Amount int64
	// Currency is an ISO 4217 code.
	Currency string
	// Description is for people.
	Description string
	// Metadata are kept with the charge.
	Metadata map[string]string
	// IdempotencyKey, where set, tells the API that two requests are one: see [Key].
	// Everything else must then be the same whenever the same key is sent, or the API
	// refuses it; but this one does not look at metadata[attempt], which is to differ.
	IdempotencyKey string
}

func (p ChargeParams) encode() string {
	form := url.Values{
		"amount":   {strconv.FormatInt(p.Amount, 10)},
		"currency": {strings.ToLower(p.Currency)},
	}
	if p.Description != "" {
		form.Set("description", p.Description)
	}
	for name, value := range p.Metadata {
		form.Set("metadata["+name+"]", value)
	}
	return form.Encode() // sorted: the same charge gives the same bytes
}

// Charge is a charge that the API has made.
type Charge struct {
	// ID is the API's name of it.
	ID string
	// Replayed says that it was made by an earlier request with the same key.
	Replayed bool
}

// Charge makes a charge: at least one, and with a key, exactly one within the API's
// retention of keys.
//
// An error that is a [RequestError] says that the API does not take this charge and never
// will: another body came with the same key before, the card was declined, a field is
// wrong. Any other error is nobody's fault, such as an API that is away or refuses the
// API key: the same call may succeed later, and whether the charge was made is not
// known. When ctx ends, Charge returns at once, with its error.
func (c *Client) Charge(ctx context.Context, p ChargeParams) (Charge, error) {
	body := p.encode()
	var made Charge
	err := c.repeat(ctx, func() error {
		r, err := c.send(ctx, http.MethodPost, "/v1/charges", p.IdempotencyKey, body)
		if err == nil {
			err = r.judge()
		}
		if err == nil {
			made, err = r.charge()
		}
		return err
	})
	if err != nil {
		return Charge{}, fmt.Errorf("charge: %w", err)
	}
	return made, nil
}

// charge reads the answer as a charge. Something else that is polite enough to answer
// 200 has charged nobody.
func (r *reply) charge() (Charge, error) {
	var body struct{ ID, Object string }
	if err := json.Unmarshal(r.body, &body); err != nil || body.Object != "charge" || body.ID == "" {
		return Charge{}, fmt.Errorf("%s: %d, and the answer is no charge: check the address", r.to, r.status)
	}
	return Charge{ID: body.ID, Replayed: r.replayed()}, nil
}

// ChargeAll makes the charges, up to [MaxInFlight] of them at a time, and returns the
// error of each, in their order, nil for those that were made. One that is refused does
// not keep the others from being made. Once one has failed through nobody's fault, no
// other is begun: each of those has the same error.
func (c *Client) ChargeAll(ctx context.Context, charges []ChargeParams) []error {
	errs := make([]error, len(charges))
	giveUp, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var calls errgroup.Group
	calls.SetLimit(MaxInFlight)
	for i, p := range charges {
		calls.Go(func() error {
			if giveUp.Err() != nil {
				errs[i] = context.Cause(giveUp)
				return nil
			}
			_, errs[i] = c.Charge(ctx, p)
			var fault *RequestError
			if errs[i] != nil && !errors.As(errs[i], &fault) {
				stop(errs[i])
			}
			return nil
		})
	}
	_ = calls.Wait()
	return errs
}

// maxKeyLength is how many characters an Idempotency-Key may have.
const maxKeyLength = 255

// hashed begins a key that has a hash in the place of the event's id.
const hashed = "id-sha256:"

// Key returns the Idempotency-Key under which a handler asks for its effect of an
// event: the event's id and the handler's name, with a slash between, so that every
// repeat has the same one, in another process too, and two handlers have two. Where
// that is longer than 255 characters, or has others than printable ASCII without
// blanks, which a header would not carry unchanged, the SHA-256 of the id stands for
// it.
func Key(eventID, handler string) string {
	key := eventID + "/" + handler
	foreign := strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' })
	// An id that looks like a hash is hashed, too: no event gets the key of another.
	if foreign || len(key) > maxKeyLength || strings.HasPrefix(key, hashed) {
		sum := sha256.Sum256([]byte(eventID))
		key = hashed + hex.EncodeToString(sum[:]) + "/" + handler
	}
	return key
}
