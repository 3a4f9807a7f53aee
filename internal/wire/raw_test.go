package wire_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/delivered-twice/delivered-twice/internal/wire"
)

// request is a request of Kafka's protocol as bytes.
func request(correlation int32, r kmsg.Request) []byte {
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID("raw")).AppendRequest(nil, r, correlation)
}

// frame reads a message of Kafka's protocol, its size included.
func frame(t *testing.T, conn net.Conn) []byte {
	t.Helper()
	size := read(t, conn, 4)
	return append(size, read(t, conn, int(binary.BigEndian.Uint32(size)))...)
}

func heartbeat(correlation int32) []byte { return request(correlation, kmsg.NewPtrHeartbeatRequest()) }

func offsetCommit(correlation int32) []byte {
	return request(correlation, kmsg.NewPtrOffsetCommitRequest())
}

// A trigger whose answer never comes takes the next request instead.
func TestAnswerThatNeverComes(t *testing.T) {
	var connections atomic.Int32
	proxy, err := wire.Kafka([]string{serve(t, func(conn net.Conn) {
		first := connections.Add(1) == 1
		got := frame(t, conn)
		if !first {
			write(t, conn, append([]byte{0, 0, 0, 4}, got[8:12]...))
			_, _ = io.Copy(io.Discard, conn)
		}
	})})
	closing(t, proxy, err)
	struck := proxy.At(wire.Trigger{On: wire.OffsetCommit, When: wire.BeforeAnswer, Do: func(*wire.Strike) {}})
	unanswered := dial(t, proxy.Addrs()[0])
	write(t, unanswered, offsetCommit(1))
	requireClosed(t, unanswered)
	require.NoError(t, unanswered.Close())
	requireOpen(t, struck, "it was not answered")
	for ctx, n := within(t), int32(2); ; n++ { // until the end of the first connection is noticed
		require.NoError(t, ctx.Err(), "it does not strike any more")
		conn := dial(t, proxy.Addrs()[0])
		write(t, conn, offsetCommit(n))
		frame(t, conn)
		require.NoError(t, conn.Close())
		select {
		case <-struck:
			return
		default:
		}
	}
}

// Close leaves nothing behind, whatever its connections are doing.
func TestCloseCutsAndEndsHolds(t *testing.T) {
	proxy, err := wire.Kafka([]string{serve(t, func(conn net.Conn) { _, _ = io.Copy(conn, conn) })})
	closing(t, proxy, err)
	held := make(chan struct{})
	struck := proxy.At(wire.Trigger{On: wire.OffsetCommit, When: wire.BeforeForward, Do: func(s *wire.Strike) {
		close(held)
		s.Hold(nil)
	}})
	idle, busy, holding := dial(t, proxy.Addrs()[0]), dial(t, proxy.Addrs()[0]), dial(t, proxy.Addrs()[0])
	write(t, busy, heartbeat(1))
	frame(t, busy)
	write(t, holding, offsetCommit(1))
	wait(t, "the hold", held)
	require.NoError(t, proxy.Close())
	wait(t, "the end of the hold", struck)
	for _, conn := range []net.Conn{idle, busy, holding} {
		requireClosed(t, conn)
	}
	_, err = net.Dial("tcp", proxy.Addrs()[0])
	require.Error(t, err)
	requireNoGoroutines(t)
	require.NoError(t, proxy.Close())
}

// A client that has nothing more to say still gets its answers.
func TestHalfClosed(t *testing.T) {
	startup, err := (&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion32, Parameters: map[string]string{"user": "u"}}).Encode(nil)
	require.NoError(t, err)
	// It answers when it has heard everything.
	server := serve(t, func(conn net.Conn) {
		all, err := io.ReadAll(conn)
		require.NoError(t, err)
		write(t, conn, all)
	})
	kafka, err := wire.Kafka([]string{server})
	closing(t, kafka, err)
	postgres, err := wire.Postgres(server)
	closing(t, postgres, err)
	for name, test := range map[string]struct {
		proxy *wire.Proxy
		said  []byte
	}{
		"Kafka":                     {kafka, append(heartbeat(1), heartbeat(2)...)},
		"Kafka, half a message":     {kafka, heartbeat(1)[:7]},
		"Kafka, one byte":           {kafka, []byte{0}},
		"PostgreSQL, its startup":   {postgres, startup},
		"PostgreSQL, half a header": {postgres, append(startup, 'Q', 0)},
	} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, test.proxy.Addrs()[0])
			write(t, conn, test.said)
			require.NoError(t, conn.CloseWrite())
			got, err := io.ReadAll(conn)
			require.NoError(t, err)
			require.Equal(t, test.said, got)
		})
	}
}

