package program

import (
	"slices"

	"github.com/goccl/goccl/core/plan"
)

// Lists are who does what, in an order that all ranks share: first by depth, the number of messages
// on the longest way that leads there, then by the order of moves. Each rank does its part of them.
//
// What a move writes is a version of the chunks it writes. A version has a home: where it lies,
// once it is there. One that has come in a message may be read in the inbox before.

// area is where a version has its home.
type area uint8

const (
	inputs  area = iota
	outputs      // what has the length of the output chunk
	shadows      // scratch memory, for output chunks: of what does not
	saved        // scratch memory, for inputs that are written in place
	scratch      // scratch memory of the program
	nowhere      // it is read in the inbox, or lies in scratch memory for a while
)

// version is what one run writes to one of its places, or an input.
type version struct {
	block, chunk int32 // what its first chunk is of
	first, count int32 // the numbers of its places
	index        int32 // of its first chunk, in the area
	area         area
	partial      bool // it is a partial sum
	pinned       bool // it is read together with others, at its home
	depth        int32
	// No earlier than here it may be written to its home, for what lay there is read before: unready,
	// the depth, and the number of the entry.
	unready, entry int32
	reads          int32   // by entries of its rank
	replaces       []int32 // versions of which it overwrites some chunks
}

// source is chunks of a version, or of several that lie side by side.
type source struct {
	versions     []int32
	off, count   int32 // in the first of them
	block, chunk int32
}

// kind is what an entry does.
type kind uint8

const (
	put     kind = iota // a message to peer
	arrival             // a message from peer, which becomes a version
	copies
	reduces
)

// entry is a part of a move that one rank does.
type entry struct {
	kind         kind
	peer         int32
	depth, entry int32 // by which all are ordered; a put and its arrival have the same
	to           int32 // the version that is written, but by a put
	from         []source
	operands     []int32 // of reduces: the trees of from
	count        int32
	value
}

// lists are those of all ranks.
type lists struct {
	most    int32 // chunks of a message
	wide    bool  // partial sums are longer than elements
	deepest int32
	ranks   [][]entry
	all     []version
	finals  [][]source // by rank: inputs that are outputs as they are
	// Bounds of the scratch memory that a rank needs for a part of each chunk, in chunks.
	shadows, saved bool
	mostArrivals   int32 // at a rank
	mostOfPair     int32 // between two ranks
	direct         map[[2]int32]bool
}

// lister makes lists.
type lister struct {
	*Checked
	*lists
	now     []int32 // by place: the version that it holds; -1: none
	touched []int32 // by place: the greatest depth at which it has been read or written; -1: none
	entries int32
	early   [][2]int32 // messages of inputs that are reduced: from rank to rank so far, the entry
	pairs   map[[2]int32]int32
}

// list makes the lists for messages of so many chunks at most.
func (c *Planner) list(most int32, wide bool) *lists {
	if c.lists != nil && c.lists.most == most && c.lists.wide == wide {
		return c.lists
	}
	l := &lister{Checked: c.Checked, pairs: map[[2]int32]int32{}, lists: &lists{most: most, wide: wide,
		ranks: make([][]entry, c.Ranks), finals: make([][]source, c.Ranks)}}
	l.now, l.touched = make([]int32, c.Ranks*c.each()), make([]int32, c.Ranks*c.each())
	for i := range l.now {
		l.now[i], l.touched[i] = -1, -1
	}
	for rank := range c.Ranks {
		l.addInputs(rank)
	}
	for _, r := range c.coalesce(most) {
		l.add(r)
	}
	l.rotate()
	for rank := range c.Ranks {
		l.addFinals(rank)
		slices.SortFunc(l.ranks[rank], func(a, b entry) int {
			if a.depth != b.depth {
				return int(a.depth - b.depth)
			}
			return int(a.entry - b.entry)
		})
	}
	l.bound()
	c.lists = l.lists
	return c.lists
}

// rotate has messages of inputs that are reduced come first of all: those to the next rank, then
// those to the one after it, and so on, so that no peer is crowded. Nothing comes before them that
// they need, and what overwrites an input comes later.
func (l *lister) rotate() {
	slices.SortFunc(l.early, func(a, b [2]int32) int { return slices.Compare(a[:], b[:]) })
	first := map[int32]int32{}
	for i, e := range l.early {
		first[e[1]] = int32(i - len(l.early))
	}
	for _, entries := range l.ranks {
		for i := range entries {
			if n, ok := first[entries[i].entry]; ok {
				entries[i].entry = n
			}
		}
	}
}

