package program

import (
	"slices"

	"github.com/goccl/goccl/core/plan"
)

// operand is what a Combine reads.
type operand struct {
	plan.Ref
	tree    int32
	partial bool
}

// reduction makes the steps of one reduction.
type reduction struct {
	*emitter
	bytes  int64 // of elements
	spares []spares
}

// spares are slots that a reduction has for a while.
type spares struct{ slot, count int }

// reduce reduces what has come, and what lies here.
func (e *emitter) reduce(x *entry, w int, bytes int64) {
	r := reduction{emitter: e, bytes: bytes}
	e.displace(&e.lists.all[x.to], w, x.from)
	operands := make([]operand, len(x.from))
	for _, s := range x.from {
		e.settle(s, w)
	}
	for i, s := range x.from {
		operands[i] = operand{e.find(s, w), x.operands[i], e.trees.isPartial(x.operands[i])}
	}
	for _, s := range x.from {
		e.forget(s, w)
	}
	to := operand{e.write(x.to, w), x.tree, e.lists.all[x.to].partial}
	if e.Collective == plan.Custom {
		operands = r.groups(operands)
	} else {
		slices.SortStableFunc(operands, func(a, b operand) int {
			return int(e.trees.first(a.tree) - e.trees.first(b.tree))
		})
		if e.Canonical {
			operands = r.subtrees(operands)
		}
	}
	r.combine(to, operands)
	for _, s := range r.spares {
		e.give(s.slot, s.count)
	}
	for _, s := range x.from {
		e.done(s, w)
	}
}

// subtrees are what a Combine is to read for the canonical order, from operands that make up a
// subtree: sums over as many ranks each, but the last. Others are made of what it has got.
func (r *reduction) subtrees(operands []operand) []operand {
	if len(operands) == 1 || r.areEven(operands) {
		return operands
	}
	lo, hi := r.ranks(operands)
	half := int32(1)
	for 2*half < hi-lo {
		half *= 2
	}
	at := slices.IndexFunc(operands, func(o operand) bool { return r.trees.first(o.tree) >= lo+half })
	return []operand{r.sum(operands[:at]), r.sum(operands[at:])}
}

// sum is a sum of operands that make up a subtree.
func (r *reduction) sum(operands []operand) operand {
	if len(operands) == 1 {
		return operands[0]
	}
	trees := make([]int32, len(operands))
	for i, o := range operands {
		trees[i] = o.tree
	}
	n, _ := r.trees.sum(trees)
	to := operand{r.between(), n, true}
	r.combine(to, r.subtrees(operands))
	return to
}

// areEven reports whether operands are over as many ranks each, a power of two, but for the last,
// which may end with the last rank before.
func (r *reduction) areEven(operands []operand) bool {
	lo, hi := r.ranks(operands[:1])
	each := hi - lo
	for i, o := range operands {
		lo, hi := r.ranks([]operand{o})
		if hi-lo != each && (i < len(operands)-1 || hi-lo > each) {
			return false
		}
	}
	return each&(each-1) == 0
}

// ranks are those that operands are over, of which each goes on where the one before it ends.
func (r *reduction) ranks(operands []operand) (lo, hi int32) {
	last := r.trees.all[operands[len(operands)-1].tree].ranks
	return r.trees.first(operands[0].tree), last[len(last)-1].hi
}

// groups are what a Combine of a Custom collective is to read: no more than a run has room for.
func (r *reduction) groups(operands []operand) []operand {
	for most := max(r.Ranks, 2); len(operands) > most; {
		to := operand{Ref: r.between()}
		r.combine(to, operands[:most])
		operands = slices.Concat([]operand{to}, operands[most:])
	}
	return operands
}

// between is a place for what a reduction has between.
func (r *reduction) between() plan.Ref {
	count := 1
	if room := r.room(); room > 0 {
		count = max(1, int((r.bytes*r.scale+room-1)/room))
	}
	slot := r.take(count)
	r.spares = append(r.spares, spares{slot, count})
	return r.spareRef(slot)
}

// combine combines operands. Where there are stages, raw inputs that come with partial sums become
// such before.
func (r *reduction) combine(to operand, operands []operand) {
	staged := r.q.PartialSize > 0
	sums := slices.ContainsFunc(operands, func(o operand) bool { return o.partial })
	if staged && sums {
		operands = slices.Clone(operands)
		for i, o := range operands {
			if !o.partial {
				operands[i] = operand{r.between(), o.tree, true}
				r.step(operands[i], []operand{o})
			}
		}
	}
	// What is longer or shorter than what it is made of cannot take its place.
	if r.scale > 1 && to.partial != sums && slices.ContainsFunc(operands, func(o operand) bool {
		return o.Space == plan.Scratch && o.Ref == to.Ref
	}) {
		result := operand{r.between(), to.tree, to.partial}
		r.step(result, operands)
		bytes := r.bytes
		if to.partial {
			bytes *= r.scale
		}
		r.emit(plan.Step{Op: plan.Copy, Bytes: bytes, Dst: to.Ref, Src: []plan.Ref{result.Ref}})
		return
	}
	r.step(to, operands)
}

// step makes a Combine of operands that are all raw, or all partial sums.
func (r *reduction) step(to operand, operands []operand) {
	s := plan.Step{Op: plan.Combine, Bytes: r.bytes, Dst: to.Ref, Src: make([]plan.Ref, len(operands))}
	for i, o := range operands {
		s.Src[i] = o.Ref
	}
	if operands[0].partial {
		s.Bytes *= r.scale
	}
	if r.q.PartialSize > 0 {
		switch {
		case operands[0].partial && to.partial:
			s.Stage = plan.Middle
		case operands[0].partial:
			s.Stage = plan.Last
		case to.partial:
			s.Stage = plan.First
		}
	}
	r.emit(s)
}
