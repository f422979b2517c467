package call

import (
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
)

// Name names operations that are started together by the first of them.
func Name(operations []Operation) string {
	if len(operations) == 0 {
		return ""
	}
	return operations[0].Message().Name()
}

// Describe puts a message into words, as in "allreduce(float32, 8 elements, SUM)". The message may
// come from a peer: its numbers need not name anything.
func Describe(m plan.Message) string {
	c := plan.Collective(m.Collective)
	if to, ok := sideStep(m); ok {
		return fmt.Sprintf("%v, side-stepped to %s", c, to)
	}
	switch c {
	case plan.Barrier, plan.MonitoredBarrier, plan.Split, plan.RegisterProgram, plan.UnregisterProgram,
		plan.ExchangeMemory:
		return c.String()
	}
	words := []string{reduce.DType(m.DType).String()}
	if c != plan.AllToAll {
		words = append(words, fmt.Sprintf("%d elements", m.Count))
	}
	if c.Reduces() {
		words = append(words, reduce.Op(m.Op).String())
	}
	if m.Schedule != 0 && c == plan.AllToAll {
		words = append(words, "schedule "+plan.Schedule(m.Schedule).String())
	} else if m.Schedule != 0 {
		words = append(words, "by a program")
	}
	if m.Root >= 0 {
		words = append(words, fmt.Sprintf("root %d", m.Root))
	}
	return c.String() + "(" + strings.Join(words, ", ") + ")"
}

// Aftermath is what a rank finds in its buffers of a collective that has failed; "" where there are
// none.
func (o *Operation) Aftermath(rank int, begun bool) string {
	in, out := o.Uses(rank)
	result := out && slices.ContainsFunc(o.OutCounts, func(n uint64) bool { return n > 0 })
	inPlace := func(p unsafe.Pointer) bool { return p != nil && slices.Contains(o.Out, p) }
	switch {
	case len(o.InCounts)+len(o.OutCounts) == 0:
		return ""
	case !begun, !result, o.Collective == plan.Broadcast && o.Root == rank:
		return "It has not changed its buffers"
	case o.form().sharing == same, in && slices.ContainsFunc(o.In, inPlace):
		return "Its buffer, into which the result was to come in place, holds no usable data"
	case !in:
		return "Its output holds no usable data"
	}
	return "Its output holds no usable data, its input is as it was"
}
