package collective

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/tune"
)

// layout is how an operation is made of plans. It is kept for the next one, which is often alike.
type layout struct {
	collective plan.Collective
	root       int
	dtype      reduce.DType
	schedule   plan.Schedule
	in, out    []uint64
	segments   []tune.Segment
	algorithm  plan.Algorithm // of the segments
	apart      bool           // inputs and outputs share no memory
	compiled   *exec.Compiled // of the only segment, once it is known
	direct     *exec.Compiled // nil: there is none, if that has been looked for
	looked     bool
}

func (l *layout) fits(o *call.Operation, apart bool, algorithm plan.Algorithm) bool {
	return l.segments != nil && l.apart == apart && l.algorithm == algorithm &&
		l.collective == o.Collective && l.root == o.Root && l.dtype == o.DType &&
		l.schedule == o.Schedule && slices.Equal(l.in, o.InCounts) && slices.Equal(l.out, o.OutCounts)
}

// compile returns the plan of a segment of the layout, and keeps it there if it is the only one.
func (e *Engine) compile(s *tune.Segment) (*exec.Compiled, error) {
	if e.laid.compiled != nil {
		return e.laid.compiled, nil
	}
	compiled, err := e.plans.get(s.Params, e.laid.apart)
	if err == nil && len(e.laid.segments) == 1 && e.plans.keeps(compiled) {
		e.laid.compiled = compiled
	}
	return compiled, err
}

// layOut makes the layout that of an operation.
func (e *Engine) layOut(op *call.Operation) {
	apart, algorithm := !e.Shape.AllMemory && op.Disjoint(), e.Shape.Choose(op)
	if !e.laid.fits(op, apart, algorithm) {
		e.laid = layout{apart: apart, algorithm: algorithm, collective: op.Collective, root: op.Root,
			dtype: op.DType, schedule: op.Schedule, in: slices.Clone(op.InCounts),
			out: slices.Clone(op.OutCounts), segments: e.Shape.Segments(op)}
	}
}

// direct returns the direct plan of an operation, nil where it has none or is too small for it. It
// is kept with the layout, which is that operation's.
func (e *Engine) direct(op *call.Operation) *exec.Compiled {
	if e.Arena == nil {
		return nil
	}
	l := &e.laid
	if l.looked {
		return l.direct
	}
	p, ok := e.Shape.Direct(op, l.segments)
	if !ok {
		l.looked = true
		return nil
	}
	compiled, err := e.plans.get(p, false)
	if err != nil {
		return nil // the other plan's error is told
	}
	if e.plans.keeps(compiled) {
		l.looked, l.direct = true, compiled
	}
	return compiled
}

// planCache keeps compiled plans, so that a collective that is called again builds nothing. It
// is used by one goroutine at a time.
type planCache struct {
	plans map[string]*exec.Compiled
	order []string                // the one that was got last is the last
	built map[*exec.Compiled]bool // not kept: freed by put

	freeing func(*exec.Compiled) // told of a plan that was kept
}

const (
	cachedPlans    = 128
	cachedMaxBlock = 64 // plans of more blocks are built anew: their keys would be long
)

func planKey(p *plan.Params, apart bool) string {
	if len(p.InBytes)+len(p.OutBytes) > cachedMaxBlock {
		return ""
	}
	buf := make([]byte, 0, 64+8*(len(p.InBytes)+len(p.OutBytes)))
	buf = fmt.Appendf(buf, "%d,%d,%d,%d,%t,%t,%d", p.Collective, p.Algorithm, p.Root, p.ElemSize,
		apart,
		p.InPlaceOfDirect, p.Schedule)
	for _, b := range [][]int64{p.InBytes, p.OutBytes} {
		buf = append(buf, ';')
		for _, n := range b {
			buf = append(buf, (*[8]byte)(unsafe.Pointer(&n))[:]...)
		}
	}
	return string(buf)
}

// get returns a plan, for inputs and outputs that are apart or may not be.
func (c *planCache) get(p plan.Params, apart bool) (*exec.Compiled, error) {
	key := planKey(&p, apart)
	if key != "" {
		if kept, ok := c.plans[key]; ok {
			if at := slices.Index(c.order, key); at < len(c.order)-1 {
				c.order = append(slices.Delete(c.order, at, at+1), key)
			}
			return kept, nil
		}
	}
	built, err := plan.Build(p)
	if err != nil {
		return nil, err
	}
	compiled, err := exec.Compile(built, !p.Memory, apart)
	if err != nil {
		return nil, fault.Errorf(fault.ErrSystem, "%v", err)
	}
	if key == "" {
		if c.built == nil {
			c.built = map[*exec.Compiled]bool{}
		}
		c.built[compiled] = true
		return compiled, nil
	}
	if c.plans == nil {
		c.plans = map[string]*exec.Compiled{}
	}
	if len(c.order) >= cachedPlans {
		oldest := c.order[0]
		c.order = c.order[1:]
		c.freeing(c.plans[oldest])
		c.plans[oldest].Free()
		delete(c.plans, oldest)
	}
	c.plans[key] = compiled
	c.order = append(c.order, key)
	return compiled, nil
}

// keeps tells whether a plan stays after put: until others have been got.
func (c *planCache) keeps(p *exec.Compiled) bool { return !c.built[p] }

// put tells that a plan is no longer run.
func (c *planCache) put(p *exec.Compiled) {
	if c.built[p] {
		delete(c.built, p)
		p.Free()
	}
}

// free frees all plans.
func (c *planCache) free() {
	for _, p := range c.plans {
		p.Free()
	}
	for p := range c.built {
		p.Free()
	}
}
