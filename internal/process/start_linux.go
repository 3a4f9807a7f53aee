package process

import (
	"runtime"
	"sync"
	"syscall"
)

// forks runs functions on one thread that lives as long as this process.
// PR_SET_PDEATHSIG fires when the *thread* that forked the child ends (prctl(2)),
// and Go may end a thread that some goroutine had locked; this one never ends.
var forks = sync.OnceValue(func() chan<- func() {
	queue := make(chan func())
	go func() {
		runtime.LockOSThread()
		for fork := range queue {
			fork()
		}
	}()
	return queue
})

// start starts the child, a worker with the order to the kernel to kill it when
// its parent dies. A service gets no such order: it has to clean up first.
func (c *Cmd) start() error {
	if !c.service {
		c.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	started := make(chan error, 1)
	forks() <- func() { started <- c.Cmd.Start() }
	return <-started
}
