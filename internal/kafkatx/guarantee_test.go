package kafkatx_test

import (
	"context"
	"encoding/binary"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/delivered-twice/delivered-twice/internal/kafkatx"
)

// cutter cuts a connection after the broker has answered a produce request and before
// the client has its answer.
type cutter struct{ left, cut atomic.Int64 }

func (c *cutter) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &cutConn{Conn: conn, cutter: c}, nil
}

type cutConn struct {
	net.Conn
	cutter *cutter
	deaf   atomic.Bool
}

// Write looks at the request's API key, which comes after four bytes of length.
func (c *cutConn) Write(p []byte) (int, error) {
	if len(p) > 6 && binary.BigEndian.Uint16(p[4:]) == uint16(kmsg.Produce) && c.cutter.left.Add(-1) >= 0 {
		c.deaf.Store(true)
	}
	return c.Conn.Write(p)
}

// Read of a deaf connection waits for the broker's answer, so that the batch is in the
// topic, and loses it.
func (c *cutConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.deaf.Load() && n > 0 {
		c.cutter.cut.Add(1)
		_ = c.Conn.Close()
		return 0, &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	}
	return n, err
}

// The broker takes a batch and its answer is lost, so that the client sends it again:
// what each guarantee makes of that.
func TestAnswerToProduceLost(t *testing.T) {
	for guarantee, copies := range map[kafkatx.Guarantee]int{
		kafkatx.ExactlyOnce:        1,
		kafkatx.IdempotentProducer: 1,
		kafkatx.AtLeastOnce:        2,
	} {
		t.Run(string(guarantee), func(t *testing.T) {
			p := newPipe(t, 1)
			p.send(0, 20)
			var cut cutter
			cut.left.Store(1)
			c := p.config("a")
			c.Guarantee = guarantee
			c.Client = append(c.Client, kgo.Dialer(cut.dial))
			engine := start(t, c)
			p.awaitConsumed()
			engine.end()
			require.EqualValues(t, 1, cut.cut.Load())
			seen := make(map[int]int)
			for _, value := range values(p.read(p.output, kgo.ReadCommitted())) {
				seen[value]++
			}
			require.Len(t, seen, 20, "nothing is lost")
			require.Equal(t, copies, seen[0], "of the first record, which was in the batch that was sent twice")
			for value, n := range seen {
				require.LessOrEqual(t, n, copies, "record %d", value)
			}
		})
	}
}
