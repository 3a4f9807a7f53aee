// Package lane is the catalogue of ways to consume: for each the command line
// that is it, the scopes it writes, and what is claimed of it under each fault.
package lane

import (
	"fmt"
	"slices"
	"strings"
)

// Fault is what is done to a lane while it runs.
type Fault string

const (
	// NoFault leaves the lane alone.
	NoFault Fault = "none"
	// Kill9 sends SIGKILL to instances of the lane at named steps, some of them
	// between the side effect and the commit, and starts them again.
	Kill9 Fault = "kill -9"
	// PublisherDuplicates has the publisher send some events twice: two records with
	// one event id.
	PublisherDuplicates Fault = "publisher duplicates"
	// Kill9AndDuplicates is both.
	Kill9AndDuplicates Fault = "kill -9 and publisher duplicates"
)

// Lane is one way to consume, and exactly one command line.
type Lane struct {
	// Name is what tables and files call it.
	Name string
	// Short is the name in topics, groups, schemas and attempts: letters and digits.
	Short string
	// Program is the folder under cmd/ of the program that runs it.
	Program string
	// Args are the flags that make the program this lane; addresses, topics and
	// sizes come on top.
	Args []string
	// Scopes are the places it writes, in the order in which they are shown.
	Scopes []Scope
	// Steps are those that the program passes, in their order.
	Steps []string
	// Exposed are the steps behind a side effect and before the commit that was to
	// cover it: a death there must show.
	Exposed []string
	// Passings is about how often a step is passed in half a second of a usual run:
	// it spreads kills over the run.
	Passings int
	// Claims has one claim for each of Scopes under each fault that the lane is
	// run with.
	Claims map[Fault]map[Scope]Claim
}

// names turns steps of an engine into their names.
func names[S ~string](steps ...S) []string {
	all := make([]string, len(steps))
	for i, s := range steps {
		all[i] = string(s)
	}
	return all
}

// Command returns the lane's command line as somebody would type it in the root
// of this repository.
func (l Lane) Command() string {
	return strings.Join(append([]string{"go run ./cmd/" + l.Program}, l.Args...), " ")
}

// Claim returns what is claimed of the lane in a scope under a fault, and whether
// anything is.
func (l Lane) Claim(f Fault, s Scope) (Claim, bool) {
	c, claimed := l.Claims[f][s]
	return c, claimed
}

// Find returns the lane of that name.
func Find(name string) (Lane, error) {
	var names []string
	for _, l := range catalogue {
		if l.Name == name {
			return l, nil
		}
		names = append(names, l.Name)
	}
	return Lane{}, fmt.Errorf("there is no lane %q; there are: %s", name, strings.Join(names, ", "))
}

// All returns every lane, in the order in which they are shown.
func All() []Lane { return slices.Clone(catalogue) }
