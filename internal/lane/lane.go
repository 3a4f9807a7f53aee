// Package lane is the catalogue of ways to consume: for each the command line
// that is it, the scopes it writes, and what is claimed of it under each fault.
package lane

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/delivered-twice/delivered-twice/internal/nearest"
)

// Lane is one way to consume, and exactly one command line.
type Lane struct {
	// Name is what tables and files call it.
	Name string
	// Short is the name in topics, groups, schemas and attempts: letters and digits.
	Short string
	// Says is one line on what it is and what theory says of it.
	Says string
	// Program is the folder under cmd/ of the program that runs it.
	Program string
	// Args are the flags that make the program this lane; addresses, topics and
	// sizes come on top.
	Args []string
	// Scopes are the places it writes, in the order in which they are shown.
	Scopes []Scope
	// Steps are those that the program passes, in their order.
	Steps []string
	// Exposed are the steps behind a side effect and before what was to cover it: a
	// death there must show.
	Exposed []string
	// Pauses are the steps at which a member that stops for a while does harm, if it
	// does any: nothing that another member would wait for is held there.
	Pauses []string
	// Passings is about how often a step is passed in half a second of a usual run:
	// it spreads kills over the run.
	Passings int
	// Progress is where the lane keeps how far it is.
	Progress Progress
	// Transactional says that it produces in Kafka transactions.
	Transactional bool
	// Asynchronous says that it commits without waiting for its WAL to be on disk.
	Asynchronous bool
	// Outbox says that what it publishes goes through an outbox: it is not done with an
	// event before the relay is.
	Outbox bool
	// Forgets says what it keeps of an event that is done, and what is removed some
	// day; "" where it keeps nothing that is.
	Forgets Memory
	// Claims has one entry for each of Scopes.
	Claims map[Scope]Claims
}

// Progress is where a lane keeps how far it is.
type Progress string

const (
	// GroupOffsets are the offsets of a consumer group.
	GroupOffsets Progress = "group offsets"
	// StoredOffsets are offsets in the database of the work.
	StoredOffsets Progress = "stored offsets"
	// SharedRecords are the states of records in a share group (KIP-932).
	SharedRecords Progress = "shared records"
	// Webhooks are what their senders have not been told to be done. There is no Kafka.
	Webhooks Progress = "webhooks"
)

// Memory is what a lane keeps of an event that is done until it is purged.
type Memory string

const (
	// InboxRows are purged by age.
	InboxRows Memory = "inbox rows"
	// RedisKeys expire.
	RedisKeys Memory = "redis keys"
)

// Claims is what is claimed in one scope.
type Claims struct {
	// Always is claimed under every fault that Under does not name.
	Always Claim
	Under  map[Fault]Claim
}

// Writes says whether the lane has effects in a scope.
func (l Lane) Writes(s Scope) bool { return slices.Contains(l.Scopes, s) }

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
	c, claimed := l.Claims[s]
	if under, special := c.Under[f]; special {
		return under, true
	}
	return c.Always, claimed
}

// MustShow says whether the lane exists to show what a fault does to it.
func (l Lane) MustShow(f Fault) bool {
	return slices.ContainsFunc(l.Scopes, func(s Scope) bool {
		c, _ := l.Claim(f, s)
		return c.MustShow
	})
}

// Slug is the name as a command line takes it: without blanks.
func (l Lane) Slug() string { return Slug(l.Name) }

var notSlug = regexp.MustCompile(`[^a-z0-9]+`)

// Slug turns the name of a lane or a fault into lower-case words with hyphens
// between.
func Slug(name string) string {
	return strings.Trim(notSlug.ReplaceAllString(strings.ToLower(name), "-"), "-")
}

// Find returns the lane of that name or slug, be it of the catalogue or of the headline.
// The error names those that are near.
func Find(name string) (Lane, error) {
	var slugs []string
	for _, l := range slices.Concat(catalogue, Headline(false), Headline(true)) {
		if l.Name == name || l.Slug() == Slug(name) {
			return l, nil
		}
		slugs = append(slugs, l.Slug())
	}
	return Lane{}, fmt.Errorf("there is no lane %q%s; compare lanes lists all", name, nearest.Hint(Slug(name), slugs))
}

// All returns every lane of the catalogue, in the order in which they are shown.
func All() []Lane { return slices.Clone(catalogue) }
