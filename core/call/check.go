package call

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/program"
	"github.com/goccl/goccl/core/reduce"
)

// Check refuses what no rank of a group may ask for.
func (o *Operation) Check(rank, size int) error {
	if int(o.Collective) >= len(forms) {
		return o.bad("no such collective")
	}
	if err := o.checkScalars(size); err != nil {
		return err
	}
	f := o.form()
	if err := o.checkBlocks(f, rank, size); err != nil {
		return err
	}
	if err := o.checkCounts(f, rank); err != nil {
		return err
	}
	if err := o.checkProgram(size); err != nil {
		return err
	}
	return o.checkOverlap(f, rank)
}

func (o *Operation) bad(format string, args ...any) error {
	return fault.Errorf(fault.ErrInvalidArgument, "%v: %s", o.Collective, fmt.Sprintf(format, args...))
}

// narrower says as what elements may travel.
func narrower(d reduce.DType) string {
	if reduce.Narrows(d, reduce.BFloat16) {
		return fmt.Sprintf("are %v and %v", reduce.BFloat16, reduce.Float16)
	}
	return fmt.Sprintf("is none: %v and %v are", reduce.Float32, reduce.Float64)
}

// checkScalars checks all that is not a block or a count.
func (o *Operation) checkScalars(size int) error {
	if !o.DType.Valid() {
		return o.bad("dtype is %d, allowed are the values of goccl_dtype", o.DType)
	}
	if o.Reduces() {
		if !o.Op.Valid() {
			return o.bad("op is %d, allowed are the values of goccl_reduce_op", o.Op)
		}
		if err := reduce.Check(o.DType, o.Op); err != nil {
			return o.bad("%v", err)
		}
	}
	exists := o.Root >= 0 && o.Root < size
	if o.Collective.Rooted() && !exists {
		return o.bad("root is %d, allowed are 0 to %d", o.Root, size-1)
	}
	if d := reduce.DType(o.Wire - 1); o.Wire > 0 && !reduce.Narrows(o.DType, d) {
		return o.bad("wire dtype is %v, allowed for elements of %v %s", d, o.DType, narrower(o.DType))
	}
	if o.Wire > 0 && o.PointToPoint() {
		return o.bad("a wire dtype is given: allowed are those of collectives, and none here")
	}
	if o.Feed != nil && o.PointToPoint() {
		return o.bad("a feed is given: allowed are those of collectives, and none here")
	}
	if o.PointToPoint() {
		if !exists && !(o.Collective == plan.Recv && o.Root == AnySource) {
			return o.bad("peer is %d, allowed are 0 to %d", o.Root, size-1)
		}
		if o.Tag < 0 || o.Tag > math.MaxInt32 {
			return o.bad("tag is %d, allowed are 0 to %d", o.Tag, math.MaxInt32)
		}
	}
	return nil
}

// checkProgram refuses a program that cannot run the operation.
func (o *Operation) checkProgram(size int) error {
	p := o.Program
	bad := func(err error) error { return o.bad("program %q %v", p.Name, err) }
	if p == nil {
		if o.Collective == plan.Custom {
			return o.bad("no program is given")
		}
		if o.Programs != EqualBlocks || o.Collective != plan.AllToAll {
			return nil
		}
		for _, counts := range [][]uint64{o.InCounts, o.OutCounts} {
			for i, n := range counts {
				if n != o.InCounts[0] {
					return o.bad("the call says that all blocks are equally long; in[0] has %d elements, and "+
						"another one (block %d) %d", o.InCounts[0], i, n)
				}
			}
		}
		return nil
	}
	if err := p.Does(o.Collective, size, o.Root); err != nil {
		return bad(err)
	}
	if err := p.CanRun(); err != nil {
		return bad(err)
	}
	if err := p.CheckCounts(o.InCounts, o.OutCounts); err != nil {
		return bad(err)
	}
	if err := CheckSums(p, o.DType, o.Op); o.Reduces() && err != nil {
		return bad(err)
	}
	return nil
}

// CheckSums refuses an op whose result by the program would not be what is promised of it.
func CheckSums(p *program.Checked, d reduce.DType, op reduce.Op) error {
	nests := reduce.Nests(d, op)
	switch {
	case p.Collective == plan.Custom && !nests,
		p.Partial && !nests && reduce.PartialSize(d, op) == 0:
		return fmt.Errorf("reduces what it has reduced before, which %v of %v does not allow", op, d)
	case p.Collective == plan.Custom, p.Canonical, reduce.IsExact(d, op):
		return nil
	case !p.AnyOrder:
		return fmt.Errorf("sums in an order of its own, and so has other bits than other algorithms: it "+
			"must say order \"plan\" for %v of %v", op, d)
	case !p.SameBits:
		return fmt.Errorf("sums in another order on other ranks, whose results would differ for %v of %v",
			op, d)
	}
	return nil
}

