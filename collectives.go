package goccl

import (
	"context"

	"github.com/goccl/goccl/core/plan"
)

// AllReduce combines the slices of all ranks, element by element, and gives all ranks the result.
//
// Lengths are in elements, the same on all ranks for in and out. out may be in. Every collective of
// this package returns when its own slices are ready, which need not mean that other ranks are
// done. It waits in the calling goroutine, which holds a thread meanwhile. See [Comm.Run] for what
// ctx does.
func AllReduce[T Element](ctx context.Context, c *Comm, in, out []T, op Op) error {
	return c.Run(ctx, AllReduceOp(in, out, op))
}

// AllReduceOp is [AllReduce] for [Comm.Run] and [Comm.Start].
func AllReduceOp[T Element](in, out []T, op Op) Operation {
	return Operation{collective: plan.AllReduce, dtype: dtypeOf[T](), op: op, in: slice("in", in),
		out: slice("out", out)}
}

// Reduce combines the slices of all ranks, element by element, and gives the root the result. out
// is used on the root only, where it is as long as in, and may be in.
func Reduce[T Element](ctx context.Context, c *Comm, in, out []T, op Op, root int) error {
	return c.Run(ctx, ReduceOp(in, out, op, root))
}

// ReduceOp is [Reduce] for [Comm.Run] and [Comm.Start].
func ReduceOp[T Element](in, out []T, op Op, root int) Operation {
	return Operation{collective: plan.Reduce, dtype: dtypeOf[T](), op: op, root: root,
		in: slice("in", in), out: slice("out", out)}
}

// Broadcast gives all ranks what is in the root's slice. It is as long on all ranks.
func Broadcast[T Element](ctx context.Context, c *Comm, buffer []T, root int) error {
	return c.Run(ctx, BroadcastOp(buffer, root))
}

// BroadcastOp is [Broadcast] for [Comm.Run] and [Comm.Start].
func BroadcastOp[T Element](buffer []T, root int) Operation {
	return Operation{collective: plan.Broadcast, dtype: dtypeOf[T](), root: root,
		in: slice("buffer", buffer)}
}

// AllGather gives all ranks the slices of all ranks, one after the other in the order of ranks.
//
// in is as long on all ranks, and out as long as all of them together. in may be this rank's part
// of out: out[rank*len(in):][:len(in)].
func AllGather[T Element](ctx context.Context, c *Comm, in, out []T) error {
	return c.Run(ctx, AllGatherOp(in, out))
}

// AllGatherOp is [AllGather] for [Comm.Run] and [Comm.Start].
func AllGatherOp[T Element](in, out []T) Operation {
	return Operation{collective: plan.AllGather, dtype: dtypeOf[T](), in: slice("in", in),
		out: slice("out", out)}
}

// AllGatherV is [AllGather] with slices that have lengths of their own: out[r] takes rank r's. All
// ranks give the same lengths in out, and in is as long as this rank's there.
func AllGatherV[T Element](ctx context.Context, c *Comm, in []T, out [][]T) error {
	return c.Run(ctx, AllGatherVOp(in, out))
}

// AllGatherVOp is [AllGatherV] for [Comm.Run] and [Comm.Start].
func AllGatherVOp[T Element](in []T, out [][]T) Operation {
	return Operation{collective: plan.AllGather, dtype: dtypeOf[T](), in: slice("in", in),
		out: slicesOf("out", out)}
}

// ReduceScatter combines the slices of all ranks, element by element, and gives each rank its part
// of the result.
//
// out is as long on all ranks, and in as long as all of them together. out may be this rank's part
// of in: in[rank*len(out):][:len(out)].
func ReduceScatter[T Element](ctx context.Context, c *Comm, in, out []T, op Op) error {
	return c.Run(ctx, ReduceScatterOp(in, out, op))
}

// ReduceScatterOp is [ReduceScatter] for [Comm.Run] and [Comm.Start].
func ReduceScatterOp[T Element](in, out []T, op Op) Operation {
	return Operation{collective: plan.ReduceScatter, dtype: dtypeOf[T](), op: op, in: slice("in", in),
		out: slice("out", out)}
}

// ReduceScatterV is [ReduceScatter] with parts that have lengths of their own: in[r] goes to rank
// r. All ranks give the same lengths in in, and out is as long as this rank's there.
func ReduceScatterV[T Element](ctx context.Context, c *Comm, in [][]T, out []T, op Op) error {
	return c.Run(ctx, ReduceScatterVOp(in, out, op))
}

// ReduceScatterVOp is [ReduceScatterV] for [Comm.Run] and [Comm.Start].
func ReduceScatterVOp[T Element](in [][]T, out []T, op Op) Operation {
	return Operation{collective: plan.ReduceScatter, dtype: dtypeOf[T](), op: op,
		in: slicesOf("in", in), out: slice("out", out)}
}

