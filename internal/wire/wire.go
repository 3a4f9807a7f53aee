// Package wire is a TCP proxy that stands between a client and Kafka or
// PostgreSQL, and reads just enough of what they say to act at the n-th request of
// a kind: before the third EndTxn reaches the broker, or after PostgreSQL answered
// the first COMMIT and before the client hears of it. Nothing depends on timing.
//
// It serves clients in any language: all that they need is the proxy's address.
//
//	proxy, err := wire.Postgres("127.0.0.1:5432")
//	…
//	struck := proxy.At(wire.Trigger{On: wire.Commit, Nth: 3, When: wire.BeforeAnswer, Do: (*wire.Strike).Cut})
//
// # What is seen, and what is not
//
// Connections that switch to TLS, or to GSSAPI encryption, pass through unread: no
// trigger strikes on them, and a Kafka client finds the brokers' own addresses in
// its metadata and goes past the proxy. Everything else is forwarded byte for byte,
// but for the addresses of brokers (see [Kafka]).
//
// The proxy buffers 64 KiB for each direction of a connection, and never a whole
// message, except for those that it cannot understand in part: the text of an SQL
// statement, and the answers of Kafka that can name brokers. Among these are the
// answers to Fetch from version 16, and to ShareFetch, because the addresses stand
// at their end. Where one side is slow to read, the other one is slowed down.
package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// dialPatience bounds one attempt to reach a server, so that an address that
// swallows packets looks like one where nobody listens.
const dialPatience = 10 * time.Second

// Proxy listens on 127.0.0.1 and forwards to one service until it is closed. It is
// safe for concurrent use.
//
// A client whose server cannot be reached gets its connection closed at once. The
// proxy lives on, and the next connection finds the server when it is back.
type Proxy struct {
	kinds []Kind
	speak func(*conn)
	seeds []string

	// alive ends when the proxy is closed.
	alive context.Context
	end   context.CancelFunc
	tasks sync.WaitGroup

	mu        sync.Mutex
	listeners map[string]net.Listener // by the server's address
	failure   error
	armed     []*armed

	requests atomic.Int64
}

func newProxy(servers []string, kinds []Kind, speak func(*conn)) (*Proxy, error) {
	p := &Proxy{kinds: kinds, speak: speak, listeners: make(map[string]net.Listener)}
	p.alive, p.end = context.WithCancel(context.Background())
	for _, server := range servers {
		if err := checkAddress(server); err != nil {
			return nil, errors.Join(err, p.Close())
		}
		local, err := p.listen(server)
		if err != nil {
			return nil, errors.Join(err, p.Close())
		}
		p.seeds = append(p.seeds, local.String())
	}
	return p, nil
}

func checkAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err == nil && host == "" {
		err = errors.New("the host is missing")
	}
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("no proxy for the address %q: %w; give it as host:port", address, err)
	}
	return nil
}

// Addrs are the addresses (host:port) to give to clients: for Kafka one for each
// seed, in the same order, for PostgreSQL one.
func (p *Proxy) Addrs() []string { return append([]string(nil), p.seeds...) }

// Requests is how many requests Kafka's clients have sent through the proxy, of every
// kind; for PostgreSQL it is 0.
func (p *Proxy) Requests() int64 { return p.requests.Load() }

// Close cuts all connections, stops listening, and returns when every goroutine of
// the proxy has ended, so it waits for a [Trigger].Do that is running, and must not
// be called by one. A [Strike.Hold] ends. Calling Close again does nothing more.
//
// The error is the first reason for which the proxy had to cut a connection of its
// own accord, such as a request in a newer version of Kafka's protocol than it can
// read. A server that is away is none.
func (p *Proxy) Close() error {
	p.end()
	p.mu.Lock()
	for _, listener := range p.listeners {
		_ = listener.Close()
	}
	p.mu.Unlock()
	p.tasks.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failure
}

// listen returns the address under which the proxy stands for a server, and begins
// to listen there when it is asked for that server for the first time.
func (p *Proxy) listen(server string) (*net.TCPAddr, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.alive.Err() != nil {
		return nil, net.ErrClosed
	}
	if listener, ok := p.listeners[server]; ok {
		return listener.Addr().(*net.TCPAddr), nil
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("no address for the proxy of %s: %w", server, err)
	}
	p.listeners[server] = listener
	p.tasks.Go(func() { p.accept(listener, server) })
	return listener.Addr().(*net.TCPAddr), nil
}

func (p *Proxy) accept(listener net.Listener, server string) {
	for {
		client, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of file descriptors, most likely: it passes when connections end.
			p.fail(fmt.Errorf("accept a connection for %s: %w", server, err))
			select {
			case <-time.After(10 * time.Millisecond):
			case <-p.alive.Done():
			}
			continue
		}
		p.tasks.Go(func() { p.serve(client.(*net.TCPConn), server) })
	}
}

func (p *Proxy) serve(client *net.TCPConn, server string) {
	dialer := net.Dialer{Timeout: dialPatience}
	upstream, err := dialer.DialContext(p.alive, "tcp", server)
	if err != nil {
		_ = client.Close()
		return
	}
	c := newConn(p, client, upstream.(*net.TCPConn))
	c.Conn.Server = server
	defer c.end()
	p.speak(c)
}

// fail keeps the first error for [Proxy.Close].
func (p *Proxy) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failure == nil {
		p.failure = err
	}
}
