package program

import (
	"fmt"
	"slices"

	"github.com/goccl/goccl/core/plan"
)

// Params of the plans that Prove makes: those of most groups.
const (
	provedElement = 4 // bytes
	provedChunk   = 256 << 10
	provedSlots   = 4
	// MostScratch is the most scratch memory that a rank may need for a program.
	MostScratch = 256 << 20
)

// Prove makes the plans of all ranks for a larger buffer of about so many bytes, and proves that
// they are right together: see [plan.Verify]. It returns how many bytes that are.
func (c *Checked) Prove(bytes int64) ([]*plan.Plan, int64, error) {
	planner := c.Planner()
	plans, params := make([]*plan.Plan, c.Ranks), make([]plan.Params, c.Ranks)
	var err error
	for r := range plans {
		params[r], bytes = c.params(r, bytes)
		if plans[r], err = planner.Plan(params[r]); err != nil {
			return nil, 0, err
		}
	}
	for _, inPlace := range []bool{false, true} {
		if inPlace && !c.hasInPlace() {
			continue
		}
		if err := plan.Verify(plans, params, inPlace); err != nil {
			return nil, 0, fmt.Errorf("program %q: its plans are wrong, which is a fault of GoCCL: %w",
				c.Name, err)
		}
	}
	return plans, bytes, nil
}

// CheckScratch refuses a program that needs more than MostScratch, however little of the data is
// under way at once.
func (c *Checked) CheckScratch() error {
	q, _ := c.params(0, int64(max(c.In, c.Out))*align)
	if q.ElemSize = 1; c.Partial && c.Collective.Reduces() {
		q.PartialSize = 4 // the longest beside their elements
	}
	_, err := c.Planner().Plan(q)
	return err
}

// params are those of a rank whose larger buffer has about so many bytes, and how many it has.
func (c *Checked) params(rank int, bytes int64) (plan.Params, int64) {
	q := plan.Params{Collective: c.Collective, Algorithm: plan.Registered, Rank: rank, Size: c.Ranks,
		Root: c.Root, ElemSize: provedElement, Chunk: provedChunk, Slots: provedSlots,
		Scratch: MostScratch, AnyOrder: !c.Canonical}
	in, out := c.Counts(bytes / provedElement)
	total := [2]int64{}
	for i, counts := range [2][]uint64{in, out} {
		for _, n := range counts {
			total[i] += int64(n) * provedElement
			if i == 0 && c.Collective != plan.Broadcast {
				q.InBytes = append(q.InBytes, int64(n)*provedElement)
			} else if i == 1 {
				q.OutBytes = append(q.OutBytes, int64(n)*provedElement)
			}
		}
	}
	return q, max(total[0], total[1])
}

// Counts are the elements of a rank's input and output blocks, all equally long, where the larger
// buffer has about so many.
func (p *Program) Counts(elements int64) (in, out []uint64) {
	if p.Collective == plan.Custom {
		each := uint64(elements / int64(max(p.In, p.Out)))
		return []uint64{each * uint64(p.In)}, []uint64{each * uint64(p.Out)}
	}
	ins, outs := p.Blocks(Input), p.Blocks(Output)
	each := uint64(elements / int64(max(ins, outs)))
	return slices.Repeat([]uint64{each}, ins), slices.Repeat([]uint64{each}, outs)
}
