package program

import (
	"slices"
)

// The moves that an exporter finds copy each message into scratch memory of its own and out of it.
// What follows makes of them what a user would write. Their order stays as it is until sort.

// join joins moves in succession of which each goes on with the one before it.
func (x *exporter) join() {
	var joined []strip
	for _, m := range x.moves {
		if n := len(joined); n == 0 || !x.joins(&joined[n-1], &m) {
			joined = append(joined, m)
		} else {
			joined[n-1].count += m.count
		}
	}
	x.moves = joined
}

// joins reports whether a move goes on with one just before it, of which it needs nothing.
func (x *exporter) joins(to, m *strip) bool {
	if !goesOn(to.to, m.to, to.count) || !goesOn(to.from, m.from, to.count) {
		return false
	}
	for _, places := range [2][2][]int32{{to.to, m.to}, {to.from, m.from}} {
		for i, n := range places[0] {
			if !x.isAlike(n, places[1][i]) {
				return false
			}
		}
	}
	return !meet(to.to, m.from, to.count, m.count) && !meet(to.from, m.to, to.count, m.count) &&
		!meet(to.to, m.to, to.count, m.count)
}

// isAlike reports whether chunks are of the same memory of the same rank.
func (x *exporter) isAlike(a, b int32) bool {
	rank, s := x.of(a)
	otherRank, otherSpace := x.of(b)
	return rank == otherRank && s == otherSpace
}

// meet reports whether some places of so many chunks and others have a chunk in common.
func meet(a, b []int32, aCount, bCount int32) bool {
	for _, p := range a {
		for _, q := range b {
			if p < q+bCount && q < p+aCount {
				return true
			}
		}
	}
	return false
}

// all is how many chunks there are.
func (x *exporter) all() int32 { return x.first(x.Ranks, Input) + int32(len(x.owners)) }

// stayLocal has moves read what a rank has in its input or output there, in place of its copy in
// scratch memory, and leaves out what is there already.
func (x *exporter) stayLocal() {
	values := make([]int32, x.all()) // of each chunk; 0: nothing
	lies := map[[2]int32]int32{}     // by value and rank: a chunk of its input or output that had it
	for n := range x.first(x.Ranks, Input) {
		values[n] = n + 1
		rank, _ := x.of(n)
		lies[[2]int32{n + 1, rank}] = n
	}
	fresh := int32(len(values))
	same := func(a, b, count int32) bool {
		return slices.Equal(values[a:a+count], values[b:b+count])
	}
	var kept []strip
	for _, m := range x.moves {
		for i, from := range m.from {
			rank, s := x.of(from)
			at, ok := lies[[2]int32{values[from], rank}]
			if s == Scratch && ok && x.isAlike(at, min(at+m.count, x.all())-1) && same(at, from, m.count) {
				m.from[i] = at
			}
		}
		if from := m.from[0]; len(m.from) == 1 {
			m.to = slices.DeleteFunc(m.to, func(to int32) bool { return same(to, from, m.count) })
		}
		if len(m.to) == 0 {
			continue
		}
		for k := range m.count {
			v := fresh
			if len(m.from) == 1 {
				v = values[m.from[0]+k]
			} else {
				fresh++
			}
			for _, to := range m.to {
				values[to+k] = v
				if rank, s := x.of(to + k); s != Scratch {
					lies[[2]int32{v, rank}] = to + k
				}
			}
		}
		kept = append(kept, m)
	}
	x.moves = kept
}

// writing is what a move writes to one of its places.
type writing struct {
	move, first, count int32
	reads              int32 // places of moves that read some of it
}

// skipInbox has a move that alone reads a copy of what lies at another rank, all of it, read it
// there, if it lies there still: that is a message as well.
func (x *exporter) skipInbox() {
	var all []writing
	x.follow(func(m *strip, _ int32, by []int32) {
		for _, from := range m.from {
			for i, w := range by[from : from+m.count] {
				if w >= 0 && !slices.Contains(by[from:from+int32(i)], w) {
					all[w].reads++
				}
			}
		}
	}, func(w writing) { all = append(all, w) })
	x.follow(func(m *strip, _ int32, by []int32) {
		for i, from := range m.from {
			if !x.isScratch(from) {
				continue
			}
			w := by[from]
			if all[w].reads != 1 || all[w].first != from || all[w].count != m.count {
				continue
			}
			copied := &x.moves[all[w].move]
			at := copied.from[0]
			reader, _ := x.of(from)
			to, _ := x.of(m.to[0])
			if len(copied.from) > 1 || to != reader || len(m.from) == 1 && len(m.to) > 1 {
				continue
			}
			if rank, _ := x.of(at); rank == reader {
				continue
			}
			stays := !slices.ContainsFunc(by[from:from+m.count], func(n int32) bool { return n != w })
			for _, n := range by[at : at+m.count] {
				stays = stays && (n < 0 || all[n].move < all[w].move)
			}
			if stays {
				m.from[i] = at
			}
			if stays && len(m.from) == 1 {
				m.order = copied.order // the rank that sends it does it
			}
		}
	}, func(writing) {})
}

