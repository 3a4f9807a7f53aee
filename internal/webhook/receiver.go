package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/pginbox"
)

// Options say whose events a receiver takes, and who processes them.
type Options struct {
	// Verifier checks the signatures.
	Verifier *Verifier
	// Process does the work of events and returns nil when it is done, durably:
	// [pginbox.Inbox.Process]. It is called concurrently.
	Process func(context.Context, []pginbox.Event) error
	// BatchSize is how many events Process gets at a time, at most; the default is 100.
	BatchSize int
	// Patience is how long a request may wait for its work to be done before it is
	// answered with 503, and how long the work itself may take; the default is 5 s. It
	// must be shorter than the sender's own: GitHub waits for 10 s. Work that always takes
	// longer is never done, and the sender hears it each time.
	Patience time.Duration
	// MaxBody is the size of the largest body in bytes; the default is 1 MiB.
	MaxBody int64
	// MaxInHand is how many requests may be in hand at the same time; the default is
	// 1,000. Those beyond are answered with 503 at once.
	MaxInHand int
	// Hook, where set, is called at Received and at Answered.
	Hook pginbox.Hook
	// Logger, where set, hears of failures, with event ids and without contents.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.BatchSize == 0 {
		o.BatchSize = 100
	}
	if o.Patience == 0 {
		o.Patience = 5 * time.Second
	}
	if o.MaxBody == 0 {
		o.MaxBody = 1 << 20
	}
	if o.MaxInHand == 0 {
		o.MaxInHand = 1_000
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

func (o Options) validate() error {
	switch {
	case o.Verifier == nil:
		return errors.New("there is no verifier")
	case o.Process == nil:
		return errors.New("there is nobody to process events")
	case o.BatchSize < 1:
		return fmt.Errorf("batches of %d, must be at least 1", o.BatchSize)
	case o.Patience < 0:
		return fmt.Errorf("patience is %v, must be positive", o.Patience)
	case o.MaxBody < 0:
		return fmt.Errorf("bodies of at most %d bytes, must be positive", o.MaxBody)
	case o.MaxInHand < 0:
		return fmt.Errorf("at most %d requests in hand, must be positive", o.MaxInHand)
	}
	return nil
}

// maxBatches is how many batches are in Process at the same time: while one waits for
// a lock, others go on.
const maxBatches = 4

// Receiver answers requests that bring an event each. It takes every path: mount it
// where the provider is to post.
type Receiver struct {
	options Options
	inHand  chan struct{} // as many as there are requests in hand

	mu      sync.Mutex
	waiting []*delivery // for a batch, the longest first
	batches int         // in Process
	work    sync.WaitGroup
}

// delivery is one event with the request that waits for it.
type delivery struct {
	request context.Context // ends when nobody waits any more
	event   pginbox.Event
	done    chan error // gets what became of its batch
}

// NewReceiver returns a receiver. An error says what is wrong with the options.
func NewReceiver(o Options) (*Receiver, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("webhook: %w", err)
	}
	return &Receiver{options: o, inHand: make(chan struct{}, o.MaxInHand)}, nil
}

// refusal is an answer that is not 2xx.
type refusal struct {
	status int
	says   string // to the sender
	cause  error  // is for the log; nil where what it says is all
}

func (r *refusal) Error() string {
	if r.cause == nil {
		return r.says
	}
	return r.says + ": " + r.cause.Error()
}

func refuse(status int, format string, args ...any) error {
	return &refusal{status: status, says: fmt.Sprintf(format, args...)}
}

