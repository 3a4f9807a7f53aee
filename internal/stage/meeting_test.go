package stage_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/delivered-twice/delivered-twice/internal/stage"
)

func TestMeeting(t *testing.T) {
	trouble := errors.New("trouble")
	var disturbed atomic.Int64
	disturb := func(context.Context) error { disturbed.Add(1); return trouble }

	t.Run("once for all, and all get the error", func(t *testing.T) {
		disturbed.Store(0)
		m := stage.NewMeeting(3)
		var all errgroup.Group
		for range 3 {
			all.Go(func() error {
				for range 5 {
					if err := m.Do(t.Context(), disturb); !errors.Is(err, trouble) {
						return errors.New("the error got lost")
					}
				}
				return nil
			})
		}
		require.NoError(t, all.Wait())
		require.EqualValues(t, 5, disturbed.Load())
	})
	t.Run("who has left is not waited for", func(t *testing.T) {
		disturbed.Store(0)
		m := stage.NewMeeting(2)
		done := make(chan error)
		go func() { done <- m.Do(t.Context(), disturb) }()
		m.Leave()
		require.ErrorIs(t, <-done, trouble)
		require.EqualValues(t, 1, disturbed.Load())
	})
	t.Run("who cannot wait any longer goes", func(t *testing.T) {
		disturbed.Store(0)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, stage.NewMeeting(2).Do(ctx, disturb), context.Canceled)
		require.Zero(t, disturbed.Load())
	})
	t.Run("alone", func(t *testing.T) {
		require.ErrorIs(t, (*stage.Meeting)(nil).Do(t.Context(), disturb), trouble)
	})
}
