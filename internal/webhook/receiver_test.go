package webhook_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/delivered-twice/delivered-twice/internal/pginbox"
	"github.com/delivered-twice/delivered-twice/internal/webhook"
)

// patience bounds every wait. It is no part of any claim: reaching it is a failure.
const patience = 30 * time.Second

// inbox is a process that keeps what it got.
type inbox struct {
	mu      sync.Mutex
	batches [][]pginbox.Event
	err     error
}

func (i *inbox) process(_ context.Context, events []pginbox.Event) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.batches = append(i.batches, events)
	return i.err
}

// ids are those of all events, in the order in which they came.
func (i *inbox) ids() (ids []string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, batch := range i.batches {
		for _, e := range batch {
			ids = append(ids, e.ID)
		}
	}
	return ids
}

// receiver returns a receiver without signatures, changed as the test wants.
func receiver(t testing.TB, change func(*webhook.Options)) *webhook.Receiver {
	t.Helper()
	verifier, err := webhook.NewVerifier(webhook.None)
	require.NoError(t, err)
	o := webhook.Options{Verifier: verifier, Patience: patience}
	change(&o)
	r, err := webhook.NewReceiver(o)
	require.NoError(t, err)
	return r
}

// serve starts a receiver at an address, and returns what ends it in an orderly way and
// waits for that.
func serve(t testing.TB, r *webhook.Receiver) (address string, end func() error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Serve(ctx, listener) }()
	end = sync.OnceValue(func() error {
		stop()
		return <-ended
	})
	t.Cleanup(func() { require.NoError(t, end()) })
	return listener.Addr().String(), end
}

func post(body string) *http.Request {
	req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	return req
}

func do(h http.Handler, req *http.Request) *http.Response {
	recorder := httptest.NewRecorder()
	h.ServeHTTP(recorder, req)
	return recorder.Result()
}

// What is no signed event of this provider is refused, says why, and goes no further.
func TestRefused(t *testing.T) {
	verifier, err := webhook.NewVerifier(webhook.Stripe, secret)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		change func(*http.Request)
		status int
		says   string
	}{
		"another method":  {func(r *http.Request) { r.Method = http.MethodPut }, http.StatusMethodNotAllowed, "POST"},
		"no content type": {func(r *http.Request) { r.Header.Del("Content-Type") }, http.StatusUnsupportedMediaType, "application/json"},
		"a form":          {func(r *http.Request) { r.Header.Set("Content-Type", "application/x-www-form-urlencoded") }, http.StatusUnsupportedMediaType, "application/json"},
		"compressed":      {func(r *http.Request) { r.Header.Set("Content-Encoding", "gzip") }, http.StatusUnsupportedMediaType, "encoded"},
		"no signature":    {func(*http.Request) {}, http.StatusBadRequest, "Stripe-Signature is missing"},
		"a bad signature": {func(r *http.Request) {
			r.Header.Set("Stripe-Signature", "t="+strconv.FormatInt(time.Now().Unix(), 10)+",v1=00")
		}, http.StatusBadRequest, "not valid"},
		"empty":     {func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader("")); r.ContentLength = 0 }, http.StatusBadRequest, "empty"},
		"too large": {func(r *http.Request) { r.ContentLength = 101 }, http.StatusRequestEntityTooLarge, "more than 100 bytes"},
		"too large, unsaid": {func(r *http.Request) {
			r.Body = io.NopCloser(strings.NewReader(strings.Repeat("x", 101)))
			r.ContentLength = -1
		}, http.StatusRequestEntityTooLarge, "more than 100 bytes"},
		"a body that breaks": {func(r *http.Request) { r.Body = io.NopCloser(io.MultiReader(strings.NewReader("{"), brokenReader{})) }, http.StatusBadRequest, "did not arrive"},
	} {
		t.Run(name, func(t *testing.T) {
			var got inbox
			r := receiver(t, func(o *webhook.Options) { o.Verifier, o.Process, o.MaxBody = verifier, got.process, 100 })
			req := post(`{"id":"evt_1"}`)
			c.change(req)
			resp := do(r, req)
			require.Equal(t, c.status, resp.StatusCode)
			said, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.Contains(t, string(said), c.says)
			require.Empty(t, got.ids())
			require.Equal(t, c.status == http.StatusMethodNotAllowed, resp.Header.Get("Allow") == "POST")
		})
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// The answer is 2xx only after the work is done.
func TestAnsweredAfterTheWork(t *testing.T) {
	begun, finish := make(chan struct{}), make(chan struct{})
	r := receiver(t, func(o *webhook.Options) {
		o.Process = func(context.Context, []pginbox.Event) error {
			close(begun)
			<-finish
			return nil
		}
	})
	address, _ := serve(t, r)
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, post(`{"id":1}`).Write(conn))
	<-begun
	answered := make(chan *http.Response)
	go func() {
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err == nil {
			answered <- resp
		}
	}()
	select {
	case <-answered:
		t.Fatal("answered before the work was done")
	default:
	}
	close(finish)
	require.Equal(t, http.StatusOK, (<-answered).StatusCode)
}

