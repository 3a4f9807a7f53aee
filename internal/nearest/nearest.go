// Package nearest helps whoever has misspelt a name.
package nearest

import (
	"cmp"
	"slices"

	"github.com/agnivade/levenshtein"
)

// Names returns at most n of the names, those first that take the fewest edits to
// become name.
func Names(name string, names []string, n int) []string {
	edits := make(map[string]int, len(names))
	for _, other := range names {
		edits[other] = levenshtein.ComputeDistance(name, other)
	}
	sorted := slices.Clone(names)
	slices.SortStableFunc(sorted, func(a, b string) int { return cmp.Compare(edits[a], edits[b]) })
	return sorted[:min(n, len(sorted))]
}
