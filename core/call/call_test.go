package call

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
)

const (
	size = 3
	root = 1
)

// good is a call that fits a rank, with counts of its own for each block where the form lets it.
func good(c plan.Collective, rank int) Operation {
	o := Operation{Collective: c, DType: reduce.Int32, Root: root, Tag: 5}
	uneven := []uint64{4, 1, 2}
	list := func(n blocks) []uint64 {
		switch n {
		case each, many:
			return uneven
		case one:
			return uneven[rank : rank+1]
		}
		return nil
	}
	f := o.form()
	o.InCounts, o.OutCounts = list(f.in), list(f.out)
	switch c {
	case plan.Gather, plan.Scatter:
		o.InCounts, o.OutCounts = slices.Repeat([]uint64{4}, 1), slices.Repeat([]uint64{4}, size)
		if c == plan.Scatter {
			o.InCounts, o.OutCounts = o.OutCounts, o.InCounts
		}
	}
	in, out := o.Uses(rank)
	if in {
		o.In = memory(o.InCounts)
	}
	if out {
		o.Out = memory(o.OutCounts)
	}
	return o
}

// memory is a block for each count, none of which touches another.
func memory(counts []uint64) []unsafe.Pointer {
	var all []unsafe.Pointer
	for _, n := range counts {
		all = append(all, unsafe.Pointer(unsafe.SliceData(make([]int32, n+1))))
	}
	return all
}

// Each collective takes what fits its form, and refuses one block or too many elements on a side.
func TestCheckForms(t *testing.T) {
	for c := plan.AllReduce; c <= plan.Recv; c++ {
		for rank := range size {
			o := good(c, rank)
			if err := o.Check(rank, size); err != nil {
				t.Errorf("%v, rank %d: %v", c, rank, err)
			}
			for _, s := range []struct {
				name   string
				form   blocks
				counts func(*Operation) *[]uint64
			}{
				{"in", o.form().in, func(o *Operation) *[]uint64 { return &o.InCounts }},
				{"out", o.form().out, func(o *Operation) *[]uint64 { return &o.OutCounts }},
			} {
				bad := good(c, rank)
				counts := s.counts(&bad)
				*counts = append(slices.Clone(*counts), 1)
				refused(t, &bad, rank, s.name+" has ", "blocks")
				if s.form == none {
					continue
				}
				bad = good(c, rank)
				counts = s.counts(&bad)
				*counts = slices.Clone(*counts)
				(*counts)[len(*counts)-1] = math.MaxInt64
				in, out := bad.Uses(rank)
				if s.name == "in" && in || s.name == "out" && out {
					refused(t, &bad, rank, "more than memory can hold")
				}
			}
		}
	}
	refused(t, &Operation{Collective: plan.Custom + 1}, 0, "no such collective")
}

func refused(t *testing.T, o *Operation, rank int, says ...string) {
	t.Helper()
	err := o.Check(rank, size)
	if !errors.Is(err, fault.ErrInvalidArgument) {
		t.Errorf("%v, rank %d: %v, want %q", o.Collective, rank, err, says)
		return
	}
	for _, text := range says {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%v, rank %d: %v, want %q", o.Collective, rank, err, text)
		}
	}
}