// Gather gives the root the slices of all ranks, one after the other in the order of ranks.
//
// in is as long on all ranks. out is used on the root only, where it is as long as all of them
// together. There in may be the root's part of it.
func Gather[T Element](ctx context.Context, c *Comm, in, out []T, root int) error {
	return c.Run(ctx, GatherOp(in, out, root))
}

// GatherOp is [Gather] for [Comm.Run] and [Comm.Start].
func GatherOp[T Element](in, out []T, root int) Operation {
	return Operation{collective: plan.Gather, dtype: dtypeOf[T](), root: root, in: slice("in", in),
		out: slice("out", out)}
}

// Scatter gives each rank its part of the root's slice, in the order of ranks.
//
// out is as long on all ranks. in is used on the root only, where it is as long as all of them
// together. There out may be the root's part of it.
func Scatter[T Element](ctx context.Context, c *Comm, in, out []T, root int) error {
	return c.Run(ctx, ScatterOp(in, out, root))
}

// ScatterOp is [Scatter] for [Comm.Run] and [Comm.Start].
func ScatterOp[T Element](in, out []T, root int) Operation {
	return Operation{collective: plan.Scatter, dtype: dtypeOf[T](), root: root, in: slice("in", in),
		out: slice("out", out)}
}

// AllToAll sends each rank its part of in, and takes a part from each into out, both in the order
// of ranks. in and out are as long on all ranks, a multiple of their number. They must not overlap.
func AllToAll[T Element](ctx context.Context, c *Comm, in, out []T) error {
	return c.Run(ctx, AllToAllOp(in, out))
}

// AllToAllOp is [AllToAll] for [Comm.Run] and [Comm.Start].
func AllToAllOp[T Element](in, out []T) Operation {
	return Operation{collective: plan.AllToAll, dtype: dtypeOf[T](), in: slice("in", in),
		out: slice("out", out)}
}

// AllToAllV is [AllToAll] with parts that have lengths of their own: in[r] goes to rank r, and
// out[r] takes what comes from it. It is as long as what rank r gives for this rank.
func AllToAllV[T Element](ctx context.Context, c *Comm, in, out [][]T) error {
	return c.Run(ctx, AllToAllVOp(in, out))
}

// AllToAllVOp is [AllToAllV] for [Comm.Run] and [Comm.Start].
func AllToAllVOp[T Element](in, out [][]T) Operation {
	return Operation{collective: plan.AllToAll, dtype: dtypeOf[T](), in: slicesOf("in", in),
		out: slicesOf("out", out)}
}

// Barrier returns when all ranks have called it.
func Barrier(ctx context.Context, c *Comm) error { return c.Run(ctx, BarrierOp()) }

// BarrierOp is [Barrier] for [Comm.Run] and [Comm.Start].
func BarrierOp() Operation { return Operation{collective: plan.Barrier} }

// AnySource as the source of a receive is any rank.
const AnySource = -1

// Send sends a slice to a rank, which may be this one. It may return before the peer has called
// [Recv], or wait for that: where two ranks send to each other both use [Comm.Run] with a send and
// a receive. Sends of one tag (0 or more) to one rank are received in their order. They have no
// place in the order of collectives.
func Send[T Element](ctx context.Context, c *Comm, buffer []T, to, tag int) error {
	return c.Run(ctx, SendOp(buffer, to, tag))
}

// SendOp is [Send] for [Comm.Run] and [Comm.Start].
func SendOp[T Element](buffer []T, to, tag int) Operation {
	return Operation{collective: plan.Send, dtype: dtypeOf[T](), root: to, tag: tag,
		in: slice("buffer", buffer)}
}

// Recv receives what a rank, or with [AnySource] any rank, sends with a tag. The slice is as long
// as what is sent, and of the same type. It returns the rank that it came from.
//
// A receive whose context's deadline passes ends alone, with [ErrTimeout]: the communicator works
// on, and a later receive may take what comes then.
func Recv[T Element](ctx context.Context, c *Comm, buffer []T, from, tag int) (source int,
	err error) {
	w, err := c.run(ctx, []Operation{RecvOp(buffer, from, tag)})
	if err != nil {
		return -1, err
	}
	return w.Source(), nil
}

// RecvOp is [Recv] for [Comm.Run] and [Comm.Start].
func RecvOp[T Element](buffer []T, from, tag int) Operation {
	return Operation{collective: plan.Recv, dtype: dtypeOf[T](), root: from, tag: tag,
		out: slice("buffer", buffer)}
}
