package goccl

import (
	"context"

	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/program"
	"github.com/goccl/goccl/core/program/formats"
)

// Program is a collective of a user's own: moves of all ranks, in one order. It never changes, and
// any goroutine may use it.
type Program struct{ checked *program.Checked }

// LoadProgram reads a program from the text of a file, and checks it: JSON of the format
// "goccl.plan/1", a plan of MSCCL++ as JSON, or of MSCCL as XML. The error is [ErrInvalidArgument],
// and says what is wrong, and where.
func LoadProgram(text []byte) (*Program, error) {
	checked, err := formats.Read(text)
	if err != nil {
		return nil, fault.Errorf(ErrInvalidArgument, "program: %v", err)
	}
	return &Program{checked}, nil
}

// Name is the program's.
func (p *Program) Name() string { return p.checked.Name }

// Ranks is for how many ranks the program is.
func (p *Program) Ranks() int { return p.checked.Ranks }

// RegisterProgram has a program run the collectives of the group that it fits, from the next one
// on, until the members change: those that it is of, with its root, of minBytes to maxBytes in a
// rank's larger buffer, both inclusive (0, 0: as the program says; a maxBytes of 0: no limit), and
// with a type and an op whose sums it may order. Of several programs the last runs them. Algorithms
// that GOCCL_ALGO names for the collective come first.
//
// All ranks call it, with the same program and lengths. If one does not, or is refused, none has
// the program: the error of those that were refused is [ErrInvalidArgument], that of the others
// [ErrMismatch], and the group goes on.
func (c *Comm) RegisterProgram(ctx context.Context, p *Program, minBytes, maxBytes int64) error {
	err := c.core.RegisterProgram(ctx, p.checked, minBytes, maxBytes)
	return public(ctx, "program_register", err)
}

// UnregisterProgram undoes [Comm.RegisterProgram], from the next collective on. All ranks call it.
func (c *Comm) UnregisterProgram(ctx context.Context, p *Program) error {
	return public(ctx, "program_unregister", c.core.UnregisterProgram(ctx, p.checked))
}

// RunProgram runs a program once. in and out are as the collective of the program has them; of a
// custom one each is as many chunks as the program says, all of which are equally long. Of a
// broadcast out is the buffer, and in is not used. The op counts where the program reduces.
func RunProgram[T Element](ctx context.Context, c *Comm, p *Program, in, out []T, op Op) error {
	return c.Run(ctx, RunProgramOp(p, in, out, op))
}

// RunProgramOp is [RunProgram] for [Comm.Run] and [Comm.Start].
func RunProgramOp[T Element](p *Program, in, out []T, op Op) Operation {
	o := Operation{collective: p.checked.Collective, program: p.checked, dtype: dtypeOf[T](), op: op,
		root: p.checked.Root, in: slice("in", in), out: slice("out", out)}
	if o.collective == plan.Broadcast {
		o.in = o.out
	}
	return o
}