// follow goes through all moves: before each it calls read with what wrote each chunk last, by
// number, -1: nothing; and after it write with what it writes.
func (x *exporter) follow(read func(m *strip, at int32, by []int32), write func(w writing)) {
	by := slices.Repeat([]int32{-1}, int(x.all()))
	n := int32(0)
	for at := range x.moves {
		m := &x.moves[at]
		read(m, int32(at), by)
		for _, to := range m.to {
			for k := range m.count {
				by[to+k] = n
			}
			write(writing{move: int32(at), first: to, count: m.count})
			n++
		}
	}
}

// dropUnread leaves out what is written to scratch memory and never read.
func (x *exporter) dropUnread() {
	read := make([]bool, x.all())
	for at := len(x.moves) - 1; at >= 0; at-- {
		m := &x.moves[at]
		m.to = slices.DeleteFunc(m.to, func(to int32) bool {
			return x.isScratch(to) && !slices.Contains(read[to:to+m.count], true)
		})
		if len(m.to) == 0 {
			continue
		}
		for _, to := range m.to {
			clear(read[to : to+m.count])
		}
		for _, from := range m.from {
			for k := range m.count {
				read[from+k] = true
			}
		}
	}
	x.moves = slices.DeleteFunc(x.moves, func(m strip) bool { return len(m.to) == 0 })
}

// sort brings moves in an order by levels, of which each needs none but those below it. Within a
// level ranks take turns.
func (x *exporter) sort() {
	type key struct{ level, rank, order, turn, at int32 }
	keys := make([]key, len(x.moves))
	read, wrote := make([]int32, x.all()), make([]int32, x.all()) // above which level it may be
	for at := range x.moves {
		m, level := &x.moves[at], int32(0)
		for k := range m.count {
			for _, from := range m.from {
				level = max(level, wrote[from+k])
			}
			for _, to := range m.to {
				level = max(level, wrote[to+k], read[to+k])
			}
		}
		for k := range m.count {
			for _, from := range m.from {
				read[from+k] = max(read[from+k], level+1)
			}
			for _, to := range m.to {
				wrote[to+k] = level + 1
			}
		}
		rank, _ := x.of(m.from[0])
		if len(m.from) > 1 { // in the order in which messages come, if all send to the next ranks first
			rank, _ = x.of(m.to[0])
			slices.SortStableFunc(m.from, func(a, b int32) int {
				return x.distance(a, rank) - x.distance(b, rank)
			})
		}
		keys[at] = key{level: level, rank: rank, order: m.order, at: int32(at)}
	}
	slices.SortFunc(keys, func(a, b key) int {
		return slices.Compare([]int32{a.level, a.rank, a.order}, []int32{b.level, b.rank, b.order})
	})
	for i := range keys[min(1, len(keys)):] {
		if before := &keys[i]; before.level == keys[i+1].level && before.rank == keys[i+1].rank {
			keys[i+1].turn = before.turn + 1
		}
	}
	slices.SortFunc(keys, func(a, b key) int {
		return slices.Compare([]int32{a.level, a.turn, a.rank}, []int32{b.level, b.turn, b.rank})
	})
	sorted := make([]strip, len(keys))
	for i, k := range keys {
		sorted[i] = x.moves[k.at]
	}
	x.moves = sorted
}

// distance is how many ranks before another that of a chunk is.
func (x *exporter) distance(n, rank int32) int {
	of, _ := x.of(n)
	return (int(rank-of) + x.Ranks) % x.Ranks
}

// place gives each rank's scratch memory that is used its numbers, and makes the moves.
func (x *exporter) place() {
	used := make([]bool, x.all())
	for _, m := range x.moves {
		for _, n := range slices.Concat(m.to, m.from) {
			for k := range m.count {
				used[n+k] = true
			}
		}
	}
	numbers, next := make([]int, x.all()), make([]int, x.Ranks)
	for n := x.first(x.Ranks, Input); n < x.all(); n++ {
		if rank, _ := x.of(n); used[n] {
			numbers[n] = next[rank]
			next[rank]++
		}
	}
	x.Scratch = slices.Max(next)
	places := func(all []int32, count int32) []Place {
		made := make([]Place, len(all))
		for i, n := range all {
			rank, s := x.of(n)
			chunk := numbers[n]
			if s != Scratch {
				chunk = int(n - x.first(int(rank), s))
			}
			made[i] = Place{int(rank), s, chunk, int(count)}
		}
		return made
	}
	for _, m := range x.moves {
		x.Moves = append(x.Moves, Move{places(m.to, m.count), places(m.from, m.count), ""})
	}
}