// Large messages pass both ways in little memory.
func TestLargeMessagesAreNotBuffered(t *testing.T) {
	const size = 100 << 20
	startup, err := (&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "u"}}).Encode(nil)
	require.NoError(t, err)
	produce := kmsg.NewPtrProduceRequest()
	produce.Version, produce.Acks = 9, 1
	head := request(1, produce)
	binary.BigEndian.PutUint32(head, size)
	server := serve(t, func(conn net.Conn) {
		_, _ = io.CopyBuffer(struct{ io.Writer }{conn}, struct{ io.Reader }{conn}, make([]byte, 64<<10))
	})
	kafka, err := wire.Kafka([]string{server})
	closing(t, kafka, err)
	postgres, err := wire.Postgres(server)
	closing(t, postgres, err)
	for name, test := range map[string]struct {
		proxy *wire.Proxy
		head  []byte
		size  int // with the head
	}{
		"Kafka":      {kafka, head, 4 + size},
		"PostgreSQL": {postgres, append(startup, binary.BigEndian.AppendUint32([]byte{'d'}, size)...), len(startup) + 1 + size},
	} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, test.proxy.Addrs()[0])
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			go func() {
				_, _ = conn.Write(test.head)
				piece := bytes.Repeat([]byte("0123456789abcdef"), 4096)
				for left := test.size - len(test.head); left > 0; left -= len(piece) {
					_, _ = conn.Write(piece[:min(left, len(piece))])
				}
			}()
			require.Equal(t, test.head, read(t, conn, len(test.head)))
			piece := make([]byte, 64<<10)
			n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, io.LimitReader(conn, int64(test.size-len(test.head))), piece)
			require.NoError(t, err)
			require.EqualValues(t, test.size-len(test.head), n)
			runtime.ReadMemStats(&after)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(size/10))
		})
	}
}

// An answer that names brokers in a way that cannot be read never gets through.
func TestRequestThatIsTooNew(t *testing.T) {
	var got atomic.Int64
	proxy, err := wire.Kafka([]string{serve(t, func(conn net.Conn) {
		n, _ := io.Copy(io.Discard, conn)
		got.Add(n)
	})})
	require.NoError(t, err)
	metadata := kmsg.NewPtrMetadataRequest()
	metadata.Version = metadata.MaxVersion() + 1
	conn := dial(t, proxy.Addrs()[0])
	write(t, conn, request(1, metadata))
	requireClosed(t, conn)
	require.ErrorContains(t, proxy.Close(), `client "raw"`)
	require.Zero(t, got.Load())
}

// Tokens of a SASL exchange from before KIP-152 are frames, but no requests.
func TestTokensPass(t *testing.T) {
	proxy, err := wire.Kafka([]string{serve(t, func(conn net.Conn) { _, _ = io.Copy(conn, conn) })})
	closing(t, proxy, err)
	struck := proxy.At(wire.Trigger{On: wire.Produce, When: wire.BeforeForward, Do: (*wire.Strike).Cut})
	conn := dial(t, proxy.Addrs()[0])
	for _, token := range []string{"", "x", "\x00user\x00secret", "\x00Nick\x00secret", "n,,n=user,r=nonce", "\x60\x82\x01\x02 a ticket of some length"} {
		sent := append(binary.BigEndian.AppendUint32(nil, uint32(len(token))), token...)
		write(t, conn, sent)
		require.Equal(t, sent, read(t, conn, len(sent)), token)
	}
	requireOpen(t, struck, "it took a token for a request")
}

// Whatever is said, the proxy lives on.
func TestGarbage(t *testing.T) {
	garbage := [][]byte{
		nil,
		{0},
		{0xff, 0xff, 0xff, 0xff},
		{0x80, 0, 0, 0, 0, 0},
		{0x7f, 0xff, 0xff, 0xff, 0, 3, 0, 12, 0, 0, 0, 1, 0x7f, 0xff},
		[]byte("GET / HTTP/1.1\r\n\r\n"),
		make([]byte, 1000),
		bytes.Repeat([]byte{0xff}, 1000),
		bytes.Repeat([]byte{0, 0, 0, 8}, 100),
		{0, 0, 0, 9, 0, 3, 0, 0, 1}, // a StartupMessage that is cut off
		{0, 0, 0, 8, 4, 210, 22, 47, 'Q'},
	}
	for _, r := range []kmsg.Request{kmsg.NewPtrEndTxnRequest(), kmsg.NewPtrShareFetchRequest(), kmsg.NewPtrShareAcknowledgeRequest(), kmsg.NewPtrProduceRequest(), kmsg.NewPtrMetadataRequest(), kmsg.NewPtrApiVersionsRequest()} {
		r.SetVersion(r.MaxVersion())
		whole := request(1, r)
		// Tags and lengths that claim more than there is.
		spoilt := append(whole[:14:14], bytes.Repeat([]byte{0xff}, len(whole))...)
		binary.BigEndian.PutUint32(spoilt, uint32(len(spoilt)-4))
		garbage = append(garbage, whole[:len(whole)-1], spoilt)
	}
	server := serve(t, func(conn net.Conn) { _, _ = io.Copy(conn, conn) })
	kafka, err := wire.Kafka([]string{server})
	require.NoError(t, err)
	defer func() { _ = kafka.Close() }() // some of it is a reason to cut
	postgres, err := wire.Postgres(server)
	closing(t, postgres, err)
	startup, err := (&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "u"}}).Encode(nil)
	require.NoError(t, err)
	for i, said := range garbage {
		for _, attempt := range []struct {
			proxy *wire.Proxy
			said  []byte
		}{{kafka, said}, {postgres, said}, {postgres, append(startup[:len(startup):len(startup)], said...)}} {
			conn := dial(t, attempt.proxy.Addrs()[0])
			_, _ = conn.Write(attempt.said)
			_ = conn.CloseWrite()
			_, err := io.Copy(io.Discard, conn) // ends
			var timeout net.Error
			require.NotErrorAs(t, err, &timeout, "garbage %d", i)
		}
	}
	conn := dial(t, kafka.Addrs()[0])
	write(t, conn, heartbeat(1))
	require.Equal(t, heartbeat(1), frame(t, conn))
}
