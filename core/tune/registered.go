package tune

import (
	"math"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/program"
	"github.com/goccl/goccl/core/reduce"
)

// MostPrograms is how many programs a group may register.
const MostPrograms = 128

// Registered is a program that runs operations.
type Registered struct {
	*program.Checked
	Number             int   // among the group's, from 1 on; 0: it runs one operation
	MinBytes, MaxBytes int64 // of a rank's larger buffer, both inclusive; MaxBytes 0: no limit
}

// Same reports whether two are the same program, or both nil.
func (r *Registered) Same(o *Registered) bool {
	return r == o || r != nil && o != nil && r.Checked == o.Checked && r.Number == o.Number
}

// Algorithm is what an operation is noted to have run by.
func (r *Registered) Algorithm() plan.Algorithm {
	return plan.Registered + plan.Algorithm(r.Number)
}

// Register has a program run the operations that it fits. Of several the last one does.
func (s *Shape) Register(r *Registered) { s.programs = append(s.programs, r) }

// Unregister undoes it.
func (s *Shape) Unregister(number int) {
	for i, r := range s.programs {
		if r.Number == number {
			s.programs = append(s.programs[:i:i], s.programs[i+1:]...)
			return
		}
	}
}

// Programs are those that are registered, in their order.
func (s *Shape) Programs() []*Registered { return s.programs }

// CanRun refuses a program that fits no operation of the group.
func (s *Shape) CanRun(p *program.Checked) error {
	if err := p.Fits(s.Size, s.PerHost); err != nil {
		return err
	}
	return p.CanRun()
}

// ProgramFor is the program that runs an operation; nil: none does, and Choose names the algorithm.
// Algorithms that the user names for a collective come first.
func (s *Shape) ProgramFor(op *call.Operation) *Registered {
	if op.Program != nil {
		return &Registered{Checked: op.Program}
	}
	if len(s.programs) == 0 || op.Programs == call.NoProgram || s.Algorithms[op.Collective] != nil ||
		op.Collective == plan.AllToAll && op.Programs != call.EqualBlocks {
		return nil
	}
	bytes := int64(op.Total())
	for i := len(s.programs) - 1; i >= 0; i-- {
		r := s.programs[i]
		if r.Does(op.Collective, s.Size, op.Root) == nil && bytes >= r.MinBytes &&
			(r.MaxBytes == 0 || bytes <= r.MaxBytes) &&
			(!op.Reduces() || call.CheckSums(r.Checked, op.DType, op.Op) == nil) {
			return r
		}
	}
	return nil
}

// programParams is what a program's planner is told of an operation.
func (s *Shape) programParams(op *call.Operation, p *program.Checked) plan.Params {
	q := plan.Params{Collective: op.Collective, Algorithm: plan.Registered, Rank: s.Rank, Size: s.Size,
		Root: op.Root, InBytes: op.InBytes(), OutBytes: op.OutBytes(),
		ElemSize: int64(op.DType.Size()), Chunk: s.Chunk, Slots: s.Slots, Ahead: s.Ahead,
		Ports: s.ports, Memory: s.AllMemory, Oversubscribed: s.Oversubscribed,
		Scratch: program.MostScratch, AnyOrder: !p.Canonical, Thresholds: s.Thresholds.Thresholds}
	if p.Partial {
		q.PartialSize = int64(reduce.PartialSize(op.DType, op.Op))
	}
	return q
}

// SameDigest reports whether two programs do the same.
func (r *Registered) SameDigest(o *Registered) bool { return r.Digest() == o.Digest() }

// Overlaps reports whether there are operations that both fit, but for dtypes and ops.
func (r *Registered) Overlaps(o *Registered) bool {
	most := func(r *Registered) int64 {
		if r.MaxBytes == 0 {
			return math.MaxInt64
		}
		return r.MaxBytes
	}
	return r.Collective == o.Collective && r.Root == o.Root && r.MinBytes <= most(o) &&
		o.MinBytes <= most(r)
}