// What follows from the counts that all ranks know is compared with them.
func TestCheckCounts(t *testing.T) {
	const rank = 2
	for _, c := range []struct {
		collective plan.Collective
		in         bool // the counts that are changed
		at         int
		says       string // "": nothing follows
	}{
		{plan.AllReduce, false, 2, "out[2] has 3 elements, expected 2"},
		{plan.Reduce, false, 0, "out has 3 elements, expected 2"},
		{plan.Broadcast, false, 0, "out has 3 elements, expected 2"},
		{plan.AllGather, true, 0, "in has 3 elements, expected 2"},
		{plan.AllGather, false, 0, ""},
		{plan.ReduceScatter, false, 0, "out has 3 elements, expected 2"},
		{plan.ReduceScatter, true, 1, ""},
		{plan.Gather, false, 1, "out[1] has 5 elements, expected 4"},
		{plan.Scatter, true, 0, "in[0] has 5 elements, expected 4"},
		{plan.AllToAll, false, 2, "out[2] has 3 elements, expected 2"},
		{plan.AllToAll, false, 1, ""},
		{plan.AllToAll, true, 1, ""},
	} {
		o := good(c.collective, rank)
		counts := &o.OutCounts
		if c.in {
			counts = &o.InCounts
		}
		*counts = slices.Clone(*counts)
		(*counts)[c.at]++
		if c.says != "" {
			refused(t, &o, rank, c.says)
		} else if err := o.Check(rank, size); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// In place means one pair of blocks a rank, of all pairs.
func TestCheckOverlap(t *testing.T) {
	for c := plan.AllReduce; c <= plan.Recv; c++ {
		for rank := range size {
			for i := range good(c, rank).In {
				for j := range good(c, rank).Out {
					o := good(c, rank)
					o.InCounts, o.OutCounts = slices.Clone(o.InCounts), slices.Clone(o.OutCounts)
					for _, counts := range [][]uint64{o.InCounts, o.OutCounts} {
						for k := range counts {
							counts[k] = 4
						}
					}
					o.In, o.Out = memory(o.InCounts), memory(o.OutCounts)
					o.Out[j] = o.In[i]
					inPlace := map[plan.Collective]bool{
						plan.AllReduce: i == j, plan.Reduce: true, plan.Broadcast: true,
						plan.AllGather: j == rank, plan.Gather: j == rank,
						plan.ReduceScatter: i == rank, plan.Scatter: i == rank,
					}[c]
					err := o.Check(rank, size)
					if (err == nil) != inPlace {
						t.Errorf("%v, rank %d, in[%d] is out[%d]: %v", c, rank, i, j, err)
					}
					o.Out[j] = unsafe.Add(o.In[i], 4)
					if c != plan.Broadcast { // whose buffers are one
						refused(t, &o, rank, fmt.Sprintf("in[%d] and out[%d] overlap", i, j))
					}
				}
			}
		}
	}
}

// Ranks that call the same have equal messages, and others have not.
func TestMessages(t *testing.T) {
	seen := map[plan.Message]plan.Collective{}
	for c := plan.AllReduce; c <= plan.Barrier; c++ {
		var of [size]plan.Message
		for rank := range size {
			o := good(c, rank)
			if f := o.form(); f.in == one && f.out == one {
				o.InCounts, o.OutCounts = []uint64{7}, []uint64{7}
			}
			of[rank] = o.Message()
		}
		if of[0] != of[1] || of[0] != of[2] {
			t.Errorf("%v: %+v", c, of)
		}
		if other, ok := seen[of[0]]; ok {
			t.Errorf("%v and %v have the same message", c, other)
		}
		seen[of[0]] = c
	}
}

func TestDescribe(t *testing.T) {
	for want, m := range map[string]plan.Message{
		"allreduce(float32, 8 elements, SUM)": {DType: uint8(reduce.Float32), Count: 8, Root: -1},
		"broadcast(int8, 1 elements, root 2)": {Collective: uint8(plan.Broadcast), Count: 1, Root: 2},
		"alltoall(int8, schedule sequential)": {Collective: uint8(plan.AllToAll), Root: -1,
			Schedule: uint8(plan.Sequential)},
		"barrier":                      {Collective: uint8(plan.Barrier), Root: -1},
		"gather, side-stepped to gloo": SideStep(plan.Gather, "gloo"),
		"barrier, side-stepped to abcdefghijklmnop": SideStep(plan.Barrier,
			"abcdefghijklmnopqrstuvwxyz"),
		`barrier, side-stepped to a\x1bb`:        SideStep(plan.Barrier, "a\x1bb"),
		"collective(200)(dtype(99), 0 elements)": {Collective: 200, DType: 99, Root: -1},
	} {
		if got := Describe(m); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestDisjoint(t *testing.T) {
	var b [12]int32
	at := func(offsets ...int) (blocks []unsafe.Pointer) {
		for _, i := range offsets {
			blocks = append(blocks, unsafe.Pointer(&b[i]))
		}
		return blocks
	}
	for _, c := range []struct {
		name       string
		collective plan.Collective
		in, out    []unsafe.Pointer
		last       uint64 // count of the last output; all others are 4
		certain    bool
	}{
		{"one after the other", plan.AllReduce, at(0), at(4), 4, true},
		{"in place", plan.AllReduce, at(0), at(0), 4, false},
		{"overlapping", plan.AllReduce, at(3), at(0), 4, false},
		{"between", plan.AllGather, at(4), at(0, 8), 4, false},
		{"an empty block elsewhere", plan.AllGather, at(4), at(0, 8), 0, true},
		{"no inputs", plan.Scatter, nil, at(0), 4, true},
		{"broadcast", plan.Broadcast, nil, at(0), 4, false},
		{"alltoall", plan.AllToAll, at(0, 8), at(4, 4), 4, true},
	} {
		o := Operation{Collective: c.collective, DType: reduce.Int32, In: c.in, Out: c.out,
			InCounts:  slices.Repeat([]uint64{4}, 2),
			OutCounts: slices.Repeat([]uint64{4}, len(c.out))}
		o.OutCounts[len(c.out)-1] = c.last
		if got := o.Disjoint(); got != c.certain {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
