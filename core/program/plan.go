package program

import (
	"fmt"

	"github.com/goccl/goccl/core/plan"
)

// Plan makes the plan of rank q.Rank. Ranks that give matching parameters get plans that fit
// together. Parameters that say how builders of package plan do something have no effect.
func (c *Checked) Plan(q plan.Params) (*plan.Plan, error) {
	fail := func(err error) error { return fmt.Errorf("program %q: %w", c.Name, err) }
	q.Algorithm = plan.Registered
	if err := c.fits(&q); err != nil {
		return nil, fail(err)
	}
	if err := q.Check(); err != nil {
		return nil, fail(err)
	}
	s, err := c.sizesOf(&q)
	if err != nil {
		return nil, fail(err)
	}
	if c.Ranks == 1 && c.Collective.Reduces() {
		return c.alone(&q), nil
	}
	// The first pass finds which scratch memory is used.
	e := newEmitter(c, &q, s)
	e.run()
	e.pack()
	e.run()
	p := &plan.Plan{Algorithm: q.Algorithm, Rank: q.Rank, Size: q.Size, Steps: e.steps,
		ScratchBytes: e.scratchBytes()}
	if p.ScratchBytes > q.Scratch {
		return nil, fail(fmt.Errorf("needs %d bytes of scratch memory; %d are allowed", p.ScratchBytes,
			q.Scratch))
	}
	return p, nil
}

// fits refuses parameters that are not those of the program.
func (c *Checked) fits(q *plan.Params) error {
	switch {
	case q.Collective != c.Collective:
		return fmt.Errorf("is of %v, not of %v", c.Collective, q.Collective)
	case q.Size != c.Ranks:
		return fmt.Errorf("is for %d ranks, not for %d", c.Ranks, q.Size)
	case c.Collective.Rooted() && q.Root != c.Root:
		return fmt.Errorf("has root %d, not %d", c.Root, q.Root)
	case !c.Canonical && !q.AnyOrder:
		return fmt.Errorf("sums in an order of its own, which is not allowed here")
	case c.Collective == plan.Custom && q.PartialSize > 0:
		return fmt.Errorf("reduces in no stages, which averages and the like need")
	}
	return nil
}

// alone is the plan of a reduction among one rank.
func (c *Checked) alone(q *plan.Params) *plan.Plan {
	p := &plan.Plan{Algorithm: q.Algorithm, Rank: q.Rank, Size: q.Size}
	for i, n := range q.InBytes {
		if n > 0 {
			p.Steps = append(p.Steps, plan.Step{Op: plan.Combine, Bytes: n,
				Dst: plan.Ref{Space: plan.Out, Block: int32(i)},
				Src: []plan.Ref{{Space: plan.In, Block: int32(i)}}})
		}
	}
	return p
}
