package plan

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"testing"
	"unsafe"
)

// job is a collective as all ranks see it.
type job struct {
	Params // of no rank; InBytes and OutBytes unset
	// counts is in elements. AllReduce: of each block. AllGather, ReduceScatter, Gather, Scatter: of
	// each rank. AllToAll: rank r sends counts[(r+s)%size] to rank s, or half of it. Others: one.
	counts []int64
}

// inHosts has so many ranks in succession share memory, and ports join the others.
func (j job) inHosts(ranks int) job {
	j.Ports = make([]bool, ranks) // see rank
	return j
}

func (j job) String() string {
	return fmt.Sprintf("%v by %v size=%d root=%d counts=%v elem=%d:%d chunk=%d slots=%d memory=%v "+
		"radices=%v oversubscribed=%v schedule=%v long=%d hosts=%d oneshot=%d multicast=%d swap=%d "+
		"window=%d:%d "+
		"get=%d",
		j.Collective, j.algorithm(), j.Size, j.Root, j.counts,
		j.ElemSize, j.PartialSize, j.Chunk, j.Slots, j.Memory,
		j.Radices,
		j.Oversubscribed, j.Schedule, j.Long, len(j.Ports), j.OneShotMax, j.MulticastMin, j.SwapMin,
		j.WindowMin, j.Window, j.GetMin)
}

// algorithm is the job's, or of one that names none the one for large blocks.
func (j job) algorithm() Algorithm {
	multicast := j.Memory && j.MulticastMin > 0 && j.Size > 2
	switch c := j.Collective; {
	case j.Algorithm != PointToPoint:
		return j.Algorithm
	case c.Has(Hierarchical) && len(j.Radices) > 0:
		return Hierarchical
	case c == AllReduce:
		return TwoShot
	case c == Reduce:
		return ReduceScatterGather
	case c.Has(Multicast) && multicast:
		return Multicast
	case c == Broadcast && j.Size > 2:
		return ScatterAllGather
	case c == AllToAll && j.Schedule.Window() > 0:
		return Pairwise
	case int(c) < len(methods) && len(methods[c]) > 0:
		return methods[c][0].algorithm
	}
	return PointToPoint
}

func (j job) rank(r int) Params {
	p := j.Params
	p.Rank, p.Algorithm = r, j.algorithm()
	if each := len(j.Ports); each > 0 {
		p.Ports = make([]bool, j.Size)
		for peer := range p.Ports {
			p.Ports[peer] = peer/each != r/each
		}
	}
	bytes := make([]int64, len(j.counts))
	for i, n := range j.counts {
		bytes[i] = n * j.ElemSize
	}
	switch j.Collective {
	case AllReduce, Reduce:
		p.InBytes, p.OutBytes = bytes, bytes
	case Broadcast:
		p.OutBytes = bytes
	case AllGather, Gather:
		p.InBytes, p.OutBytes = bytes[r:r+1], bytes
	case ReduceScatter, Scatter:
		p.InBytes, p.OutBytes = bytes, bytes[r:r+1]
	case AllToAll:
		p.InBytes, p.OutBytes = make([]int64, j.Size), make([]int64, j.Size)
		sends := func(from, to int) int64 { // not symmetric, but for some pairs that may swap
			n := j.counts[(from+to)%j.Size]
			if to < from && (j.SwapMin == 0 || (from+to)%3 == 0) {
				n /= 2
			}
			return n * j.ElemSize
		}
		for s := range j.Size {
			p.InBytes[s], p.OutBytes[s] = sends(r, s), sends(s, r)
		}
	case Send: // to rank Root from the rank after it
		p.InBytes = bytes
		if r == j.Root {
			p.Collective, p.InBytes, p.OutBytes = Recv, nil, bytes
			p.Root = (j.Root + 1) % j.Size
		}
	}
	return p
}

