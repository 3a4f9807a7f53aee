package sandbox_test

import (
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/sandbox"
)

// A fixed port is nobody's, although nobody listens there yet.
func TestFixedPort(t *testing.T) {
	seen := make(map[int]bool)
	for range 50 {
		port, err := sandbox.FixedPort()
		require.NoError(t, err)
		require.False(t, seen[port], "port %d twice", port)
		seen[port] = true
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		require.NoError(t, err)
		require.NoError(t, listener.Close())
	}
}
