package program

import "github.com/goccl/goccl/core/plan"

// Programs as users write them.

func at(rank int, s Space, chunk, count int) Place { return Place{rank, s, chunk, count} }

// others are the other ranks, in the order in which they follow a rank.
func others(rank, ranks int) []int {
	var all []int
	for d := 1; d < ranks; d++ {
		all = append(all, (rank+d)%ranks)
	}
	return all
}

func (p *Program) copy(to, from Place) {
	p.Moves = append(p.Moves, Move{[]Place{to}, []Place{from}, ""})
}

func (p *Program) reduce(to []Place, from ...Place) {
	p.Moves = append(p.Moves, Move{to, from, ""})
}

// oneShot has each rank reduce all inputs.
func oneShot(n, chunks int) Program {
	p := Program{Name: "one_shot", Collective: plan.AllReduce, Ranks: n, In: chunks, Out: chunks}
	for me := range n {
		from := []Place{at(me, Input, 0, chunks)}
		for _, r := range others(me, n) {
			from = append(from, at(r, Input, 0, chunks))
		}
		p.reduce([]Place{at(me, Output, 0, chunks)}, from...)
	}
	return p
}

// twoShot has each rank reduce a chunk, and send it to all.
func twoShot(n, _ int) Program {
	p := Program{Name: "two_shot", Collective: plan.AllReduce, Ranks: n, In: n, Out: n, Scratch: n}
	for me := range n {
		for _, r := range others(me, n) {
			p.copy(at(r, Scratch, me, 1), at(me, Input, r, 1))
		}
	}
	for me := range n {
		to, from := []Place{at(me, Output, me, 1)}, []Place(nil)
		for _, r := range others(me, n) {
			to = append(to, at(r, Output, me, 1))
		}
		for r := range n {
			if r == me {
				from = append(from, at(me, Input, me, 1))
			} else {
				from = append(from, at(me, Scratch, r, 1))
			}
		}
		p.reduce(to, from...)
	}
	return p
}

// twoShotInPlace works on outputs that hold the inputs.
func twoShotInPlace(n, _ int) Program {
	p := Program{Name: "two_shot", Collective: plan.AllReduce, Ranks: n, In: n, Out: n}
	for me := range n {
		var to, from []Place
		for d := range n {
			to = append(to, at((me+d)%n, Output, me, 1))
			from = append(from, at((me+d)%n, Input, me, 1))
		}
		p.reduce(to, from...)
	}
	return p
}

// ringAllReduce has sums go round a ring, and then results.
func ringAllReduce(n, factor int) Program {
	p := Program{Name: "ring", Collective: plan.AllReduce, Ranks: n, In: n * factor, Out: n * factor,
		Scratch: factor}
	for step := range n - 1 {
		for me := range n {
			c, to := ((me-step+n)%n)*factor, (me+1)%n
			from := at(me, Output, c, factor)
			if step == 0 {
				from.Space = Input
			}
			p.reduce([]Place{at(to, Output, c, factor)}, at(to, Input, c, factor), from)
		}
	}
	for step := range n - 1 {
		for me := range n {
			c := ((me + 1 - step + n) % n) * factor
			p.copy(at((me+1)%n, Output, c, factor), at(me, Output, c, factor))
		}
	}
	return p
}

func ringAllGather(n, chunks int) Program {
	p := Program{Name: "ring", Collective: plan.AllGather, Ranks: n, In: chunks, Out: n * chunks}
	for me := range n {
		p.copy(at(me, Output, me*chunks, chunks), at(me, Input, 0, chunks))
	}
	for step := range n - 1 {
		for me := range n {
			block := (me - step + n) % n
			p.copy(at((me+1)%n, Output, block*chunks, chunks), at(me, Output, block*chunks, chunks))
		}
	}
	return p
}

// inPlaceAllGather is right in place only.
func inPlaceAllGather(n, chunks int) Program {
	p := ringAllGather(n, chunks)
	p.Moves = p.Moves[n:]
	return p
}

