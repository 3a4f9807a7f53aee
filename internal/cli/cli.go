// Package cli holds the command lines of the pipelines, apart from their main
// packages, so that another program can be them too.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes of every program of this project.
const (
	// ExitOK: done, and every claim held.
	ExitOK = 0
	// ExitBroken: a claim did not hold.
	ExitBroken = 1
	// ExitUnusable: the command line or the environment is wrong, or something
	// failed that no claim is about.
	ExitUnusable = 2
)

// ErrBroken is wrapped by the error of a command that ran and found a claim broken.
var ErrBroken = errors.New("a claim did not hold")

// errInterrupted is the end of a command that a signal kept from its purpose.
var errInterrupted = errors.New("interrupted")

// leftBehind is what could not be taken away at the end.
type leftBehind struct{ error }

// LeftBehind marks err as one of taking away what a command has made. It is told even
// where the command was interrupted, which else is all that is said.
func LeftBehind(err error) error { return leftBehind{err} }

// Run executes a command with its arguments, as main does: its context ends at
// SIGINT and SIGTERM, a second of which ends the process at once, and the result is
// the exit code. Errors are one line on stderr.
func Run(cmd *cobra.Command, args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetFlagErrorFunc(flagError)
	cmd.SetHelpCommand(helpCommand())
	cmd.SetArgs(args)
	at, err := cmd.ExecuteContextC(ctx)
	if err != nil && ctx.Err() != nil && !errors.Is(err, ErrBroken) {
		err = interrupted(err)
	}
	return exitCode(os.Stderr, at, err)
}

func interrupted(err error) error {
	var left leftBehind
	if errors.As(err, &left) {
		return fmt.Errorf("%w, and not all was taken away: %w", errInterrupted, left)
	}
	return errInterrupted
}

func exitCode(stderr io.Writer, cmd *cobra.Command, err error) int {
	var usage usageError
	switch {
	case err == nil:
		return ExitOK
	case errors.Is(err, ErrBroken):
		fmt.Fprintf(stderr, "%s: %v\n", cmd.CommandPath(), err)
		return ExitBroken
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "%s: %v\nusage: %s (--help lists the flags)\n", cmd.CommandPath(), err, cmd.UseLine())
		return ExitUnusable
	default:
		fmt.Fprintf(stderr, "%s: %v\n", cmd.CommandPath(), err)
		return ExitUnusable
	}
}

// untilStopped runs a program whose purpose is to run until it is told to stop: if
// that comes while it is still starting, it is no failure either.
func untilStopped(run func(context.Context) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		err := run(cmd.Context())
		if errors.Is(err, context.Canceled) && cmd.Context().Err() != nil {
			return nil
		}
		return err
	}
}
