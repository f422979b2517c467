package core

import (
	"context"
	"runtime"
	"unsafe"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/checkpoint"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
)

// service is a communicator's collectives for what it does itself: they do not wait for a recovery,
// and fail where a member dies.
type service struct{ c *Comm }

var _ checkpoint.Service = service{}

// Gather returns the numbers of all ranks, by rank.
func (s service) Gather(ctx context.Context, mine ...int64) ([]int64, error) {
	return s.c.gather(ctx, ofRecovery, false, mine...)
}

// Broadcast sends the bytes of a rank to all others.
func (s service) Broadcast(ctx context.Context, root int, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	var pin pinner
	defer pin.Unpin()
	block, counts := pin.blocks([][]byte{data})
	return s.c.run(ctx, ofRecovery, call.Operation{Collective: plan.Broadcast, DType: reduce.Uint8,
		Root: root, In: block, Out: block, InCounts: counts, OutCounts: counts})
}

// Exchange sends bytes to ranks, and receives from ranks.
func (s service) Exchange(ctx context.Context, in, out [][]byte) error {
	var pin pinner
	defer pin.Unpin()
	op := call.Operation{Collective: plan.AllToAll, DType: reduce.Uint8}
	op.In, op.InCounts = pin.blocks(in)
	op.Out, op.OutCounts = pin.blocks(out)
	return s.c.run(ctx, ofRecovery, op)
}

// Barrier returns when all ranks have called it.
func (s service) Barrier(ctx context.Context) error {
	return s.c.run(ctx, ofRecovery, call.Operation{Collective: plan.Barrier})
}

// gather returns some numbers of each rank.
func (c *Comm) gather(ctx context.Context, o CallOptions, ofSplit bool,
	mine ...int64) ([]int64, error) {
	n, size := len(mine), c.Size()
	all := make([]int64, n*size)
	var pin pinner
	defer pin.Unpin()
	op := call.Operation{Collective: plan.AllGather, DType: reduce.Int64, OfSplit: ofSplit,
		In: []unsafe.Pointer{pin.pin(&mine[0])}, InCounts: []uint64{uint64(n)}}
	for r := range size {
		op.Out = append(op.Out, pin.pin(&all[n*r]))
		op.OutCounts = append(op.OutCounts, uint64(n))
	}
	err := c.run(ctx, o, op)
	return all, err
}

// pinner pins Go memory for an operation.
type pinner struct{ runtime.Pinner }

func (p *pinner) pin(v *int64) unsafe.Pointer {
	p.Pin(v)
	return unsafe.Pointer(v)
}

// blocks pins memory of bytes.
func (p *pinner) blocks(all [][]byte) (at []unsafe.Pointer, counts []uint64) {
	for _, b := range all {
		var block unsafe.Pointer
		if len(b) > 0 {
			first := unsafe.SliceData(b)
			p.Pin(first)
			block = unsafe.Pointer(first)
		}
		at, counts = append(at, block), append(counts, uint64(len(b)))
	}
	return at, counts
}