// addInputs makes the versions of a rank's inputs.
func (l *lister) addInputs(rank int) {
	same := checker{Program: &l.Program, same: !l.OutOfPlace}
	at := int32(-2)
	for chunk := range l.has(rank, Input) {
		n, v := same.number(Place{Rank: rank, Chunk: chunk}), l.contribution(rank, chunk)
		if n != at+1 {
			l.all = append(l.all, version{block: v.block, chunk: v.chunk, first: n, index: int32(chunk),
				area: inputs, unready: -1})
		}
		l.all[len(l.all)-1].count++
		l.now[n], at = int32(len(l.all)-1), n
	}
}

// addFinals notes which outputs are still the inputs that lie there in place.
func (l *lister) addFinals(rank int) {
	if l.Collective == plan.Broadcast {
		return
	}
	first := int32(rank*l.each() + l.In)
	for chunk := range int32(l.has(rank, Output)) {
		if v := l.now[first+chunk]; v >= 0 && l.all[v].area == inputs {
			want := l.promised(rank, int(chunk))
			l.finals[rank] = append(l.finals[rank], source{[]int32{v}, first + chunk - l.all[v].first, 1,
				want.block, want.chunk})
		}
	}
}

// add makes the entries of a run: of each part of it that reads what lies side by side.
func (l *lister) add(r run) {
	for done := int32(0); done < r.count; {
		part := run{move: r.move, value: r.value, operands: r.operands, count: r.count - done}
		if l.Collective != plan.Custom {
			part.chunk += done
		}
		for _, n := range r.from {
			part.count = min(part.count, l.sideBySide(n+done, part.count))
		}
		for _, n := range r.from {
			part.from = append(part.from, n+done)
		}
		for _, n := range r.to {
			part.to = append(part.to, n+done)
		}
		l.addPart(part)
		done += part.count
	}
}

// sideBySide is how many of some chunks lie side by side.
func (l *lister) sideBySide(n, count int32) int32 {
	v := &l.all[l.now[n]]
	at := v.index + n - v.first
	for i := int32(1); i < count; i++ {
		next := &l.all[l.now[n+i]]
		if next.area != v.area || next.index+n+i-next.first != at+i || next.partial != v.partial {
			return i
		}
	}
	return count
}

// read is a source, and the depth from which on it can be read.
func (l *lister) read(n int32, part *run) (source, int32) {
	first := l.now[n]
	s := source{off: n - l.all[first].first, count: part.count, block: part.block, chunk: part.chunk}
	depth := int32(0)
	for i := range part.count {
		v := l.now[n+i]
		if i == 0 || v != s.versions[len(s.versions)-1] {
			s.versions = append(s.versions, v)
			depth = max(depth, l.all[v].depth)
			l.all[v].reads++
		}
	}
	for _, v := range s.versions {
		if len(s.versions) > 1 {
			l.all[v].pinned = true
		}
	}
	return s, depth
}

// touch notes that places are read or written at a depth.
func (l *lister) touch(n, count, depth int32) {
	for i := range count {
		l.touched[n+i] = max(l.touched[n+i], depth)
	}
}

// lastTouch is the greatest depth at which places have been read or written.
func (l *lister) lastTouch(n, count int32) int32 { return slices.Max(l.touched[n : n+count]) }

// write makes the version that a run writes to its place k.
func (l *lister) write(part *run, k int, depth int32) int32 {
	n, at := part.to[k], l.placeOf(part.to[k])
	v := version{block: part.block, chunk: part.chunk, first: n, count: part.count,
		index: int32(at.Chunk), partial: l.trees.isPartial(part.tree), depth: depth,
		unready: l.lastTouch(n, part.count), entry: l.entries}
	switch {
	case at.Space == Scratch:
		v.area = scratch
	case at.Space == Input:
		v.area, l.saved = saved, true
	case l.isProper(part, at) && !(v.partial && l.wide):
		v.area = outputs
	default:
		v.area, l.shadows = shadows, true
	}
	l.all = append(l.all, v)
	number := int32(len(l.all) - 1)
	for i := range part.count {
		if old := l.now[n+i]; old >= 0 && !slices.Contains(l.all[number].replaces, old) {
			l.all[number].replaces = append(l.all[number].replaces, old)
		}
		l.now[n+i] = number
	}
	l.touch(n, part.count, depth)
	return number
}

