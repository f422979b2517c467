package core

import (
	"context"
	"errors"

	"github.com/goccl/goccl/core/epoch"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/program"
	"github.com/goccl/goccl/core/tune"
)

// RegisterProgram has a program run the collectives that it fits, from the next one on, until the
// members change: those with its collective and its root, of minBytes to maxBytes in a rank's
// larger buffer, both inclusive (0, 0: as the program says; a maxBytes of 0: no limit), and with a
// dtype and an op whose sums it may order. Of several programs the last runs them. Algorithms that
// GOCCL_ALGO names for the collective come first.
//
// It is a collective call: all ranks give the same program and lengths. If one does not, or is
// refused, none has the program: those get ErrInvalidArgument that were refused, the others
// ErrMismatch, and the communicator goes on.
func (c *Comm) RegisterProgram(
	ctx context.Context, p *program.Checked, minBytes, maxBytes int64,
) error {
	if minBytes == 0 && maxBytes == 0 {
		minBytes, maxBytes = p.MinBytes, p.MaxBytes
	}
	return c.changePrograms(plan.RegisterProgram, func(e *epoch.Epoch) error {
		return e.RegisterProgram(ctx, tune.Registered{Checked: p, MinBytes: minBytes,
			MaxBytes: maxBytes})
	})
}

// UnregisterProgram undoes RegisterProgram, from the next collective on. It is a collective call,
// too.
func (c *Comm) UnregisterProgram(ctx context.Context, p *program.Checked) error {
	return c.changePrograms(plan.UnregisterProgram, func(e *epoch.Epoch) error {
		return e.UnregisterProgram(ctx, p)
	})
}

// changePrograms changes the programs of the present epoch. It fails where the members change
// before that.
func (c *Comm) changePrograms(what plan.Collective, change func(*epoch.Epoch) error) error {
	e := c.holdEpoch()
	c.changing.Unlock()
	err := change(e)
	if errors.Is(err, epoch.ErrOver) {
		return e.Members.Errorf(fault.ErrRevoked, "the members have changed").
			During(what.String(), 0)
	}
	return err
}
