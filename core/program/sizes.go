package program

import (
	"fmt"
	"math"

	"github.com/goccl/goccl/core/plan"
)

// align is the unit in which data is cut into chunks: a cache line, and a whole number of elements.
const align = 64

// sizes are how long chunks are. A program runs once for each window: the same bytes of each chunk.
type sizes struct {
	lengths []int64 // the bytes of each block
	chunks  []int64 // the bytes of a chunk of each, but for the last ones
	windows []window
	most    int32 // chunks of a message
	scale   int64 // how many times as long as elements partial sums are
	lag     int   // by how many windows each depth runs behind the one before it
	live    int   // how many windows are under way at once
	longest int64 // bytes of a chunk in a window, of partial sums if there are any
}

// window is some bytes of each chunk.
type window struct {
	set    int // of AllReduce: the block
	lo, hi int64
}

// span is where some chunks of a block lie in it in a window.
func (s *sizes) span(block, chunk, count int32, w window) (off, bytes int64) {
	b := int(block) + w.set
	each := s.chunks[b]
	off = int64(chunk)*each + w.lo
	end := min(int64(chunk+count-1)*each+min(w.hi, each), s.lengths[b])
	return off, max(0, end-off)
}

// sizesOf cuts data into chunks and windows.
func (c *Planner) sizesOf(q *plan.Params) (*sizes, error) {
	s := &sizes{scale: 1}
	if c.Partial && q.PartialSize > 0 {
		s.scale = q.PartialSize / q.ElemSize
	}
	if err := c.cut(q, s); err != nil {
		return nil, err
	}
	longest, even := int64(0), true
	for _, n := range s.chunks {
		even = even && n == s.chunks[0]
		longest = max(longest, n)
	}
	part := q.Chunk / s.scale &^ (align - 1)
	if q.PipelineMin > 0 && longest >= q.PipelineMin && longest <= part {
		part = (longest/plan.PipelineDepth + align - 1) &^ (align - 1)
	}
	s.most = 1
	if even && s.scale == 1 && longest > 0 {
		s.most = int32(min(max(1, part/longest), MostChunks))
	}
	l := c.list(s.most, s.scale > 1)
	// Scratch memory for one byte of each chunk of a window: all that a rank may need at most.
	slots := int64(c.Scratch)
	if l.shadows {
		slots += int64(c.Out)
	}
	if c.hasInPlace() {
		slots += int64(c.In)
	}
	slots += int64(c.Ranks + 1) // what a reduction has between
	for _, s.lag = range []int{min(max(q.Ahead, 1), q.Slots-2), 0} {
		s.cutWindows(c, part, longest)
		if s.need(slots, l, q.Slots) <= q.Scratch {
			return s, nil
		}
	}
	s.most, l = 1, c.list(1, s.scale > 1)
	for part = min(part, max(longest, align)); ; part = max(align, part/2&^(align-1)) {
		s.cutWindows(c, part, longest)
		need := s.need(slots, l, q.Slots)
		switch {
		case need <= q.Scratch:
			return s, nil
		case part == align:
			return nil, fmt.Errorf("may need %d bytes of scratch memory; %d are allowed", need, q.Scratch)
		}
	}
}

// need is how much scratch memory a rank may need at most.
func (s *sizes) need(slots int64, l *lists, ring int) int64 {
	if int(l.mostOfPair)*s.live > ring-1 {
		slots += int64(l.mostArrivals)
	}
	return slots * int64(s.live) * ((s.longest + align - 1) &^ (align - 1))
}

// cut finds how long chunks are.
func (c *Checked) cut(q *plan.Params, s *sizes) error {
	switch c.Collective {
	case plan.Custom:
		return c.cutCustom(q, s)
	case plan.AllGather, plan.Gather, plan.Broadcast:
		s.lengths = q.OutBytes
	default:
		s.lengths = q.InBytes
	}
	if c.Collective == plan.AllToAll {
		for _, n := range append(q.OutBytes[:c.Ranks:c.Ranks], q.InBytes...) {
			if n != q.InBytes[0] {
				return fmt.Errorf("blocks have %d and %d bytes; a program of alltoall needs blocks that "+
					"are all equally long", q.InBytes[0], n)
			}
		}
	}
	s.chunks = make([]int64, len(s.lengths))
	each := int64(c.inBlock())
	for i, n := range s.lengths {
		lines := (n + align - 1) / align
		s.chunks[i] = (lines + each - 1) / each * align
	}
	return nil
}

// cutCustom finds how long the chunks of a Custom collective are, all of which are equally long.
func (c *Checked) cutCustom(q *plan.Params, s *sizes) error {
	in, out := q.InBytes[0], q.OutBytes[0]
	each, err := c.customChunk(in/q.ElemSize, out/q.ElemSize)
	s.lengths, s.chunks = []int64{math.MaxInt64}, []int64{each * q.ElemSize}
	return err
}

// customChunk is how many elements a chunk of a Custom collective has, of so many in all.
func (p *Program) customChunk(in, out int64) (each int64, err error) {
	if p.In > 0 {
		each = in / int64(p.In)
	} else {
		each = out / int64(p.Out)
	}
	if int64(p.In)*each != in || int64(p.Out)*each != out {
		return 0, fmt.Errorf("the input has %d elements, and the output %d; they must be %d and %d "+
			"chunks, all of which are equally long", in, out, p.In, p.Out)
	}
	return each, nil
}

// cutWindows makes windows of so many bytes, and finds how many are under way at once.
func (s *sizes) cutWindows(c *Planner, part, longest int64) {
	s.windows = s.windows[:0]
	add := func(set int, bytes int64) {
		for lo := int64(0); lo == 0 || lo < bytes; lo += part {
			s.windows = append(s.windows, window{set, lo, min(lo+part, bytes)})
		}
	}
	if c.Collective == plan.AllReduce {
		for i, n := range s.chunks {
			add(i, n)
		}
	} else {
		add(0, longest)
	}
	s.longest = min(part, longest) * s.scale
	s.live = min(len(s.windows), int(c.lists.deepest+1)*s.lag+1)
}
