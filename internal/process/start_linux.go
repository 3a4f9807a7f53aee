package process

import (
	"os/exec"
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
	if c.service {
		return c.Cmd.Start()
	}
	return StartTied(c.Cmd, syscall.SIGKILL)
}

// StartTied starts a command that is no role of this program, and has the kernel
// send it sig when this process dies, however that happens. The order holds for
// the command itself, not for what that starts in turn, and needs Linux: elsewhere
// StartTied is exec.Cmd.Start.
func StartTied(cmd *exec.Cmd, sig syscall.Signal) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = sig
	started := make(chan error, 1)
	forks() <- func() { started <- cmd.Start() }
	return <-started
}