// treeAllGather gathers to rank 0 and spreads all blocks at once.
func treeAllGather(n, chunks int) Program {
	p := Program{Name: "tree", Collective: plan.AllGather, Ranks: n, In: chunks, Out: n * chunks}
	for me := range n {
		p.copy(at(0, Output, me*chunks, chunks), at(me, Input, 0, chunks))
	}
	for half := 1; half < n; half *= 2 {
		for me := range half {
			if me+half < n {
				p.copy(at(me+half, Output, 0, n*chunks), at(me, Output, 0, n*chunks))
			}
		}
	}
	return p
}

// ringReduceScatter has sums go round, which lie in two halves of scratch memory by turns.
func ringReduceScatter(n, chunks int) Program {
	p := Program{Name: "ring", Collective: plan.ReduceScatter, Ranks: n, In: n * chunks, Out: chunks,
		Scratch: 2 * chunks}
	for step := range n - 1 {
		for me := range n {
			block, to := (me-step-1+2*n)%n*chunks, (me+1)%n
			from, into := at(me, Scratch, step%2*chunks, chunks), at(to, Scratch, (step+1)%2*chunks, chunks)
			if step == 0 {
				from = at(me, Input, block, chunks)
			}
			if step == n-2 {
				into = at(to, Output, 0, chunks)
			}
			p.reduce([]Place{into}, at(to, Input, block, chunks), from)
		}
	}
	if n == 1 {
		p.copy(at(0, Output, 0, chunks), at(0, Input, 0, chunks))
	}
	return p
}

// directReduceScatter has each rank reduce its block.
func directReduceScatter(n, chunks int) Program {
	p := Program{Name: "direct", Collective: plan.ReduceScatter, Ranks: n, In: n * chunks, Out: chunks}
	for me := range n {
		var from []Place
		for r := range n {
			from = append(from, at(r, Input, me*chunks, chunks))
		}
		p.reduce([]Place{at(me, Output, 0, chunks)}, from...)
	}
	return p
}

func treeBroadcast(n, chunks int) Program {
	root := n - 1
	p := Program{Name: "tree", Collective: plan.Broadcast, Ranks: n, Root: root, In: chunks,
		Out: chunks}
	for half := 1; half < n; half *= 2 {
		for r := range half {
			if r+half < n {
				p.copy(at((root+r+half)%n, Output, 0, chunks), at((root+r)%n, Output, 0, chunks))
			}
		}
	}
	return p
}

// treeReduce reduces along the canonical tree. Half is what two ranks make of theirs.
func treeReduce(n, chunks int) Program {
	p := Program{Name: "tree", Collective: plan.Reduce, Ranks: n, Root: n / 2, In: chunks, Out: chunks,
		Scratch: chunks}
	held := func(r, half int) Place {
		if half == 1 || r+half/2 >= n && half == 2 {
			return at(r, Input, 0, chunks)
		}
		for below := half / 2; below > 0; below /= 2 {
			if r+below < n {
				return at(r, Scratch, 0, chunks)
			}
		}
		return at(r, Input, 0, chunks)
	}
	for half := 1; half < n; half *= 2 {
		for r := 0; r+half < n; r += 2 * half {
			to := at(r, Scratch, 0, chunks)
			if 2*half >= n {
				to = at(p.Root, Output, 0, chunks)
			}
			p.reduce([]Place{to}, held(r, half), held(r+half, half))
		}
	}
	if n == 1 {
		p.copy(at(0, Output, 0, chunks), at(0, Input, 0, chunks))
	}
	return p
}

func flatGather(n, chunks int) Program {
	p := Program{Name: "flat", Collective: plan.Gather, Ranks: n, Root: n / 2, In: chunks,
		Out: n * chunks}
	for r := range n {
		p.copy(at(p.Root, Output, r*chunks, chunks), at(r, Input, 0, chunks))
	}
	return p
}

func flatScatter(n, chunks int) Program {
	p := Program{Name: "flat", Collective: plan.Scatter, Ranks: n, Root: n / 2, In: n * chunks,
		Out: chunks}
	for r := range n {
		p.copy(at(r, Output, 0, chunks), at(p.Root, Input, r*chunks, chunks))
	}
	return p
}

