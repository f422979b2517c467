package sim

import "github.com/goccl/goccl/core/plan"

// span is what a rank did, or waited for, in a part of its time.
type span struct {
	step         int32
	wait         *wait // nil: it did the step
	begin, until int64
	does         work
}

// timeline gives a function all spans of a rank, in order: they follow one another without a gap,
// from 0 to its end. It goes on while the function returns true.
func (s *simulation) timeline(r int32, each func(span) bool) {
	k := &s.ranks[r]
	now, next := int64(0), 0
	for i := range k.steps {
		for ; next < len(k.waits) && int(k.waits[next].step) == i; next++ {
			w := &k.waits[next]
			if !each(span{step: int32(i), wait: w, begin: w.from, until: w.until}) {
				return
			}
			now = w.until
		}
		does := s.cost(r, &k.steps[i])
		end := now + does.sum()
		if !each(span{step: int32(i), begin: now, until: end, does: does}) {
			return
		}
		now = end
	}
}

// sends gives a function the rings into which a step of a rank puts a message.
func (s *simulation) sends(r int32, p *step, each func(ring int32)) {
	switch p.op {
	case plan.Put, plan.Offer:
		each(p.ring)
	case plan.PutToAll:
		for i := range s.ranks[r].peers {
			each(s.ranks[r].rings + int32(i))
		}
	}
}

// cause is what most of a span went by on.
func (x *span) cause() Cause {
	switch {
	case x.wait != nil:
		return x.wait.on
	case x.does.reducing > 0:
		return Reducing
	case x.does.copying > x.does.overhead:
		return Copying
	}
	return Overhead
}
