package collective

import (
	"fmt"
	"hash/maphash"
	"slices"
	"unsafe"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/program"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/trace"
	"github.com/goccl/goccl/core/tune"
	"github.com/goccl/goccl/core/work"
)

// layout is how an operation is made of plans. It is kept for the next one, which is often alike.
type layout struct {
	program    *tune.Registered // that makes them; nil: package plan does
	collective plan.Collective
	root       int
	dtype      reduce.DType
	op         reduce.Op
	schedule   plan.Schedule
	in, out    []uint64
	segments   []tune.Segment
	sides
	compiled *exec.Compiled // of the only segment, once it is known
	direct   *exec.Compiled // nil: there is none, if that has been looked for
	looked   bool
}

func (l *layout) fits(p *work.Part, s sides) bool {
	o := p.Operation
	return l.segments != nil && l.sides == s && l.program.Same(p.Program) &&
		l.collective == o.Collective &&
		l.root == o.Root && l.dtype == o.DType && l.op == o.Op &&
		l.schedule == o.Schedule && slices.Equal(l.in, o.InCounts) && slices.Equal(l.out, o.OutCounts)
}

// algorithm is that of all segments.
func (l *layout) algorithm() plan.Algorithm {
	if l.program != nil {
		return l.program.Algorithm()
	}
	return l.segments[0].Params.Algorithm
}

// compile returns the plan of a segment of the layout, and keeps it there if it is the only one.
func (e *Engine) compile(s *tune.Segment) (*exec.Compiled, error) {
	if e.laid.compiled != nil {
		return e.laid.compiled, nil
	}
	compiled, err := e.plans.get(s.Params, e.laid.program, e.laid.sides)
	if err == nil && len(e.laid.segments) == 1 {
		e.laid.compiled = compiled
	}
	return compiled, err
}

// layOut makes the layout that of a collective.
func (e *Engine) layOut(p *work.Part) {
	op := p.Operation
	s := sides{apart: !e.Shape.AllMemory && op.Disjoint(), fed: op.Feed != nil}
	if !e.laid.fits(p, s) {
		var by *program.Checked
		if p.Program != nil {
			by = p.Program.Checked
		}
		e.laid = layout{program: p.Program, sides: s, collective: op.Collective, root: op.Root,
			dtype: op.DType, op: op.Op, schedule: op.Schedule, in: slices.Clone(op.InCounts),
			out: slices.Clone(op.OutCounts), segments: e.Shape.Segments(op, by)}
	}
}

// direct returns the direct plan of an operation, nil where it has none or is too small for it. It
// is kept with the layout, which is that operation's.
func (e *Engine) direct(op *call.Operation) *exec.Compiled {
	l := &e.laid
	if e.Arena == nil || l.program != nil {
		return nil
	}
	if l.looked {
		return l.direct
	}
	p, ok := e.Shape.Direct(op, l.segments)
	if !ok {
		l.looked = true
		return nil
	}
	compiled, err := e.plans.get(p, nil, sides{})
	if err != nil {
		return nil // the other plan's error is told
	}
	l.looked, l.direct = true, compiled
	return compiled
}

// planCache keeps compiled plans, so that a collective that is called again builds nothing. It
// is used by one goroutine at a time.
type planCache struct {
	plans map[planKey]*keptPlan
	gets  uint64
	bytes int64 // of C memory in all plans
	last  *program.Planner

	freeing func(*exec.Compiled) // told of a plan before it is freed
	trace   *trace.Trace         // which knows what joins this rank to its peers
}

const (
	mostPlans = 128
	// mostPlanBytes is how much memory plans may take, beside the last few.
	mostPlanBytes = 16 << 20
	// leastPlans is how many are kept whatever they take: those of the last layout, which are the
	// direct one, that of a segment, and that of the last segment.
	leastPlans = 3
)

// planKey is what differs between the plans of a communicator. An order of ranks is the
// communicator's, and does not differ where collective and algorithm do not. Plans with different
// keys are different; with the same key they may be, if not all blocks are equally long.
type planKey struct {
	program    *program.Checked // nil: package plan builds it
	collective plan.Collective
	algorithm  plan.Algorithm
	radices    string // in words; "": there are none
	schedule   plan.Schedule
	sides
	inPlace    bool // of a direct plan
	root       int
	elemSize   int64
	partial    int64 // PartialSize
	chunk      int64 // it, and what is not sliced, depend on the whole operation
	oneShotMax int64
	in, out    lengths
}