// checkBlocks checks that there are as many blocks and counts as the form has, and that blocks with
// elements have an address.
func (o *Operation) checkBlocks(f form, rank, size int) error {
	usesIn, usesOut := o.Uses(rank)
	for _, s := range [2]struct {
		name   string
		form   blocks
		blocks []unsafe.Pointer
		counts []uint64
		used   bool
	}{{"in", f.in, o.In, o.InCounts, usesIn}, {"out", f.out, o.Out, o.OutCounts, usesOut}} {
		want := max(len(o.InCounts), 1)
		switch s.form {
		case none:
			want = 0
		case one:
			want = 1
		case each:
			want = size
		}
		if len(s.counts) != want {
			return o.bad("%s has %d blocks, expected %d", s.name, len(s.counts), want)
		}
		if !s.used {
			continue
		}
		if len(s.blocks) != want {
			return o.bad("%s has %d blocks and %d counts", s.name, len(s.blocks), want)
		}
		for i, n := range s.counts {
			if n > math.MaxInt64/16/uint64(want) {
				return o.bad("%s[%d] has %d elements, which is more than memory can hold", s.name, i, n)
			}
			if n > 0 && s.blocks[i] == nil {
				return o.bad("%s[%d] is NULL, but has %d elements", s.name, i, n)
			}
		}
	}
	return nil
}

// checkCounts compares the counts of the two sides, as far as one follows from the other. It blames
// the side that not all ranks know.
func (o *Operation) checkCounts(f form, rank int) error {
	if f.in == none || f.out == none || o.Collective == plan.Custom {
		return nil
	}
	name, got, gotForm, known, knownForm := "out", o.OutCounts, f.out, o.InCounts, f.in
	if f.known == outputs {
		name, got, gotForm, known, knownForm = "in", o.InCounts, f.in, o.OutCounts, f.out
	}
	for i, n := range got {
		from := 0
		switch knownForm {
		case many:
			from = i
		case each:
			from = rank
		}
		if n == known[from] || gotForm == each && knownForm == each && i != rank {
			continue
		}
		if gotForm == each && knownForm == each {
			return o.bad("out[%d] has %d elements, expected %d as in[%d]: this rank sends them to itself",
				rank, n, known[from], rank)
		}
		if gotForm != one {
			name = fmt.Sprintf("%s[%d]", name, i)
		}
		return o.bad("%s has %d elements, expected %d", name, n, known[from])
	}
	return nil
}

// mostPairs bounds the time for comparing all inputs with all outputs. Beyond it only blocks of
// equal numbers are compared.
const mostPairs = 1 << 16

// checkOverlap refuses inputs and outputs that share memory in any other way than the one in which
// the collective is in place.
func (o *Operation) checkOverlap(f form, rank int) error {
	usesIn, usesOut := o.Uses(rank)
	if !usesIn || !usesOut || f.sharing == same {
		return nil
	}
	size := uint64(o.DType.Size())
	all := len(o.In)*len(o.Out) <= mostPairs
	for i, in := range o.In {
		for j, out := range o.Out {
			if !all && i != j {
				continue
			}
			a, b := uintptr(in), uintptr(out)
			an, bn := uintptr(o.InCounts[i]*size), uintptr(o.OutCounts[j]*size)
			if an == 0 || bn == 0 || a >= b+bn || b >= a+an {
				continue
			}
			if a == b && an == bn && f.sharing == own && f.own(i, j, rank) {
				continue
			}
			return o.bad("in[%d] and out[%d] overlap: they must be the same memory where the "+
				"operation is in place, and else disjoint", i, j)
		}
	}
	return nil
}

// Disjoint reports whether inputs and outputs share no memory for certain: all of the ones lie
// before all of the others. Where Check lets no memory be shared they always do.
func (o *Operation) Disjoint() bool {
	switch o.form().sharing {
	case apart:
		return true
	case same:
		return false
	}
	size := uint64(o.DType.Size())
	span := func(blocks []unsafe.Pointer, counts []uint64) (from, to uintptr) {
		for i, b := range blocks {
			if i >= len(counts) || counts[i] == 0 {
				continue
			}
			at := uintptr(b)
			if end := at + uintptr(counts[i]*size); to == 0 {
				from, to = at, end
			} else {
				from, to = min(from, at), max(to, end)
			}
		}
		return from, to
	}
	inFrom, inTo := span(o.In, o.InCounts)
	outFrom, outTo := span(o.Out, o.OutCounts)
	return inTo <= outFrom || outTo <= inFrom
}
