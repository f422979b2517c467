package program

import (
	"fmt"
	"slices"

	"github.com/goccl/goccl/core/plan"
)

// Planner makes the plans of a program. One goroutine at a time may use it.
type Planner struct {
	*Checked
	trees *trees // those of the program, and what its plans have between
	lists *lists // of the last plan
}

// Planner makes a planner.
func (c *Checked) Planner() *Planner { return &Planner{Checked: c, trees: c.trees.clone()} }

// Plan makes the plan of rank q.Rank. Ranks that give matching parameters get plans that fit
// together. Parameters that say how builders of package plan do something have no effect.
func (c *Planner) Plan(q plan.Params) (*plan.Plan, error) {
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

// Does refuses a collective among so many ranks, with a root, that is not the program's.
func (p *Program) Does(c plan.Collective, ranks, root int) error {
	switch {
	case c != p.Collective:
		return fmt.Errorf("is of %v, not of %v", p.Collective, c)
	case ranks != p.Ranks:
		return fmt.Errorf("is for %d ranks, not for %d", p.Ranks, ranks)
	case c.Rooted() && root != p.Root:
		return fmt.Errorf("has root %d, not %d", p.Root, root)
	}
	return nil
}

// CanRun refuses a program whose plans would take too long to make.
func (c *Checked) CanRun() error {
	if c.Busiest > MostBusy {
		return fmt.Errorf("names %d places of one rank in its moves; %d are allowed in a program that "+
			"runs", c.Busiest, MostBusy)
	}
	return nil
}

// Fits refuses a group of so many ranks, in order as many on each host; 0: they are not.
func (p *Program) Fits(ranks, perHost int) error {
	if err := p.Does(p.Collective, ranks, p.Root); err != nil {
		return err
	}
	if p.PerHost > 0 && p.PerHost != perHost {
		return fmt.Errorf("is for %d ranks on each host, in their order, which this group does not have",
			p.PerHost)
	}
	return nil
}

// CheckCounts refuses numbers of elements that the program cannot cut into chunks.
func (p *Program) CheckCounts(in, out []uint64) error {
	switch p.Collective {
	case plan.Custom:
		_, err := p.customChunk(int64(in[0]), int64(out[0]))
		return err
	case plan.AllToAll:
		for _, n := range slices.Concat(in, out) {
			if n != in[0] {
				return fmt.Errorf("is of alltoall: all blocks must be equally long; there are %d and %d "+
					"elements", in[0], n)
			}
		}
	}
	return nil
}

// fits refuses parameters that are not those of the program.
func (c *Checked) fits(q *plan.Params) error {
	if err := c.Does(q.Collective, q.Size, q.Root); err != nil {
		return err
	}
	switch {
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