func (j job) build(t testing.TB) ([]*Plan, []Params) {
	t.Helper()
	plans, params := make([]*Plan, j.Size), make([]Params, j.Size)
	for r := range j.Size {
		params[r] = j.rank(r)
		if j.Collective == Send && r != j.Root && r != (j.Root+1)%j.Size {
			continue
		}
		var err error
		if plans[r], err = Build(params[r]); err != nil {
			t.Fatalf("%v rank %d: %v", j, r, err)
		}
	}
	return plans, params
}

// A prover proves jobs, each once: forms of different jobs may be the same, and different jobs may
// have the same plans.
type prover struct {
	*testing.T
	seen   map[string]bool
	proved map[uint64]int // of plans and what is asked of them: the fewest slots that they can do with
	seed   maphash.Seed

	numbers []int64 // digest's, reused
}

func newProver(t *testing.T) *prover {
	return &prover{T: t, seen: map[string]bool{}, proved: map[uint64]int{}, seed: maphash.MakeSeed()}
}

// digest is one of all that a proof depends on but the number of slots: plans that can do with few
// can do with more.
func (p *prover) digest(plans []*Plan, params []Params) uint64 {
	all := p.numbers[:0]
	refs := func(refs []Ref) {
		all = append(all, int64(len(refs)))
		for _, r := range refs {
			all = append(all, int64(r.Space)<<32|int64(r.Peer), int64(r.Block), r.Off)
		}
	}
	flag := func(is bool) int64 {
		if is {
			return 1
		}
		return 0
	}
	for r, plan := range plans {
		if plan == nil {
			continue
		}
		q := &params[r]
		all = append(all, int64(r), plan.ScratchBytes, int64(q.Collective), int64(q.Root), q.ElemSize,
			q.PartialSize,
			q.Chunk, q.Long, flag(q.Memory), flag(q.Algorithm == Direct), flag(q.GetMin > 0),
			int64(q.window()), int64(len(q.InBytes)), int64(len(q.OutBytes)), int64(len(q.Ports)),
			int64(len(plan.Steps)))
		all = append(append(all, q.InBytes...), q.OutBytes...)
		for _, port := range q.Ports {
			all = append(all, flag(port))
		}
		for i := range plan.Steps {
			s := &plan.Steps[i]
			all = append(all, int64(s.Stage)<<48|int64(s.Op)<<40|
				flag(s.Multicast)<<32|int64(uint32(s.Peer)), s.Bytes, s.Total,
				int64(s.Dst.Space)<<32|int64(uint32(s.Dst.Peer)), int64(s.Dst.Block), s.Dst.Off)
			refs(s.Src)
			refs(s.Also)
		}
	}
	p.numbers = all
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(all))), 8*len(all))
	return maphash.Bytes(p.seed, bytes)
}

// first tells whether a job is asked about for the first time.
func (p *prover) first(what string, j job) bool {
	key := fmt.Sprintf("%s %+v %v", what, j.Params, j.counts)
	was := p.seen[key]
	p.seen[key] = true
	return !was
}

// verifyHeardFirst proves of a plan that may stand in for a direct one that the ranks that wait for
// access hear from its rank, whatever others do.
func (p *prover) verifyHeardFirst(j job) {
	p.Helper()
	j.Slots, j.Ahead = 2, 0 // with more it only puts more before it waits
	if !p.first("heard first", j) {
		return
	}
	plans, _ := j.build(p)
	for r, plan := range plans {
		told, all := make([]bool, j.Size), false
		for _, s := range plan.Steps {
			if s.Op == Wait || s.Op == Reclaim {
				break
			}
			switch s.Op {
			case Put, Offer:
				told[s.Peer] = true
			case PutToAll:
				all = true
			}
		}
		for peer, ok := range told {
			if !ok && !all && peer != r && (!star(j.Collective) || r == j.Root || peer == j.Root) {
				p.Fatalf("%v: rank %d waits before it puts to %d\n%v", j, r, peer, plan)
			}
		}
	}
}

