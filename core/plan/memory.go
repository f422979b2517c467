package plan

import (
	"fmt"
	"slices"
	"sort"
)

// value is what the verifier knows of a byte, in place of its contents.
type value struct {
	reduced bool  // the canonical reduction over all ranks, of a byte of the block
	rank    int32 // else: whose input it is,
	ranks   int32 // or, if this is not 0, the reduction over so many ranks from it on
	block   int32
	// off is where in that block; of a segment, where its first byte is. Of a partial sum it counts
	// bytes of partial sums.
	off int64
}

func (v value) String() string {
	if v.reduced {
		return fmt.Sprintf("the reduction of byte %d of block %d", v.off, v.block)
	}
	switch {
	case v.ranks == overSet && v.block < 0:
		return fmt.Sprintf("byte %d of combination %d", v.off, v.rank)
	case v.ranks == overSet:
		return fmt.Sprintf("a sum over some ranks of byte %d of block %d", v.off, v.block)
	case v.ranks != 0:
		return fmt.Sprintf("the reduction over ranks %d to %d of byte %d of block %d", v.rank,
			v.rank+v.ranks-1, v.off, v.block)
	}
	return fmt.Sprintf("rank %d's input byte %d of block %d", v.rank, v.off, v.block)
}

// over is how many ranks' inputs are in a value that is not reduced over all of them, and end the
// rank after the last.
func (v value) over() int { return int(max(v.ranks, 1)) }
func (v value) end() int  { return int(v.rank) + v.over() }

func (v value) plus(n int64) value {
	v.off += n
	return v
}

// segment is a run of bytes that come from a run of bytes.
type segment struct {
	off, bytes int64
	val        value
}

func (s segment) end() int64 { return s.off + s.bytes }

// part is the segment's bytes in [from, to).
func (s segment) part(from, to int64) segment {
	from, to = max(from, s.off), min(to, s.end())
	return segment{from, to - from, s.val.plus(from - s.off)}
}

// region is a piece of memory: sorted segments, each as long as can be, so that equal contents
// have equal segments. What no segment covers has not been written.
type region struct {
	bytes int64
	segs  []segment
	first [1]segment // the memory of segs, until they are more
	block bool       // it is an input or an output
	fed   bool       // it is an output of a feed
	open  []extent   // of that, what is not final
	late  []extent   // of an input of a feed, what is yet to come
	mark  int32      // the greater, the later it was marked as a Combine's destination
}

// newBlocks is blocks of those lengths, of which nothing has been written.
func newBlocks(bytes []int64) []*region {
	all, blocks := make([]region, len(bytes)), make([]*region, len(bytes))
	for i, n := range bytes {
		m := &all[i]
		m.bytes, m.segs, m.block = n, m.first[:0], true
		blocks[i] = m
	}
	return blocks
}

// set replaces all that the region holds.
func (m *region) set(segs []segment) {
	if cap(m.segs) == 0 {
		m.segs = m.first[:0]
	}
	m.segs = append(m.segs[:0], segs...)
}

// fill makes the region an input.
func (m *region) fill(rank, block int) {
	if m.bytes > 0 {
		m.segs = append(m.segs, segment{0, m.bytes, value{rank: int32(rank), block: int32(block)}})
	}
}

// find is the index of the first segment that ends after off.
func (m *region) find(off int64) int {
	if len(m.segs) == 1 && m.segs[0].end() > off {
		return 0
	}
	return sort.Search(len(m.segs), func(i int) bool { return m.segs[i].end() > off })
}

// read appends the contents of n bytes at off, counted from 0.
func (m *region) read(off, n int64, to []segment) ([]segment, error) {
	at := off
	for i := m.find(off); at < off+n; i++ {
		if i == len(m.segs) || m.segs[i].off > at {
			return nil, fmt.Errorf("reads byte %d, which has not been written", at)
		}
		s := m.segs[i].part(off, off+n)
		at = s.end()
		s.off -= off
		to = append(to, s)
	}
	return to, nil
}

// write replaces n bytes at off by segments that cover them, counted from 0.
func (m *region) write(off, n int64, segs []segment) {
	lo := m.find(off)
	hi := lo
	var fresh [8]segment
	put := fresh[:0]
	add := func(s segment) {
		if k := len(put) - 1; k >= 0 && put[k].end() == s.off && put[k].val.plus(put[k].bytes) == s.val {
			put[k].bytes += s.bytes
			return
		}
		put = append(put, s)
	}
	if lo > 0 && m.segs[lo-1].end() == off {
		lo--
		add(m.segs[lo])
	}
	if hi < len(m.segs) && m.segs[hi].off < off {
		add(m.segs[hi].part(m.segs[hi].off, off))
	}
	for _, s := range segs {
		s.off += off
		add(s)
	}
	for ; hi < len(m.segs) && m.segs[hi].off <= off+n; hi++ {
		if s := m.segs[hi]; s.end() > off+n {
			add(s.part(off+n, s.end()))
		}
	}
	m.segs = slices.Replace(m.segs, lo, hi, put...)
}