// Whatever the work fails of, the sender is to come again.
func TestNotDone(t *testing.T) {
	block := func(ctx context.Context, _ []pginbox.Event) error { <-ctx.Done(); return ctx.Err() }
	for name, c := range map[string]struct {
		process func(context.Context, []pginbox.Event) error
		hook    pginbox.Hook
		status  int
	}{
		"it takes too long": {block, nil, http.StatusServiceUnavailable},
		"it is refused":     {(&inbox{err: errors.New("table gone, says open-sesame")}).process, nil, http.StatusInternalServerError},
		"it fails at received": {(&inbox{}).process, func(_ context.Context, p pginbox.Passage) error {
			return errors.New("on purpose")
		}, http.StatusServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			r := receiver(t, func(o *webhook.Options) { o.Process, o.Hook, o.Patience = c.process, c.hook, 20*time.Millisecond })
			resp := do(r, post(`{}`))
			require.Equal(t, c.status, resp.StatusCode)
			require.Equal(t, c.status == http.StatusServiceUnavailable, resp.Header.Get("Retry-After") == "1")
			said, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.NotContains(t, string(said), "sesame")
		})
	}
}

// What comes while others are being worked on goes on together, and no batch is larger
// than it may be.
func TestBatches(t *testing.T) {
	const requests = 50
	var (
		got    inbox
		held   = make(chan struct{}, requests)
		finish = make(chan struct{})
	)
	r := receiver(t, func(o *webhook.Options) {
		o.BatchSize = 10
		o.Process = func(ctx context.Context, events []pginbox.Event) error {
			held <- struct{}{}
			<-finish
			return got.process(ctx, events)
		}
	})
	var all errgroup.Group
	for n := range requests {
		all.Go(func() error {
			if status := do(r, post(fmt.Sprintf(`{"n":%d}`, n))).StatusCode; status != http.StatusOK {
				return fmt.Errorf("status %d", status)
			}
			return nil
		})
		if n < 4 { // as many as go on at the same time
			<-held
		}
	}
	require.Eventually(t, func() bool { return r.Waiting() == requests-4 }, patience, time.Millisecond)
	close(finish)
	require.NoError(t, all.Wait())
	require.Len(t, got.ids(), requests)
	sizes := make(map[int]int)
	for _, batch := range got.batches {
		sizes[len(batch)]++
	}
	require.Equal(t, map[int]int{1: 4, 10: 4, 6: 1}, sizes)
}

// A sender that has left is not worked for; those beside it are.
func TestSenderLeft(t *testing.T) {
	var (
		got    inbox
		held   = make(chan struct{}, 10)
		finish = make(chan struct{})
	)
	r := receiver(t, func(o *webhook.Options) {
		o.Process = func(ctx context.Context, events []pginbox.Event) error {
			held <- struct{}{}
			<-finish
			return got.process(ctx, events)
		}
	})
	var all errgroup.Group
	send := func(body string, ctx context.Context) {
		all.Go(func() error { do(r, post(body).WithContext(ctx)); return nil })
	}
	for n := range 4 {
		send(strconv.Itoa(n), t.Context())
		<-held
	}
	leaving, leave := context.WithCancel(t.Context())
	send(`"leaves"`, leaving)
	send(`"stays"`, t.Context())
	require.Eventually(t, func() bool { return r.Waiting() == 2 }, patience, time.Millisecond)
	leave()
	close(finish)
	require.NoError(t, all.Wait())
	var values []string
	for _, batch := range got.batches {
		for _, e := range batch {
			values = append(values, string(e.Record.Value))
		}
	}
	require.ElementsMatch(t, []string{"0", "1", "2", "3", `"stays"`}, values)
}

// A sender that has said all it had to say, and closes its side, still reads the answer.
// An event that is not done must not look like one that is.
func TestHalfClosed(t *testing.T) {
	r := receiver(t, func(o *webhook.Options) {
		o.Process = func(context.Context, []pginbox.Event) error { return errors.New("not done") }
	})
	left := make(chan struct{})
	gone := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
		<-req.Context().Done() // the server has seen the end of what the sender says
		close(left)
		r.ServeHTTP(w, req)
	})
	server := httptest.NewServer(gone)
	t.Cleanup(server.Close)
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
	require.NoError(t, err)
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	<-left
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.GreaterOrEqual(t, resp.StatusCode, http.StatusInternalServerError) // the sender sends it again
}

