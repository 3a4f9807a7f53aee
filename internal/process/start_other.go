//go:build !linux

package process

import (
	"os/exec"
	"syscall"
)

// start starts the child. There is no parent-death signal outside Linux: the
// lifeline does it, and a stopped child is woken by the SIGHUP and SIGCONT that
// POSIX sends to an orphaned process group with stopped members (setpgid(2)).
func (c *Cmd) start() error { return c.Cmd.Start() }

// StartTied is exec.Cmd.Start: only Linux sends sig to cmd when this process dies.
func StartTied(cmd *exec.Cmd, _ syscall.Signal) error { return cmd.Start() }
