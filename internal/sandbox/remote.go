package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"sync"
	"syscall"
)

// server is one broker or database that can be taken down and up again. To take
// down what is down, or up what is up, does nothing.
type server interface {
	start(ctx context.Context) error
	stop(ctx context.Context) error
	kill(ctx context.Context) error
}

// broker is a server that can also be held still. To thaw one that is not frozen
// does nothing.
type broker interface {
	server
	freeze() error
	thaw() error
}

// A service gets, beside its lifeline, two pipes on which the parent calls the
// methods of its servers: requests, then responses.
const (
	requestsFD  = 3 // the first of exec.Cmd.ExtraFiles
	responsesFD = 4
)

// pipes is a connection made of two one-way pipes.
type pipes struct {
	io.ReadCloser
	w io.WriteCloser
}

func (p pipes) Write(b []byte) (int, error) { return p.w.Write(b) }
func (p pipes) Close() error                { return errors.Join(p.ReadCloser.Close(), p.w.Close()) }

// remote calls a service's servers.
type remote struct{ *rpc.Client }

// newRemote also returns the child's ends of the pipes.
func newRemote() (*remote, []*os.File, error) {
	requests, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	r, responses, err := os.Pipe()
	if err != nil {
		return nil, nil, errors.Join(err, requests.Close(), w.Close())
	}
	return &remote{rpc.NewClient(pipes{r, w})}, []*os.File{requests, responses}, nil
}

// call returns when the method has, or ctx ends; the method then goes on.
func (r *remote) call(ctx context.Context, method string, node int) error {
	call := r.Go("Servers."+method, node, &struct{}{}, make(chan *rpc.Call, 1))
	select {
	case <-call.Done:
		if errors.Is(call.Error, rpc.ErrShutdown) || errors.Is(call.Error, io.ErrUnexpectedEOF) {
			return errors.New("the process that runs it has ended")
		}
		return call.Error
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// remoteServer is one of them.
type remoteServer struct {
	*remote
	node int
}

func (s remoteServer) start(ctx context.Context) error { return s.call(ctx, "Start", s.node) }
func (s remoteServer) stop(ctx context.Context) error  { return s.call(ctx, "Stop", s.node) }
func (s remoteServer) kill(ctx context.Context) error  { return s.call(ctx, "Kill", s.node) }
func (s remoteServer) freeze() error                   { return s.call(context.Background(), "Freeze", s.node) }
func (s remoteServer) thaw() error                     { return s.call(context.Background(), "Thaw", s.node) }

// serveParent lets the parent call the methods of servers until ctx ends. The
// result waits for the calls that are under way.
func serveParent(ctx context.Context, servers map[int]server) (done func()) {
	syscall.CloseOnExec(requestsFD)
	syscall.CloseOnExec(responsesFD)
	calls := &calls{ctx: ctx, servers: servers}
	endpoint := rpc.NewServer()
	if err := endpoint.RegisterName("Servers", calls); err != nil {
		panic(err) // the methods are below
	}
	go endpoint.ServeConn(pipes{os.NewFile(requestsFD, "requests"), os.NewFile(responsesFD, "responses")})
	return calls.underWay.Lock
}

// calls has the methods that the parent calls, in the form that net/rpc wants.
type calls struct {
	ctx      context.Context
	servers  map[int]server
	underWay sync.RWMutex
}

func (c *calls) Start(node int, _ *struct{}) error { return c.do(node, server.start) }
func (c *calls) Stop(node int, _ *struct{}) error  { return c.do(node, server.stop) }
func (c *calls) Kill(node int, _ *struct{}) error  { return c.do(node, server.kill) }

func (c *calls) Freeze(node int, _ *struct{}) error {
	return c.do(node, func(s server, _ context.Context) error { return s.(broker).freeze() })
}

func (c *calls) Thaw(node int, _ *struct{}) error {
	return c.do(node, func(s server, _ context.Context) error { return s.(broker).thaw() })
}

func (c *calls) do(node int, method func(server, context.Context) error) error {
	c.underWay.RLock()
	defer c.underWay.RUnlock()
	if err := c.ctx.Err(); err != nil {
		return err
	}
	s, ok := c.servers[node]
	if !ok {
		return fmt.Errorf("there is no node %d", node)
	}
	if err := method(s, c.ctx); err != nil {
		return errors.New(oneLine(err))
	}
	return nil
}
