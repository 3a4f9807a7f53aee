package payments

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"
)

// The types of Stripe's errors (https://docs.stripe.com/api/errors).
const (
	typeAPI            = "api_error"
	typeCard           = "card_error"
	typeIdempotency    = "idempotency_error"
	typeInvalidRequest = "invalid_request_error"
)

// refusal is an error that the client is told, in the form of Stripe's.
type refusal struct {
	status int
	header http.Header

	Type        string `json:"type"`
	Code        string `json:"code,omitempty"`
	DeclineCode string `json:"decline_code,omitempty"`
	Message     string `json:"message"`
	Param       string `json:"param,omitempty"`
	Charge      string `json:"charge,omitempty"`
}

func (r *refusal) Error() string { return r.Message }

// answer is the refusal as it is sent.
func (r *refusal) answer() (answer, error) {
	return jsonAnswer(r.status, r.header, map[string]*refusal{"error": r})
}

// invalid refuses one parameter.
func invalid(param, code, format string, args ...any) *refusal {
	return &refusal{status: http.StatusBadRequest, Type: typeInvalidRequest, Code: code, Param: short(param), Message: fmt.Sprintf(format, args...)}
}

// malformed refuses a request that can't be read.
func malformed(status int, format string, args ...any) *refusal {
	return &refusal{status: status, Type: typeInvalidRequest, Message: fmt.Sprintf(format, args...)}
}

func unauthorized() *refusal {
	return &refusal{
		status:  http.StatusUnauthorized,
		header:  http.Header{"Www-Authenticate": {`Bearer realm="payments"`}},
		Type:    typeInvalidRequest,
		Message: "No valid API key provided. Send it as a bearer token (Authorization: Bearer YOUR_SECRET_KEY).",
	}
}

func inFlight() *refusal {
	return &refusal{
		status:  http.StatusConflict,
		header:  http.Header{"Retry-After": {"1"}},
		Type:    typeIdempotency,
		Code:    "idempotency_key_in_use",
		Message: "Another request with this Idempotency-Key is being worked on. Send this one again later, with the same key.",
	}
}

func otherRequest() *refusal {
	return &refusal{
		status:  http.StatusBadRequest,
		Type:    typeIdempotency,
		Message: "This Idempotency-Key was first used for another endpoint or with other parameters. Choose another key for another request.",
	}
}

func unavailable() *refusal {
	return &refusal{
		status:  http.StatusServiceUnavailable,
		header:  http.Header{"Retry-After": {"1"}},
		Type:    typeAPI,
		Message: "The API can't reach its database, or has not heard from it in time. Send the request again, with the same Idempotency-Key.",
	}
}

func internal() *refusal {
	return &refusal{
		status:  http.StatusInternalServerError,
		Type:    typeAPI,
		Message: "The API failed. Send the request again, with the same Idempotency-Key.",
	}
}

// refusalFor is what a client is told of an error, which is no more than whether it
// may pass by itself.
func refusalFor(err error) *refusal {
	var (
		told *refusal
		step *stepError
		pg   *pgconn.PgError
	)
	switch {
	case errors.As(err, &told):
		return told
	case errors.As(err, &step):
		return internal()
	case errors.As(err, &pg) && len(pg.Code) == 5 && slices.Contains([]string{
		"22", // data that does not fit
		"23", // a constraint
		"42", // a statement that is wrong, a table or a permission that is missing
	}, pg.Code[:2]):
		return internal()
	default:
		// No connection, none in time, one that was lost (outcome unknown, if that was
		// at the commit), a server that stops, starts or has run out of something.
		return unavailable()
	}
}

// answer is what a request gets.
type answer struct {
	status   int
	header   http.Header
	body     []byte
	replayed bool
}

func jsonAnswer(status int, header http.Header, body any) (answer, error) {
	all := make(http.Header)
	maps.Copy(all, header)
	encoded, err := json.Marshal(body)
	if err != nil {
		return answer{status: http.StatusInternalServerError, header: all}, fmt.Errorf("encode an answer: %w", err)
	}
	all.Set("Content-Type", "application/json")
	return answer{status: status, header: all, body: append(encoded, '\n')}, nil
}
