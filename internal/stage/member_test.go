package stage_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/internal/process"
	"github.com/delivered-twice/delivered-twice/internal/stage"
	"github.com/delivered-twice/delivered-twice/internal/trace"
)

// orderly is a program that ends well when it is told to, once it listens.
const orderly = "orderly"

func TestMain(m *testing.M) {
	process.Register(orderly, func([]string) int {
		told, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if _, err := trace.FromEnv("0.1"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		<-told.Done()
		return 0
	})
	process.Init()
	os.Exit(m.Run())
}

// Told to end in the very moment of its start, a process still ends in order.
func TestTerminateAtOnce(t *testing.T) {
	m, err := stage.Start(stage.Launch{Role: orderly, Attempt: "0.1", Dir: t.TempDir()})
	require.NoError(t, err)
	require.NoError(t, m.Terminate(t.Context()))
	how, err := m.Wait(t.Context())
	require.NoError(t, err)
	require.Empty(t, how)
}
