package fault

import (
	"fmt"
	"math/rand/v2"
)

// Kill is one SIGKILL: an instance dies at the n-th passing of a step since it was
// started, with nothing flushed and nothing closed. It is started again at once.
type Kill struct {
	Instance int    // from 0
	Step     string // of the pipeline
	Passing  int    // from 1
}

func (k Kill) String() string {
	return fmt.Sprintf("instance %d at %s, passing %d", k.Instance, k.Step, k.Passing)
}

// KillOptions shape a plan.
type KillOptions struct {
	Seed      uint64
	Kills     int
	Instances int
	// Steps are all steps of the pipeline.
	Steps []string
	// Exposed are those between a side effect and the commit, where a death must cost
	// something.
	Exposed []string
	// Passings bounds how often a step is passed before a kill strikes.
	Passings int
}

// PlanKills shares kills out to the instances in turn, and draws step and passing
// of each. The first kill of every instance strikes at an exposed step, and each of
// those has its turn: a plan that hits only harmless moments would prove nothing.
func PlanKills(o KillOptions) []Kill {
	random := rand.New(rand.NewPCG(o.Seed, 1))
	plan := make([]Kill, o.Kills)
	for i := range plan {
		step := o.Steps[random.IntN(len(o.Steps))]
		if i < max(o.Instances, len(o.Exposed)) {
			step = o.Exposed[i%len(o.Exposed)]
		}
		plan[i] = Kill{
			Instance: i % o.Instances,
			Step:     step,
			Passing:  1 + random.IntN(o.Passings),
		}
	}
	return plan
}
