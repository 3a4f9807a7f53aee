package sandboxtest

import (
	"context"
	"log"
	"testing"
)

// Example returns what stands in an example for the testing.TB that it doesn't get, and
// what undoes it all. Whatever fails ends the test binary.
func Example() (t testing.TB, end func()) {
	e := &example{}
	return e, e.end
}

type example struct {
	testing.TB
	cleanups []func()
}

func (e *example) Helper()                   {}
func (e *example) Name() string              { return "example" }
func (e *example) Context() context.Context  { return context.Background() }
func (e *example) Cleanup(f func())          { e.cleanups = append(e.cleanups, f) }
func (e *example) Errorf(f string, a ...any) { log.Printf(f, a...) }
func (e *example) FailNow()                  { log.Fatal("the example failed") }

func (e *example) end() {
	for len(e.cleanups) > 0 {
		last := len(e.cleanups) - 1
		e.cleanups[last]()
		e.cleanups = e.cleanups[:last]
	}
}
