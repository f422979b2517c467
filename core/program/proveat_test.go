package program

import (
	"math/rand/v2"

	"github.com/goccl/goccl/core/plan"
)

// ProveAt proves a program's plans for random sizes, so often, and runs them on numbers.
func (c *Checked) ProveAt(rnd *rand.Rand, times int) error {
	for range times {
		j := randomJob(rnd, c)
		if c.Collective == plan.Custom {
			j.anyOrder = true
		}
		if err := j.prove(c, rnd); err != nil {
			return err
		}
	}
	return nil
}
