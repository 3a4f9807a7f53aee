package sandbox

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
)

// The ports that services get lie below the ranges that Linux and macOS hand out
// to outgoing connections. One of those could be taken while its service is down:
// a client that keeps trying to connect to it may even get it for its own end, and
// is then connected to itself.
const (
	firstPort = 20000
	lastPort  = 31999
)

// attempts bounds how often a service is started on another port. A port that was
// free a moment ago can be taken when the service gets to it.
const attempts = 5

// OnFreePort starts something on a loopback port that is free, and on another one if
// it fails and the port is not free any more. The port lies below those that are handed
// out to outgoing connections, so that what has been started there can be stopped, and
// started there again.
func OnFreePort(ctx context.Context, start func(port int) error) error {
	for attempt := 1; ; attempt++ {
		port, err := freePort()
		if err != nil {
			return err
		}
		if err = start(port); err == nil || attempt == attempts || ctx.Err() != nil || isFree(port) == nil {
			return err
		}
	}
}

func freePort() (int, error) {
	for {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		if err := isFree(port); !errors.Is(err, syscall.EADDRINUSE) {
			return port, err
		}
	}
}

// isFree returns nil if it is.
func isFree(port int) error {
	listener, err := net.Listen("tcp", loopback(port))
	if err != nil {
		return err
	}
	return listener.Close()
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