// inMemory is the job over memory channels, with which nothing goes through ports.
func (j job) inMemory() job {
	j.Memory, j.Ports, j.Long, j.WindowMin = true, nil, 0, 0
	if p := j.rank(0); p.CheckAlgorithm() != nil {
		j.Algorithm = PointToPoint // which stands for the usual one
	}
	return j
}

// direct is the job by its direct plan. That passes one empty message to a peer, so the fewest
// slots stand for all numbers of them; and it has no thresholds.
func (j job) direct() job {
	j = j.inMemory()
	j.Algorithm, j.Slots, j.Ahead, j.Oversubscribed = Direct, 2, 0, false
	j.Thresholds = Thresholds{}
	return j
}

// verify proves the job, and where that makes a difference also with memory channels.
func (p *prover) verify(j job) {
	p.Helper()
	if !p.first("plans", j) {
		return
	}
	c, a := j.Collective, j.algorithm()
	if (c == AllReduce || c == Reduce) && !j.Memory && !a.InLevels() {
		p.verify(j.inMemory())
	}
	if q := j.inMemory().rank(0); q.HasDirect() && a != Direct {
		p.verify(j.direct())
		if q.Algorithm.StandsIn(c) && q.CheckAlgorithm() == nil {
			s := j.inMemory()
			s.InPlaceOfDirect = true
			p.verifyHeardFirst(s)
		}
	}
	if (a == Linear && c == AllToAll || a == Flat && c == Scatter) && j.GetMin == 0 {
		g := j.inMemory()
		g.Algorithm, g.GetMin = SingleCopy, j.Chunk/2
		p.verify(g)
	}
	if (c == Scatter || c == Broadcast) && !j.Oversubscribed && a != Direct {
		d := j
		d.Oversubscribed = true
		p.verify(d)
	}
	if (a == Linear && c == AllGather || a == Flat && c == Broadcast) && j.Size > 2 {
		s := j.inMemory()
		s.Algorithm, s.MulticastMin = Multicast, j.Chunk/2
		p.verify(s)
	}
	if (c == AllGather || c == ReduceScatter || c == AllToAll) && a != Direct && !a.InLevels() &&
		(j.SwapMin == 0 || !j.Memory) {
		s := j.inMemory()
		s.SwapMin = cmp.Or(j.SwapMin, j.Chunk/2)
		p.verify(s)
	}
	p.verifyAlone(j)
}

// verifyAlone proves the job as it is.
func (p *prover) verifyAlone(j job) {
	p.Helper()
	plans, params := j.build(p)
	key := p.digest(plans, params)
	if slots, ok := p.proved[key]; ok && slots <= j.Slots {
		return
	}
	p.proved[key] = j.Slots
	for _, inPlace := range []bool{false, true} {
		if inPlace && !hasInPlace(j.Collective) {
			continue // the same proof
		}
		if err := Verify(plans, params, inPlace); err != nil {
			p.Fatalf("%v in place %v: %v", j, inPlace, err)
		}
		if j.algorithm() == Direct || j.Size > 8 {
			continue // steps of a feed are local: more ranks prove no more
		}
		if err := Verify(feedOf(plans, params, false, allRanks), params, inPlace); err != nil {
			p.Fatalf("%v with feeds, in place %v: %v", j, inPlace, err)
		}
	}
}

// hasInPlace tells whether some input and output of a collective may be the same memory.
func hasInPlace(c Collective) bool {
	return c.Reduces() || c == AllGather || c == Gather || c == Scatter
}

// byEach calls f with the job by each algorithm that can do it over ports, and for whose plans
// verify has no cases of its own.
func (j job) byEach(f func(job)) {
	for _, j.Algorithm = range Algorithms(j.Collective) {
		alike := j.Collective == AllToAll && j.Algorithm != Linear
		if p := j.rank(0); p.CheckAlgorithm() == nil && !alike {
			f(j)
		}
	}
}
