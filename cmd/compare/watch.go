package main

import (
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"github.com/delivered-twice/delivered-twice/internal/report"
)

// watch shows on standard error how far a matrix is: a bar on a terminal, elsewhere a
// line for each cell.
type watch struct {
	progress *mpb.Progress // nil: not a terminal
	bar      *mpb.Bar
	soak     time.Duration // 0: a known number of cells
	begun    time.Time
	cells    int
	closing  sync.Once

	// mu guards the counts, which the bar's own goroutine reads.
	mu                      sync.Mutex
	ran, injections, broken int
	last                    string
}

func newWatch(cells int, soak time.Duration) *watch {
	w := &watch{soak: soak, cells: cells, begun: time.Now()}
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		return w
	}
	w.progress = mpb.New(mpb.WithOutput(os.Stderr), mpb.WithWidth(40))
	total := int64(cells)
	if soak > 0 {
		total = int64(soak)
	}
	w.bar = w.progress.AddBar(total, mpb.AppendDecorators(decor.Any(func(decor.Statistics) string {
		w.mu.Lock()
		defer w.mu.Unlock()
		return fmt.Sprintf("%s, %s, %d broken; %s", report.Count(w.ran, "cell"), report.Count(w.injections, "injection"), w.broken, w.last)
	})))
	return w
}

// done hears of a cell that has run.
func (w *watch) done(r report.Result) {
	w.mu.Lock()
	w.ran++
	w.injections += r.Injections
	verdict := "held"
	switch {
	case r.NotApplicable != "":
		verdict = "not applicable"
	case !r.Held():
		verdict = "BROKEN"
		w.broken++
	}
	w.last = fmt.Sprintf("%s under %s", r.Lane, r.Fault)
	if r.Failure != "" {
		verdict += ", " + r.Failure
	}
	line := fmt.Sprintf("%d/%d %s: %s (%.1f s)", w.ran, w.cells, w.last, verdict, r.WallS)
	if w.soak > 0 {
		line = fmt.Sprintf("%v: %s, %s; %s: %s", time.Since(w.begun).Round(time.Second), report.Count(w.ran, "cell"), report.Count(w.injections, "injection"), w.last, verdict)
	}
	w.mu.Unlock()
	switch {
	case w.bar == nil:
		if r.NotApplicable == "" {
			fmt.Fprintln(os.Stderr, line)
		}
	case w.soak > 0:
		w.bar.SetCurrent(int64(time.Since(w.begun)))
	default:
		w.bar.Increment()
	}
}

// close leaves the bar as it is and gives the terminal back.
func (w *watch) close() {
	w.closing.Do(func() {
		if w.progress != nil {
			w.bar.Abort(false)
			w.progress.Wait()
		}
	})
}
