package wire

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
)

// Conn tells connections apart.
type Conn struct {
	// Server is the address (host:port) that the connection is forwarded to: with
	// Kafka, the broker.
	Server string
	// ClientID is what a Kafka client calls itself (client.id); empty if it does not.
	ClientID string
	// User and ApplicationName are those that a PostgreSQL client gave when it
	// connected; a later SET application_name goes unnoticed.
	User, ApplicationName string
}

// conn is one connection of a client, with the proxy's own to the server. Two
// goroutines run it, one for each direction.
type conn struct {
	Conn
	proxy             *Proxy
	client, server    *net.TCPConn
	requests, answers *stream

	// alive ends when the connection is cut, or the proxy closed.
	alive context.Context
	kill  context.CancelFunc
	// left is closed when the client has closed its side.
	left chan struct{}
	// unwatch stops waiting for the proxy to be closed.
	unwatch func() bool

	mu sync.Mutex
	// owed are the triggers that chose a request of this connection and have not
	// struck yet.
	owed map[*armed]struct{}
}

func newConn(p *Proxy, client, server *net.TCPConn) *conn {
	c := &conn{
		proxy:    p,
		client:   client,
		server:   server,
		requests: newStream(client, server),
		answers:  newStream(server, client),
		owed:     make(map[*armed]struct{}),
		left:     make(chan struct{}),
	}
	c.alive, c.kill = context.WithCancel(p.alive)
	c.unwatch = context.AfterFunc(p.alive, c.cut)
	return c
}

// cut closes both sides. What was written before still arrives, as it does when the
// process at the other end is killed.
func (c *conn) cut() {
	c.kill()
	_ = c.client.Close()
	_ = c.server.Close()
}

// end cuts the connection, and lets triggers that wait for an answer that will
// never come choose another request.
func (c *conn) end() {
	c.unwatch()
	c.cut()
	c.mu.Lock()
	defer c.mu.Unlock()
	for a := range c.owed {
		c.proxy.rearm(a)
	}
}

// both runs the two directions until both have ended. One that ends orderly is
// closed in that direction only; any other end cuts the connection.
func (c *conn) both(requests, answers func() error) {
	direction := func(run func() error, s *stream, to *net.TCPConn) {
		err := run()
		if errors.Is(err, io.EOF) {
			err = s.drain()
		}
		if err == nil {
			err = to.CloseWrite()
		}
		if err != nil {
			c.cut()
		}
	}
	var fromClient sync.WaitGroup
	fromClient.Go(func() {
		defer close(c.left)
		direction(requests, c.requests, c.server)
	})
	direction(answers, c.answers, c.client)
	fromClient.Wait()
}

// tunnel forwards everything unread.
func (c *conn) tunnel() { c.both(c.requests.passAll, c.answers.passAll) }

// window is how far a stream can look ahead.
const window = 64 << 10

// stream is one direction of a connection. What is written to it is sent when there
// is enough of it, or nothing more to read at the moment.
type stream struct {
	*bufio.Reader
	to    *bufio.Writer
	whole bytes.Buffer
}

func newStream(from, to net.Conn) *stream {
	s := &stream{to: bufio.NewWriterSize(to, window)}
	s.Reader = bufio.NewReaderSize(flushFirst{from, s.to}, window)
	return s
}

// flushFirst sends what was written before it waits for more to read.
type flushFirst struct {
	from io.Reader
	to   *bufio.Writer
}

func (f flushFirst) Read(p []byte) (int, error) {
	if err := f.to.Flush(); err != nil {
		return 0, err
	}
	return f.from.Read(p)
}

// pass forwards the next n bytes.
func (s *stream) pass(n int) error {
	for n > 0 {
		p, err := s.Peek(min(n, max(1, s.Buffered())))
		if err != nil {
			return err
		}
		if _, err := s.to.Write(p); err != nil {
			return err
		}
		n -= len(p)
		_, _ = s.Discard(len(p)) // cannot fail: they are buffered
	}
	return nil
}

// passAll forwards everything until the end, and returns io.EOF.
func (s *stream) passAll() error {
	for {
		if err := s.pass(1 << 30); err != nil {
			return err
		}
	}
}

// drain forwards what was read and not yet forwarded, such as the first half of a
// message whose second half never came.
func (s *stream) drain() error {
	if err := s.pass(s.Buffered()); err != nil {
		return err
	}
	return s.to.Flush()
}

// take reads the next n bytes; they are valid until it is called again. Memory is
// only used for what really arrives.
func (s *stream) take(n int) ([]byte, error) {
	s.whole.Reset()
	_, err := io.CopyN(&s.whole, s, int64(n))
	return s.whole.Bytes(), err
}
