package fault

import (
	"context"
	"fmt"
	"slices"

	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/stage"
)

var kill9 = Fault{
	Name:   lane.Kill9,
	Says:   "kill -9 at every step: at its first, a middle and its last passing",
	Inject: injectKill9,
}

// depth is how many batches wait for a member when it is started to be killed: so
// often at least each step is passed.
const depth = 3

// injectKill9 has one incarnation after the other of the same member die, each at
// another blow. As a static member each takes its partitions over at once.
func injectKill9(ctx context.Context, s *stage.Stage) error {
	for _, blow := range blows(s) {
		if err := replenish(ctx, s); err != nil {
			return err
		}
		m, err := s.Enter(stage.Entry{Failpoint: blow})
		if err != nil {
			return err
		}
		if err := s.AwaitDeath(ctx, m); err != nil {
			return fmt.Errorf("kill at %s: %w", blow, err)
		}
	}
	return nil
}

// blows returns a failpoint for each passing to die at. The order of the steps is
// drawn. At each step the last passing comes first: so what a blow leaves undone is
// done before the blow after the next, and no record comes again so often that a share
// group gives it up (share.delivery.count.limit).
func blows(s *stage.Stage) []string {
	return blowsAt(s, allSteps(s.Lane), depth, (1+depth)/2, 1)
}

// blowsAt returns a failpoint for each of those passings of each step. The order of the
// steps is drawn.
func blowsAt(s *stage.Stage, steps []string, passings ...int) []string {
	s.Random.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
	var all []string
	for _, step := range steps {
		for _, passing := range passings {
			all = append(all, fmt.Sprintf("%s:%d:kill", step, passing))
		}
	}
	return all
}

// allSteps returns a lane's steps, and those that only one handler passes and at which
// a death must show.
func allSteps(l lane.Lane) []string {
	all := slices.Clone(l.Steps)
	for _, step := range l.Exposed {
		if !slices.Contains(all, step) {
			all = append(all, step)
		}
	}
	return all
}

// replenish publishes events until [depth] batches wait.
func replenish(ctx context.Context, s *stage.Stage) error {
	pending, err := s.Pending(ctx)
	if err != nil {
		return err
	}
	if missing := depth*stage.Batch - pending; missing > 0 {
		return s.Publish(ctx, missing)
	}
	return nil
}
