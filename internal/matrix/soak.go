package matrix

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/delivered-twice/delivered-twice/internal/fault"
	"github.com/delivered-twice/delivered-twice/internal/report"
)

// Soak runs cells drawn at random, over and over and with other seeds, until so much
// time is over or one of them does not hold. What is drawn follows from o.Seed. If ctx
// ends, it returns the results of the cells that had run, beside the error.
func Soak(ctx context.Context, o Options, duration time.Duration) (report.Report, error) {
	fit := slices.DeleteFunc(slices.Clone(o.Cells), func(c Cell) bool { return c.Unfit(o.Services) != "" })
	if len(fit) == 0 {
		return report.Report{}, errors.New("no cell is left that can be run on these services")
	}
	soaking, stop := context.WithTimeout(ctx, duration)
	defer stop()
	o.Cells = nil
	var (
		r      = newRunner(o)
		random = rand.New(rand.NewPCG(o.Seed, 2))
		drawn  int
		draws  sync.Mutex   // guards random and drawn
		calm   sync.RWMutex // held for writing by whoever disturbs the services
		work   sync.WaitGroup
	)
	draw := func() (int, Cell) {
		draws.Lock()
		defer draws.Unlock()
		c := fit[random.IntN(len(fit))]
		c.Seed = random.Uint64N(1 << 32) // short enough to be typed
		drawn++
		return drawn, c
	}
	for range o.Parallel {
		work.Go(func() {
			for soaking.Err() == nil {
				number, c := draw()
				lock := sync.Locker(calm.RLocker())
				if c.Fault.Disturbs != fault.DisturbsNothing {
					lock = &calm
				}
				lock.Lock()
				result := r.cell(ctx, number, c, nil)
				lock.Unlock()
				if ctx.Err() != nil {
					return // what was cut off has no result
				}
				r.append(result)
				if !result.Held() {
					stop() // the others finish what they have begun
				}
			}
		})
	}
	work.Wait()
	return r.found(), ctx.Err()
}

func (r *runner) append(result report.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results = append(r.results, result)
	if r.Done != nil {
		r.Done(result)
	}
}
