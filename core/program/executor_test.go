package program

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/goccl/goccl/core/plan"
)

// group is plans that run on numbers: 4 bytes an element of an input and 8 of a partial sum, one
// step of one rank after another, at random. It shares nothing with plan.Verify.
type group struct {
	plans  []*plan.Plan
	params []plan.Params
	same   bool // input and output are the same memory
	rnd    *rand.Rand
	ranks  []rankMemory
	rings  map[[2]int]*messages
	next   []int
}

type rankMemory struct {
	in, out [][]byte
	scratch []byte
}

type messages struct {
	all              [][]byte
	waited, released int
}

// run runs the plans to their end.
func (g *group) run() error {
	g.next, g.rings = make([]int, len(g.plans)), map[[2]int]*messages{}
	for moved := true; moved; {
		moved = false
		for _, r := range g.rnd.Perm(len(g.plans)) {
			for range 1 + g.rnd.IntN(7) {
				if g.next[r] == len(g.plans[r].Steps) {
					break
				}
				done, err := g.do(r, &g.plans[r].Steps[g.next[r]])
				if err != nil {
					return fmt.Errorf("rank %d, step %d: %w", r, g.next[r], err)
				}
				if !done {
					break
				}
				g.next[r]++
				moved = true
			}
		}
	}
	for r, p := range g.plans {
		if g.next[r] < len(p.Steps) {
			return fmt.Errorf("rank %d is stuck in step %d", r, g.next[r])
		}
	}
	for pair, m := range g.rings {
		if m.released < len(m.all) {
			return fmt.Errorf("messages of %v are left", pair)
		}
	}
	return nil
}

func (g *group) ring(from, to int) *messages {
	m := g.rings[[2]int{from, to}]
	if m == nil {
		m = &messages{}
		g.rings[[2]int{from, to}] = m
	}
	return m
}

func (g *group) bytes(r int, ref plan.Ref, n int64) []byte {
	var m []byte
	switch ref.Space {
	case plan.In:
		m = g.ranks[r].in[ref.Block]
	case plan.Out:
		m = g.ranks[r].out[ref.Block]
	case plan.Scratch:
		m = g.ranks[r].scratch
	case plan.Inbox:
		m = g.ring(int(ref.Peer), r).all[ref.Block]
	}
	return m[ref.Off : ref.Off+n]
}

func (g *group) do(r int, s *plan.Step) (bool, error) {
	peer := int(s.Peer)
	switch s.Op {
	case plan.Put:
		m := g.ring(r, peer)
		if len(m.all)-m.released == g.params[r].Slots-g.rnd.IntN(2) { // a release may be known late
			return false, nil
		}
		data := []byte{}
		if s.Bytes > 0 {
			data = slices.Clone(g.bytes(r, s.Src[0], s.Bytes))
		}
		m.all = append(m.all, data)
	case plan.Wait:
		m := g.ring(peer, r)
		if m.waited == len(m.all) {
			return false, nil
		}
		if got := int64(len(m.all[m.waited])); got != s.Bytes {
			return false, fmt.Errorf("waits for %d bytes, gets %d", s.Bytes, got)
		}
		m.waited++
	case plan.Release:
		m := g.ring(peer, r)
		for i := range m.all[m.released] {
			m.all[m.released][i] = 0xdd
		}
		m.released++
	case plan.Copy:
		copy(g.bytes(r, s.Dst, s.Bytes), g.bytes(r, s.Src[0], s.Bytes))
	case plan.Combine:
		g.combine(r, s)
	default:
		return false, fmt.Errorf("does %v", s)
	}
	return true, nil
}

// element reads an element, and put writes one. They are 4 bytes long, but partial sums scale times
// that.
func element(b []byte) (v uint64) {
	for i := range b {
		v |= uint64(b[i]) << (8 * i)
	}
	return v
}

func putElement(b []byte, v uint64) {
	for i := range b {
		b[i] = byte(v >> (8 * i))
	}
}

