package webhook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// readHeaderTimeout and readTimeout bound how long a request may take to arrive, and
	// writeTime how long its answer may take to leave.
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTime         = 5 * time.Second
	// idleTimeout is how long a connection may stay without a request.
	idleTimeout = 2 * time.Minute
	// maxHeader is the size of the largest header in bytes.
	maxHeader = 16 << 10
)

// Serve answers the requests that come to a listener until ctx ends. Then it takes no
// more, finishes those that it has in hand, and returns nil.
func (r *Receiver) Serve(ctx context.Context, listener net.Listener) error {
	unused := unusedConnections{open: make(map[net.Conn]bool)}
	server := &http.Server{
		Handler:           r,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      readTimeout + r.options.Patience + writeTime, // from the end of the header on
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ConnState:         unused.changed,
		ErrorLog:          slog.NewLogLogger(r.options.Logger.Handler(), slog.LevelWarn),
	}
	ended := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		grace, cancel := context.WithTimeout(context.Background(), server.WriteTimeout)
		defer cancel()
		unused.close()
		ended <- server.Shutdown(grace)
	})
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("webhook: serve at %s: %w", listener.Addr(), err)
	}
	if err := <-ended; err != nil {
		r.options.Logger.Warn("requests are cut off; the sender sends them again", "cause", err)
		_ = server.Close()
	}
	r.work.Wait() // for what is being done although nobody waits for it any more
	return nil
}

// unusedConnections are those on which no request has come yet, such as a load balancer
// keeps ready. Shutdown would wait several seconds for the first one.
type unusedConnections struct {
	mu     sync.Mutex
	open   map[net.Conn]bool
	closed bool
}

// changed is a ConnState hook.
func (u *unusedConnections) changed(conn net.Conn, state http.ConnState) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case state != http.StateNew:
		delete(u.open, conn)
	case u.closed:
		_ = conn.Close()
	default:
		u.open[conn] = true
	}
}

// close closes them, and those that come.
func (u *unusedConnections) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = true
	for conn := range u.open {
		_ = conn.Close()
	}
}
