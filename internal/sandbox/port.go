package sandbox

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
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

func freePort() (int, error) { return freePortFrom(firstPort, lastPort) }

func freePortFrom(first, last int) (int, error) {
	for {
		port := first + rand.IntN(last-first+1)
		if err := isFree(port); !errors.Is(err, syscall.EADDRINUSE) {
			return port, err
		}
	}
}

// Fixed ports lie below those of the services, which look for a free one all the time.
const (
	firstFixedPort = 10000
	lastFixedPort  = firstPort - 1
)

var fixedPorts sync.Map // those that FixedPort has returned

// FixedPort returns a port for a process that is to listen at the same one whenever it
// is started again. Nobody listens there, no other call returns it, and no service of a
// sandbox takes it while its process is down.
func FixedPort() (int, error) {
	for {
		port, err := freePortFrom(firstFixedPort, lastFixedPort)
		if err != nil {
			return 0, err
		}
		if _, taken := fixedPorts.LoadOrStore(port, true); !taken {
			return port, nil
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
