package main

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"github.com/delivered-twice/delivered-twice/internal/lane"
)

// bars shows on standard error how far a trial is, if that is a terminal: it is a
// trial.Progress. Elsewhere it shows nothing.
type bars struct {
	progress *mpb.Progress // nil: nobody is watching
	phase    atomic.Value  // string
	sent     *mpb.Bar
	lanes    map[string]*laneBar
	closing  sync.Once
}

type laneBar struct {
	*mpb.Bar
	kills atomic.Int64
}

func newBars(records int, lanes []lane.Lane) *bars {
	b := &bars{lanes: make(map[string]*laneBar)}
	b.phase.Store("")
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		return b
	}
	b.progress = mpb.New(mpb.WithOutput(os.Stderr), mpb.WithWidth(40))
	total := int64(records)
	b.sent = b.bar(total, "published", func() string { return b.phase.Load().(string) })
	for _, l := range lanes {
		bar := &laneBar{}
		bar.Bar = b.bar(total, l.Name, func() string { return fmt.Sprintf("%d killed", bar.kills.Load()) })
		b.lanes[l.Name] = bar
	}
	return b
}

func (b *bars) bar(total int64, name string, note func() string) *mpb.Bar {
	return b.progress.AddBar(total,
		mpb.PrependDecorators(decor.Name(name, decor.WCSyncSpaceR), decor.CountersNoUnit("%d/%d", decor.WCSyncSpace)),
		mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return note() })),
	)
}

func (b *bars) Phase(what string) { b.phase.Store(what) }

func (b *bars) Sent(records int) { set(b.sent, records) }

func (b *bars) Consumed(lane string, records int) {
	if bar := b.lanes[lane]; bar != nil {
		set(bar.Bar, records)
	}
}

func (b *bars) Killed(lane string) {
	if bar := b.lanes[lane]; bar != nil {
		bar.kills.Add(1)
	}
}

func set(bar *mpb.Bar, records int) {
	if bar != nil {
		bar.SetCurrent(int64(records))
	}
}

// close leaves the bars as they are and gives the terminal back.
func (b *bars) close() {
	b.closing.Do(func() {
		if b.progress == nil {
			return
		}
		b.sent.Abort(false)
		for _, bar := range b.lanes {
			bar.Abort(false)
		}
		b.progress.Wait()
	})
}