func (g *group) combine(r int, s *plan.Step) {
	q := &g.params[r]
	from, to := q.ElemSize, q.ElemSize
	if s.Stage == plan.Middle || s.Stage == plan.Last {
		from = q.PartialSize
	}
	if s.Stage == plan.First || s.Stage == plan.Middle {
		to = q.PartialSize
	}
	n := s.Bytes / from
	results := make([]byte, n*to)
	for i := range n {
		var sources []uint64
		for _, ref := range s.Src {
			v := element(g.bytes(r, ref, s.Bytes)[i*from : (i+1)*from])
			if s.Stage == plan.First {
				v += widened
			}
			sources = append(sources, v)
		}
		v := balanced(sources, combined(q))
		if s.Stage == plan.Last {
			v -= widened
		}
		putElement(results[i*to:(i+1)*to], v)
	}
	copy(g.bytes(r, s.Dst, int64(len(results))), results)
}

// widened marks a partial sum where those are something else than elements.
const widened = 1 << 40

// combined is what two operands make. Where there is an order it is neither commutative nor
// associative, so that another order gives other bits.
func combined(q *plan.Params) func(a, b uint64) uint64 {
	mask := uint64(1)<<32 - 1
	if q.AnyOrder {
		return func(a, b uint64) uint64 { return a&^mask | (a+b)&mask }
	}
	return func(a, b uint64) uint64 { return a&^mask | (a*31+b*17+a^b>>3+5)&mask }
}

// balanced combines operands as a kernel does.
func balanced(v []uint64, f func(a, b uint64) uint64) uint64 {
	if len(v) == 1 {
		return v[0]
	}
	half := 1
	for 2*half < len(v) {
		half *= 2
	}
	return f(balanced(v[:half], f), balanced(v[half:], f))
}

// fill lays out all memory. Inputs are numbers of their own.
func (g *group) fill() {
	g.ranks = make([]rankMemory, len(g.plans))
	for r := range g.ranks {
		m, q := &g.ranks[r], &g.params[r]
		for i, n := range q.InBytes {
			block := make([]byte, n)
			for k := int64(0); k < n; k += 4 {
				putElement(block[k:k+4], input(r, i, k/4))
			}
			m.in = append(m.in, block)
		}
		for _, n := range q.OutBytes {
			m.out = append(m.out, make([]byte, n))
		}
		m.scratch = make([]byte, g.plans[r].ScratchBytes)
		if q.Collective == plan.Broadcast {
			m.out[0] = make([]byte, q.OutBytes[0])
			if r == q.Root {
				for k := int64(0); k < q.OutBytes[0]; k += 4 {
					putElement(m.out[0][k:k+4], input(r, 0, k/4))
				}
			}
		}
		if !g.same {
			continue
		}
		root := r == q.Root
		switch c := q.Collective; {
		case c == plan.AllReduce, c == plan.Reduce && root:
			copy(m.out, m.in)
		case c == plan.AllGather, c == plan.Gather && root:
			copy(m.out[r], m.in[0])
			m.in[0] = m.out[r]
		case c == plan.ReduceScatter, c == plan.Scatter && root:
			m.out[0] = m.in[r]
		}
	}
}

func input(rank, block int, i int64) uint64 {
	return (uint64(rank)*7919 + uint64(block)*104729 + uint64(i)*31 + 1) * 2654435761 & (1<<32 - 1)
}

// check compares all outputs with what the collective promises.
func (g *group) check() error {
	for r := range g.ranks {
		q := &g.params[r]
		if c := q.Collective; r != q.Root && (c == plan.Reduce || c == plan.Gather) || c == plan.Custom {
			continue
		}
		for i, block := range g.ranks[r].out {
			for k := range int64(len(block)) / 4 {
				if got, want := element(block[4*k:4*k+4]), g.want(q, i, k); got != want {
					return fmt.Errorf("rank %d: element %d of output %d is %x, not %x", r, k, i, got, want)
				}
			}
		}
	}
	return nil
}

// want is what element k of output i of a rank must be.
func (g *group) want(q *plan.Params, i int, k int64) uint64 {
	sum := func(block int) uint64 {
		var all []uint64
		for r := range g.plans {
			all = append(all, input(r, block, k))
		}
		return balanced(all, combined(q)) & (1<<32 - 1)
	}
	switch q.Collective {
	case plan.AllReduce, plan.Reduce:
		return sum(i)
	case plan.ReduceScatter:
		return sum(q.Rank)
	case plan.Broadcast:
		return input(q.Root, 0, k)
	case plan.Scatter:
		return input(q.Root, q.Rank, k)
	case plan.AllToAll:
		return input(i, q.Rank, k)
	}
	return input(i, 0, k) // AllGather, Gather
}
