// Package nearest helps whoever has misspelt a name.
package nearest

import (
	"cmp"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
)

// Names returns at most n of the names, those first that take the fewest edits to
// become name. However far away they are: see [Hint].
func Names(name string, names []string, n int) []string {
	edits := make(map[string]int, len(names))
	for _, other := range names {
		edits[other] = levenshtein.ComputeDistance(name, other)
	}
	sorted := slices.Clone(names)
	slices.SortStableFunc(sorted, func(a, b string) int { return cmp.Compare(edits[a], edits[b]) })
	return sorted[:min(n, len(sorted))]
}

const (
	// hinted is how many names a hint has.
	hinted = 3
	// fewEdits are those of a slip: a letter in the wrong place are two.
	fewEdits = 2
	// partOf is how long a part of a name must be to stand for it.
	partOf = 3
)

// Hint is "; the nearest: a, b" with up to three of the names that somebody may have
// meant by name: those that two edits make of it, or one for every three of its letters,
// and those that it is a part of. Where there is none, it is "".
func Hint(name string, names []string) string {
	var near []string
	for _, other := range Names(name, names, len(names)) {
		edits := levenshtein.ComputeDistance(name, other)
		if edits <= max(fewEdits, len(name)/3) && edits < len(name) || len(name) >= partOf && strings.Contains(other, name) {
			near = append(near, other)
		}
	}
	if len(near) == 0 {
		return ""
	}
	return "; the nearest: " + strings.Join(near[:min(hinted, len(near))], ", ")
}
