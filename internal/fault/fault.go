// Package fault holds what is done to the pipelines, one file a fault. A fault is
// a plan, drawn from a seed before anything runs: the same seed gives the same
// plan.
package fault