// ServeHTTP answers 200 once [Options].Process has done the event of the request, now
// or before. Otherwise:
//
//   - 400, 405, 408, 413 and 415 say that the request is none of this provider's, or was
//     not understood: nothing was done, and nothing is kept of it.
//   - 503 with Retry-After says that the event is not known to be done, within
//     [Options].Patience; the sender must send it again. It may be done all the same.
//   - 500 says so too, where Process has failed of something that waiting does not mend.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	event, err := r.serve(w, req)
	if err == nil {
		r.answer(w, req, event)
		return
	}
	if req.Context().Err() != nil {
		r.options.Logger.Info("a sender did not wait for the answer; the event comes again", "event", event.ID, "from", req.RemoteAddr)
	} else {
		r.options.Logger.Warn("a request was refused", "event", event.ID, "from", req.RemoteAddr, "cause", err)
	}
	// It is answered in both cases: a sender that has only closed its side of the
	// connection, or whose body came to a standstill, looks like one that has left, and
	// net/http answers 200 for a handler that writes nothing.
	answer := &refusal{status: http.StatusInternalServerError, says: "the event could not be processed; send it again"}
	errors.As(err, &answer)
	switch answer.status {
	case http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter/time.Second)))
	case http.StatusMethodNotAllowed:
		w.Header().Set("Allow", http.MethodPost) // RFC 9110, section 15.5.6
	}
	http.Error(w, answer.says, answer.status)
}

// retryAfter is when a sender may come again.
const retryAfter = time.Second

// serve returns nil when the event that the request brings is done.
func (r *Receiver) serve(w http.ResponseWriter, req *http.Request) (pginbox.Event, error) {
	select {
	case r.inHand <- struct{}{}:
		defer func() { <-r.inHand }()
	default:
		return pginbox.Event{}, refuse(http.StatusServiceUnavailable, "there are too many requests in hand; send the event again")
	}
	event, err := r.read(w, req)
	if err != nil {
		return event, err
	}
	return event, r.deliver(req.Context(), event)
}

// read returns the event that a request brings, if it is signed.
func (r *Receiver) read(w http.ResponseWriter, req *http.Request) (event pginbox.Event, err error) {
	if req.Method != http.MethodPost {
		return event, refuse(http.StatusMethodNotAllowed, "events come by POST")
	}
	if kind, _, err := mime.ParseMediaType(req.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return event, refuse(http.StatusUnsupportedMediaType, "the content type must be application/json: choose it where the webhook is set up")
	}
	if encoding := req.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return event, refuse(http.StatusUnsupportedMediaType, "the body must not be encoded")
	}
	body, err := r.body(w, req)
	if err != nil {
		return event, err
	}
	now := time.Now()
	id, err := r.options.Verifier.Verify(req.Header, body, now)
	if err != nil {
		return event, refuse(http.StatusBadRequest, "%v", err)
	}
	return pginbox.Event{ID: id, Record: &kgo.Record{Value: body, Timestamp: now}}, nil
}

func (r *Receiver) body(w http.ResponseWriter, req *http.Request) ([]byte, error) {
	if req.ContentLength > r.options.MaxBody {
		return nil, r.tooLarge()
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, r.options.MaxBody))
	var (
		tooLarge *http.MaxBytesError
		network  net.Error
	)
	switch {
	case errors.As(err, &tooLarge):
		return nil, r.tooLarge()
	case errors.As(err, &network) && network.Timeout():
		return nil, refuse(http.StatusRequestTimeout, "the body did not arrive in time; send the event again")
	case err != nil:
		return nil, refuse(http.StatusBadRequest, "the body did not arrive: %v", err)
	case len(body) == 0:
		return nil, refuse(http.StatusBadRequest, "the body is empty")
	}
	return body, nil
}

func (r *Receiver) tooLarge() error {
	return refuse(http.StatusRequestEntityTooLarge, "the body has more than %d bytes", r.options.MaxBody)
}

// answer tells the sender that its event is done.
func (r *Receiver) answer(w http.ResponseWriter, req *http.Request, event pginbox.Event) {
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(http.StatusOK)
	if err := http.NewResponseController(w).Flush(); err != nil {
		r.options.Logger.Info("an answer was lost; the event comes again", "event", event.ID, "cause", err)
		return
	}
	if err := r.pass(req.Context(), Answered, []pginbox.Event{event}); err != nil {
		r.options.Logger.Warn("after an answer", "event", event.ID, "cause", err)
	}
}

func (r *Receiver) pass(ctx context.Context, step pginbox.Step, events []pginbox.Event) error {
	if r.options.Hook == nil {
		return nil
	}
	if err := r.options.Hook(ctx, pginbox.Passage{Step: step, Events: events}); err != nil {
		return fmt.Errorf("step %s: %w", step, err)
	}
	return nil
}
