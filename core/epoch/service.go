package epoch

import (
	"context"
	"errors"
	"runtime"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/suspended"
)

// Service has the collectives of an epoch that the library itself needs.
type Service struct {
	e       *Epoch
	options Options
	partOf  plan.Collective // the call that its collectives are parts of; 0: none
}

var _ suspended.Service = Service{}

// Service returns collectives that do not wait for a recovery, and fail where a member dies.
func (e *Epoch) Service() Service {
	return Service{e: e, options: Options{Internal: true, FailFast: true}}
}

// ServiceOfSplit returns collectives of a split, which users call, and which survivors complete.
func (e *Epoch) ServiceOfSplit() Service { return Service{e: e, partOf: plan.Split} }

// Gather returns the numbers of all ranks, by rank.
func (s Service) Gather(ctx context.Context, mine ...int64) ([]int64, error) {
	n, size := len(mine), s.e.Size()
	all := make([]int64, n*size)
	var pin pinner
	defer pin.Unpin()
	op := call.Operation{Collective: plan.AllGather, DType: reduce.Int64, PartOf: s.partOf,
		In: []unsafe.Pointer{pin.pin(&mine[0])}, InCounts: []uint64{uint64(n)}}
	for r := range size {
		op.Out = append(op.Out, pin.pin(&all[n*r]))
		op.OutCounts = append(op.OutCounts, uint64(n))
	}
	err := s.run(ctx, op)
	return all, err
}

// Broadcast sends the bytes of a rank to all others.
func (s Service) Broadcast(ctx context.Context, root int, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	var pin pinner
	defer pin.Unpin()
	block, counts := pin.blocks([][]byte{data})
	return s.run(ctx, call.Operation{Collective: plan.Broadcast, DType: reduce.Uint8,
		Root: root, In: block, Out: block, InCounts: counts, OutCounts: counts})
}

// Exchange sends bytes to ranks, and receives from ranks.
func (s Service) Exchange(ctx context.Context, in, out [][]byte) error {
	var pin pinner
	defer pin.Unpin()
	op := call.Operation{Collective: plan.AllToAll, DType: reduce.Uint8}
	op.In, op.InCounts = pin.blocks(in)
	op.Out, op.OutCounts = pin.blocks(out)
	return s.run(ctx, op)
}

// Barrier returns when all ranks have called it.
func (s Service) Barrier(ctx context.Context) error {
	return s.run(ctx, call.Operation{Collective: plan.Barrier})
}

// run runs a collective until the context ends. If the context ends before its deadline the epoch
// fails, because others may have begun the collective.
func (s Service) run(ctx context.Context, op call.Operation) error {
	o := s.options
	o.WaitSoon, op.Programs = true, call.NoProgram
	if t, ok := ctx.Deadline(); ok {
		o.Timeout = max(time.Until(t), 1) // 0 would mean the communicator's
	}
	defer context.AfterFunc(ctx, func() {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			s.e.giveUp()
		}
	})()
	w, err := s.e.Start(o, []call.Operation{op})
	if err == nil {
		_, err = w.Wait(-1)
	}
	return err
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