// directAllToAll says each chunk by itself.
func directAllToAll(n, chunks int) Program {
	p := Program{Name: "direct", Collective: plan.AllToAll, Ranks: n, In: n * chunks, Out: n * chunks}
	for d := range n {
		for me := range n {
			for c := range chunks {
				to := (me + d) % n
				p.copy(at(to, Output, me*chunks+c, 1), at(me, Input, to*chunks+c, 1))
			}
		}
	}
	return p
}

// tieredAllToAll gathers on a rank of each pair what goes to another pair.
func tieredAllToAll(n, chunks int) Program {
	p := Program{Name: "tiers", Collective: plan.AllToAll, Ranks: n, In: n * chunks, Out: n * chunks,
		Scratch: 2 * (n + n%2) * chunks}
	for me := range n {
		lead := me &^ 1
		for to := range n {
			if to&^1 == lead {
				p.copy(at(to, Output, me*chunks, chunks), at(me, Input, to*chunks, chunks))
			} else { // what goes to a pair lies together
				p.copy(at(lead, Scratch, (to&^1*2+me%2*2+to%2)*chunks, chunks),
					at(me, Input, to*chunks, chunks))
			}
		}
	}
	for me := range n {
		lead := me &^ 1
		for to := range n {
			if to&^1 != lead {
				p.copy(at(to, Output, me*chunks, chunks),
					at(lead, Scratch, (to&^1*2+me%2*2+to%2)*chunks, chunks))
			}
		}
	}
	return p
}

// hierarchical reduces within pairs, between them, and spreads the result.
func hierarchical(n, chunks int) Program {
	p := Program{Name: "hierarchical", Collective: plan.AllReduce, Ranks: n, In: chunks, Out: chunks,
		Scratch: chunks}
	var leads []Place
	for lead := 0; lead < n; lead += 2 {
		own := at(lead, Input, 0, chunks)
		if lead+1 < n {
			p.reduce([]Place{at(lead, Scratch, 0, chunks)}, own, at(lead+1, Input, 0, chunks))
			own = at(lead, Scratch, 0, chunks)
		}
		leads = append(leads, own)
	}
	if n < 3 {
		p.Moves = nil
		return oneShot(n, chunks)
	}
	for lead := 0; lead < n; lead += 2 {
		to := []Place{at(lead, Output, 0, chunks)}
		if lead+1 < n {
			to = append(to, at(lead+1, Output, 0, chunks))
		}
		p.reduce(to, leads...)
	}
	return p
}

// halo has each rank send its ends to its neighbours.
func halo(n, chunks int) Program {
	p := Program{Name: "halo", Collective: plan.Custom, Ranks: n, In: 2 * chunks, Out: 2 * chunks}
	for me := range n {
		if n == 1 {
			break
		}
		p.copy(at((me+n-1)%n, Output, chunks, chunks), at(me, Input, 0, chunks))
		p.copy(at((me+1)%n, Output, 0, chunks), at(me, Input, chunks, chunks))
	}
	return p
}

// total has rank 0 reduce all chunks of all ranks into one.
func total(n, chunks int) Program {
	p := Program{Name: "total", Collective: plan.Custom, Ranks: n, In: chunks, Out: 1}
	var from []Place
	for r := range n {
		for c := range chunks {
			from = append(from, at(r, Input, c, 1))
		}
	}
	if len(from) > 1 {
		p.reduce([]Place{at(0, Output, 0, 1), at(n-1, Output, 0, 1)}[:min(n, 2)], from...)
	}
	return p
}

// written are all of them.
var written = map[string]func(n, chunks int) Program{
	"one_shot": oneShot, "two_shot": twoShot, "two_shot in place": twoShotInPlace,
	"ring allreduce": ringAllReduce, "ring allgather": ringAllGather,
	"ring allgather in place": inPlaceAllGather, "tree allgather": treeAllGather,
	"ring reduce_scatter": ringReduceScatter, "direct reduce_scatter": directReduceScatter,
	"tree broadcast": treeBroadcast, "tree reduce": treeReduce, "flat gather": flatGather,
	"flat scatter": flatScatter, "direct alltoall": directAllToAll, "tiered alltoall": tieredAllToAll,
	"hierarchical": hierarchical, "halo": halo, "total": total,
}
