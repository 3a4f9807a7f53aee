package wire_test

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/sandbox/sandboxtest"
	"github.com/delivered-twice/delivered-twice/internal/wire"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

// patience bounds every wait. It is no part of any claim: reaching it is a failure.
const patience = 60 * time.Second

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func wait(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		require.FailNow(t, "still waiting: "+what)
	}
}

func requireOpen(t *testing.T, c <-chan struct{}, why string) {
	t.Helper()
	select {
	case <-c:
		require.FailNow(t, why)
	default:
	}
}

// closing closes the proxy when the test ends, unless the test did.
func closing(t *testing.T, proxy *wire.Proxy, err error) *wire.Proxy {
	t.Helper()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
	return proxy
}

// serve is a server that the test plays: answer runs for each connection, which is
// closed when it returns.
func serve(t *testing.T, answer func(net.Conn)) (address string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer func() { _ = conn.Close() }()
				answer(conn)
			})
		}
	})
	t.Cleanup(func() {
		require.NoError(t, listener.Close())
		conns.Wait()
	})
	return listener.Addr().String()
}

func dial(t *testing.T, address string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	return conn.(*net.TCPConn)
}

func write(t *testing.T, conn net.Conn, p []byte) {
	t.Helper()
	_, err := conn.Write(p)
	require.NoError(t, err)
}

func read(t *testing.T, conn net.Conn, n int) []byte {
	t.Helper()
	p := make([]byte, n)
	_, err := io.ReadFull(conn, p)
	require.NoError(t, err)
	return p
}

// requireClosed requires that the other side has closed, orderly or not.
func requireClosed(t *testing.T, conn net.Conn) {
	t.Helper()
	rest, err := io.ReadAll(conn)
	var timeout net.Error
	require.False(t, errors.As(err, &timeout) && timeout.Timeout(), "the connection is still open")
	require.Empty(t, rest)
}

// requireNoGoroutines requires that nothing of a closed proxy is left.
func requireNoGoroutines(t *testing.T) {
	t.Helper()
	var stacks string
	require.Eventually(t, func() bool {
		all := make([]byte, 4<<20)
		stacks = string(all[:runtime.Stack(all, true)])
		return !strings.Contains(stacks, "wire.(*Proxy)") && !strings.Contains(stacks, "wire.(*conn)")
	}, patience, time.Millisecond, "goroutines of a closed proxy are left")
}