// A body that does not arrive whole is nobody's event, and is not answered as one.
func TestTruncated(t *testing.T) {
	var got inbox
	address, _ := serve(t, receiver(t, func(o *webhook.Options) { o.Process = got.process }))
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{}")
	require.NoError(t, err)
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusBadRequest, resp.StatusCode)
	require.Empty(t, got.ids())
}

func TestTooManyInHand(t *testing.T) {
	begun, finish := make(chan struct{}), make(chan struct{})
	r := receiver(t, func(o *webhook.Options) {
		o.MaxInHand = 1
		o.Process = func(context.Context, []pginbox.Event) error {
			close(begun)
			<-finish
			return nil
		}
	})
	first := make(chan int)
	go func() { first <- do(r, post(`{}`)).StatusCode }()
	<-begun
	resp := do(r, post(`{}`))
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	require.Equal(t, "1", resp.Header.Get("Retry-After"))
	close(finish)
	require.Equal(t, http.StatusOK, <-first)
}

// An orderly end takes no more requests, finishes those in hand, and does not wait for
// connections on which none has come.
func TestOrderlyEnd(t *testing.T) {
	begun, finish := make(chan struct{}), make(chan struct{})
	r := receiver(t, func(o *webhook.Options) {
		o.Process = func(context.Context, []pginbox.Event) error {
			close(begun)
			<-finish
			return nil
		}
	})
	address, end := serve(t, r)
	unused, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer unused.Close()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, post(`{}`).Write(conn))
	<-begun
	ended := make(chan error, 1)
	go func() { ended <- end() }()

	_, err = unused.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.Eventually(t, func() bool {
		late, err := net.Dial("tcp", address)
		if err == nil {
			_ = late.Close()
		}
		return err != nil
	}, patience, time.Millisecond)
	require.Empty(t, ended, "it ended with a request in hand")
	close(finish)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.NoError(t, <-ended)
}

// Steps are passed in their order, with the ids of the events.
func TestSteps(t *testing.T) {
	var passed []string
	note := func(step pginbox.Step, events []pginbox.Event) {
		passed = append(passed, string(step)+" "+events[0].ID)
	}
	verifier, err := webhook.NewVerifier(webhook.GitHub, "It's a Secret to Everybody")
	require.NoError(t, err)
	r := receiver(t, func(o *webhook.Options) {
		o.Verifier = verifier
		o.Process = func(_ context.Context, events []pginbox.Event) error { note("worked", events); return nil }
		o.Hook = func(_ context.Context, p pginbox.Passage) error { note(p.Step, p.Events); return nil }
	})
	req := post("Hello, World!")
	req.Header.Set("X-Hub-Signature-256", "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17")
	req.Header.Set("X-GitHub-Delivery", "guid")
	require.Equal(t, http.StatusOK, do(r, req).StatusCode)
	require.Equal(t, []string{"received guid", "worked guid", "answered guid"}, passed)
}

// Nothing that a request brings but the event's id is logged.
func TestLog(t *testing.T) {
	var log bytes.Buffer
	verifier, err := webhook.NewVerifier(webhook.Stripe, secret)
	require.NoError(t, err)
	r := receiver(t, func(o *webhook.Options) {
		o.Verifier, o.Process, o.Logger = verifier, (&inbox{err: errors.New("no table")}).process, slog.New(slog.NewTextHandler(&log, nil))
	})
	body := `{"id":"evt_1","card":"4242"}`
	at := time.Now()
	for _, signature := range []string{stripeMAC(body, secret, at), "feedface"} {
		req := post(body)
		req.Header.Set("Stripe-Signature", fmt.Sprintf("t=%d,v1=%s", at.Unix(), signature))
		require.Contains(t, []int{http.StatusInternalServerError, http.StatusBadRequest}, do(r, req).StatusCode)
		require.NotContains(t, log.String(), signature)
	}
	require.Contains(t, log.String(), "event=evt_1")
	require.Contains(t, log.String(), "no table")
	require.NotContains(t, log.String(), "4242")
	require.NotContains(t, log.String(), "sesame")
}

func TestReceiverUnusable(t *testing.T) {
	_, err := webhook.NewReceiver(webhook.Options{})
	require.ErrorContains(t, err, "no verifier")
	verifier, err := webhook.NewVerifier(webhook.None)
	require.NoError(t, err)
	_, err = webhook.NewReceiver(webhook.Options{Verifier: verifier})
	require.ErrorContains(t, err, "nobody to process")
	_, err = webhook.NewReceiver(webhook.Options{Verifier: verifier, Process: (&inbox{}).process, BatchSize: -1})
	require.ErrorContains(t, err, "at least 1")
}