// sides is what plans know of inputs and outputs beside their lengths.
type sides struct {
	apart bool // they share no memory
	fed   bool // they come and go while the plan runs
}

// lengths stands for the lengths of blocks.
type lengths struct {
	blocks int
	each   int64  // of blocks that are equally long; else uneven
	digest uint64 // of those that are not
}

const uneven = -1

var digestSeed = maphash.MakeSeed()

func lengthsOf(bytes []int64) lengths {
	if len(bytes) == 0 {
		return lengths{}
	}
	for _, n := range bytes {
		if n != bytes[0] {
			all := unsafe.Slice((*byte)(unsafe.Pointer(&bytes[0])), 8*len(bytes))
			return lengths{len(bytes), uneven, maphash.Bytes(digestSeed, all)}
		}
	}
	return lengths{blocks: len(bytes), each: bytes[0]}
}

// list is what must be kept beside the lengths to compare with other blocks.
func (l lengths) list(bytes []int64) []int64 {
	if l.each != uneven {
		return nil
	}
	return slices.Clone(bytes)
}

// are reports whether blocks with these lengths, and a list that is kept beside, have those bytes.
func (l lengths) are(list, bytes []int64) bool {
	return l.each != uneven || slices.Equal(list, bytes)
}

// keptPlan is a plan in the cache.
type keptPlan struct {
	*exec.Compiled
	in, out []int64 // see lengths.list
	got     uint64  // the number of the last get of it
}

// get returns a plan, by a program or by package plan, for such inputs and outputs. It stays until
// others have been got: see leastPlans.
func (c *planCache) get(p plan.Params, by *tune.Registered, s sides) (*exec.Compiled, error) {
	key := planKey{collective: p.Collective, algorithm: p.Algorithm, schedule: p.Schedule,
		sides: s, inPlace: p.InPlaceOfDirect, root: p.Root, elemSize: p.ElemSize,
		partial: p.PartialSize, chunk: p.Chunk, oneShotMax: p.OneShotMax,
		in: lengthsOf(p.InBytes), out: lengthsOf(p.OutBytes)}
	if by != nil {
		key.program, key.algorithm = by.Checked, by.Algorithm()
	}
	if len(p.Radices) > 0 {
		key.radices = fmt.Sprint(p.Radices)
	}
	c.gets++
	if kept, ok := c.plans[key]; ok {
		if key.in.are(kept.in, p.InBytes) && key.out.are(kept.out, p.OutBytes) {
			kept.got = c.gets
			return kept.Compiled, nil
		}
		c.drop(key) // two lists of lengths have one digest
	}
	built, err := c.build(p, by)
	if err != nil {
		return nil, err
	}
	if s.fed {
		built = built.Feed(&p, s.apart, plan.FeedGrain)
	}
	compiled, err := exec.Compile(built, !p.Memory, s.apart)
	if err != nil {
		return nil, fault.Errorf(fault.ErrSystem, "%v", err)
	}
	var carried [trace.AllTransports]int64
	for peer, bytes := range built.Carried() {
		carried[c.trace.Transport(peer)] += bytes
	}
	compiled.Carries(carried)
	if c.plans == nil {
		c.plans = map[planKey]*keptPlan{}
	}
	c.plans[key] = &keptPlan{compiled, key.in.list(p.InBytes), key.out.list(p.OutBytes), c.gets}
	c.bytes += compiled.Bytes
	for len(c.plans) > mostPlans || c.bytes > mostPlanBytes && len(c.plans) > leastPlans {
		c.drop(c.oldest())
	}
	return compiled, nil
}

// build makes a plan.
func (c *planCache) build(p plan.Params, by *tune.Registered) (*plan.Plan, error) {
	if by == nil {
		return plan.Build(p)
	}
	if c.last == nil || c.last.Checked != by.Checked {
		c.last = by.Planner()
	}
	built, err := c.last.Plan(p)
	if err == nil {
		built.Algorithm = by.Algorithm()
	}
	return built, err
}

// oldest is the plan that has not been got for longest.
func (c *planCache) oldest() (oldest planKey) {
	got := c.gets + 1
	for key, kept := range c.plans {
		if kept.got < got {
			oldest, got = key, kept.got
		}
	}
	return oldest
}

func (c *planCache) drop(key planKey) {
	p := c.plans[key]
	delete(c.plans, key)
	c.bytes -= p.Bytes
	c.freeing(p.Compiled)
	p.Free()
}

// free frees all plans.
func (c *planCache) free() {
	for _, p := range c.plans {
		p.Free()
	}
}