// isProper reports whether what a run writes to an output is of the same length, and lies there in
// its block.
func (l *lister) isProper(part *run, at Place) bool {
	want := l.promised(at.Rank, at.Chunk)
	return l.Collective == plan.Custom || part.chunk == want.chunk &&
		(part.block == want.block || l.Collective == plan.AllToAll)
}

// enter adds an entry to a rank's list.
func (l *lister) enter(rank int, e entry) {
	e.entry = l.entries
	l.ranks[rank] = append(l.ranks[rank], e)
	l.deepest = max(l.deepest, e.depth)
}

// send has a rank put a source to another, at a depth; write makes the version there.
func (l *lister) send(part *run, from, to int, s source, depth int32, write func() int32) int32 {
	e := entry{kind: put, peer: int32(to), depth: depth, from: []source{s}, count: part.count,
		value: part.value}
	l.enter(from, e)
	v := write()
	e.kind, e.peer, e.to, e.from = arrival, int32(from), v, nil
	l.enter(to, e)
	l.entries++
	l.pairs[[2]int32{int32(from), int32(to)}]++
	return v
}

// addPart makes the entries of a run that reads what lies side by side.
func (l *lister) addPart(part run) {
	rankOf := func(n int32) int { return int(n) / l.each() }
	doer, first, read := rankOf(part.from[0]), 0, part.from[0]
	result, depth := source{}, int32(0)
	if len(part.operands) > 0 {
		doer, first, read = rankOf(part.to[0]), 1, part.to[0]
		result, depth = l.reducePart(&part, doer, rankOf)
	} else {
		result, depth = l.read(part.from[0], &part)
		l.touch(part.from[0], part.count, depth)
	}
	for k := first; k < len(part.to); k++ {
		if k > 0 {
			for _, v := range result.versions {
				l.all[v].reads++
			}
		}
		n, to := part.to[k], rankOf(part.to[k])
		if to != doer {
			l.send(&part, doer, to, result, depth, func() int32 {
				return l.write(&part, k, max(depth+1, l.lastTouch(n, part.count)))
			})
			continue
		}
		at := max(depth, l.lastTouch(n, part.count))
		l.touch(read, part.count, at)
		v := l.write(&part, k, at)
		l.enter(doer, entry{kind: copies, depth: at, to: v, from: []source{result}, count: part.count,
			value: part.value})
		l.entries++
	}
}

// reducePart makes the entries of a reduction, up to its result on the rank that does it.
func (l *lister) reducePart(part *run, doer int, rankOf func(int32) int) (source, int32) {
	depth, sources := l.lastTouch(part.to[0], part.count), make([]source, len(part.from))
	operands := make([]int32, len(part.from))
	for i, n := range part.from {
		s, at := l.read(n, part)
		operands[i] = part.operands[i]
		if from := rankOf(n); from != doer {
			l.touch(n, part.count, at)
			partial := l.trees.isPartial(operands[i])
			if l.all[s.versions[0]].area == inputs {
				l.early = append(l.early, [2]int32{int32((doer - from + l.Ranks) % l.Ranks), l.entries})
			}
			v := l.send(part, from, doer, s, at, func() int32 {
				l.all = append(l.all, version{block: part.block, chunk: part.chunk, count: part.count,
					area: nowhere, partial: partial, depth: at + 1, unready: -1, entry: l.entries, reads: 1})
				return int32(len(l.all) - 1)
			})
			s = source{[]int32{v}, 0, part.count, part.block, part.chunk}
			at++
		}
		sources[i], depth = s, max(depth, at)
	}
	for _, n := range part.from {
		if rankOf(n) == doer {
			l.touch(n, part.count, depth)
		}
	}
	v := l.write(part, 0, depth)
	l.enter(doer, entry{kind: reduces, depth: depth, to: v, from: sources, operands: operands,
		count: part.count, value: part.value})
	l.entries++
	return source{[]int32{v}, 0, part.count, part.block, part.chunk}, depth
}

// bound finds how much scratch memory the lists may need.
func (l *lister) bound() {
	l.direct = map[[2]int32]bool{}
	for pair, n := range l.pairs {
		l.direct[pair] = true
		l.mostOfPair = max(l.mostOfPair, n)
	}
	for _, entries := range l.ranks {
		arrivals := int32(0)
		for i := range entries {
			if entries[i].kind == arrival {
				arrivals += entries[i].count
			}
		}
		l.mostArrivals = max(l.mostArrivals, arrivals)
	}
}
