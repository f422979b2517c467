package core

import (
	"context"
	"errors"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
)

// Words of the language, of its network package and of system calls, which mean nothing to a user.
var jargon = regexp.MustCompile(`context |deadline exceeded|dial |i/o timeout|\bEOF\b|read ` +
	`(tcp|unix)|write (tcp|unix)|<nil>|%!|goroutine|panic`)

// Each kind of failure says in its text what failed, why, and what to do; and it has what a program
// can act upon in its fields, on every rank that hears of it.
func TestErrorsTellWhatFailed(t *testing.T) {
	const size = 3
	barrier := Operation{Collective: plan.Barrier}
	allReduceCall := "allreduce(int32, 1 elements, SUM)"
	called := make(chan struct{}) // by rank 1, in "peer failed"
	for name, c := range map[string]struct {
		call  func(c *Comm, rank int) error
		want  Error
		on    []int  // the ranks that are told so; nil: all
		heads string // what the text begins with
	}{
		"peer failed": {func(c *Comm, rank int) error {
			if rank == 2 {
				return nil
			}
			if rank == 1 { // hears of it from rank 0, in the call
				w, err := c.Start(CallOptions{WaitSoon: true}, barrier)
				close(called)
				if err == nil {
					_, err = w.Wait(-1)
				}
				return err
			}
			<-called
			handlerOf(c).PeerDown(2, errors.New("its process has ended"))
			return run(c, barrier)
		}, Error{Kind: ErrPeerFailed, Operation: "barrier", Sequence: 2, Ranks: []int{2}}, []int{0, 1},
			`communicator "test": #2 barrier failed: rank 2 (global rank 8, pid `},
		"timeout": {func(c *Comm, rank int) error {
			if rank == 1 {
				return nil
			}
			return run(c, barrier)
		}, Error{Kind: ErrTimeout, Operation: "barrier", Sequence: 2, Ranks: []int{1}}, []int{0, 2},
			`communicator "test": #2 barrier: timeout after 1s on rank `},
		"receive timeout": {func(c *Comm, rank int) error {
			if rank > 0 {
				return nil
			}
			return run(c, recvOp(buffer(t, 1), 1, 7))
		}, Error{Kind: ErrTimeout, Operation: "recv", Ranks: []int{1}}, []int{0},
			`communicator "test": receive of 4 bytes with tag 7 from rank 1 (global rank 3, pid `},
		"monitored barrier": {func(c *Comm, rank int) error {
			if rank == 2 {
				return nil
			}
			return run(c, Operation{Collective: plan.MonitoredBarrier})
		}, Error{Kind: ErrTimeout, Operation: "monitored_barrier", Sequence: 2, Ranks: []int{2}},
			[]int{0, 1}, `[Rank `},
		"mismatch": {func(c *Comm, rank int) error {
			return run(c, []Operation{barrier, barrier, allReduce(t, 1)}[rank])
		}, Error{Kind: ErrMismatch, Operation: "barrier", Sequence: 2,
			Calls: map[int]string{2: allReduceCall}}, []int{0, 1},
			`communicator "test": #2 barrier failed: collective mismatch at #2: rank `},
		"refused": {func(c *Comm, rank int) error {
			if rank == 1 {
				c.Refuse("enough")
				return nil
			}
			return run(c, barrier)
		}, Error{Kind: ErrMismatch, Operation: "barrier", Sequence: 2,
			Calls: map[int]string{1: "a call that was refused: enough"}}, []int{0, 2},
			`communicator "test": #2 barrier failed: collective mismatch at #2: rank `},
		"abort": {func(c *Comm, rank int) error {
			if rank == 1 {
				c.Abort("enough")
			}
			return run(c, barrier)
		}, Error{Kind: ErrAborted, Operation: "barrier", Ranks: []int{1}}, nil, `communicator "test"`},
		"split": {func(c *Comm, rank int) error {
			if rank != 0 {
				return nil
			}
			handlerOf(c).PeerDown(2, errors.New("its process has ended"))
			_, err := c.Split(context.Background(), 0, 0)
			return err
		}, Error{Kind: ErrPeerFailed, Operation: "split", Sequence: 2, Ranks: []int{2}}, []int{0},
			`communicator "test": #2 split failed: rank 2 (global rank 8, pid `},
		"split timeout": {func(c *Comm, rank int) error {
			if rank == 1 {
				return nil
			}
			_, err := c.Split(context.Background(), 0, 0)
			return err
		}, Error{Kind: ErrTimeout, Operation: "split", Sequence: 2, Ranks: []int{1}}, []int{0, 2},
			`communicator "test": #2 split: timeout after 1s on rank `},
		"split of an aborted group": {func(c *Comm, rank int) error {
			if rank == 1 {
				c.Abort("enough")
			}
			_, err := c.Split(context.Background(), 0, 0)
			return err
		}, Error{Kind: ErrAborted, Operation: "split", Ranks: []int{1}}, []int{1}, `communicator "test"`},
		// Also where the data of the two would fit together.
		"split and allgather": {func(c *Comm, rank int) error {
			if rank < 2 {
				_, err := c.Split(context.Background(), 0, 0)
				return err
			}
			in, out := make([]int64, 2), make([]int64, 2*size)
			var pin runtime.Pinner
			defer pin.Unpin()
			pin.Pin(&in[0])
			pin.Pin(&out[0])
			op := Operation{Collective: plan.AllGather, DType: reduce.Int64,
				In: []unsafe.Pointer{unsafe.Pointer(&in[0])}, InCounts: []uint64{2}}
			for r := range size {
				op.Out, op.OutCounts = append(op.Out, unsafe.Pointer(&out[2*r])), append(op.OutCounts, 2)
			}
			return run(c, op)
		}, Error{Kind: ErrMismatch, Operation: "split", Sequence: 2,
			Calls: map[int]string{2: "allgather(int64, 6 elements)"}}, []int{0, 1},
			`communicator "test": #2 split failed: collective mismatch at #2: rank `},
		"left": {func(c *Comm, rank int) error {
			if rank == 1 {
				c.Destroy()
				return nil
			}
			return run(c, barrier)
		}, Error{Kind: ErrAborted, Operation: "barrier", Sequence: 2, Ranks: []int{1}}, []int{0, 2},
			`communicator "test": #2 barrier failed: rank 1 (global rank 3, pid `},
		"sizes": {func(c *Comm, rank int) error {
			switch rank {
			case 0:
				return run(c, recvOp(buffer(t, 2), 1, 0))
			case 1:
				return run(c, sendOp(buffer(t, 1<<20), 0, 0))
			}
			return nil
		}, Error{Kind: ErrMismatch, Calls: map[int]string{0: "recv(int32, 2 elements, tag 0)",
			1: "send(int32, 1048576 elements, tag 0)"}}, []int{0, 1}, `communicator "test": `},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorldOf(t, "shm", size, Config{Timeout: time.Minute, GlobalRanks: []int{5, 3, 8}})
			around(t, w, size, 1) // they are connected
			w.each(func(rank int) error { return run(w.comms[rank], barrier) })
			if c.want.Kind == ErrTimeout {
				w.limit(time.Second)
			}
			errs := w.try(func(rank int) error { return c.call(w.comms[rank], rank) })
			for rank, err := range errs {
				if c.on != nil && !slices.Contains(c.on, rank) {
					continue
				}
				var e *Error
				if !errors.As(err, &e) || e.Kind != c.want.Kind {
					t.Errorf("rank %d: %v", rank, err)
					continue
				}
				sequence := e.Sequence == c.want.Sequence || name == "abort"
				operation := e.Operation == c.want.Operation || c.want.Operation == ""
				for rank, call := range c.want.Calls {
					operation = operation && e.Calls[rank] == call
				}
				if !operation || !sequence || e.Group != "test" || !slices.Equal(e.Ranks, c.want.Ranks) {
					t.Errorf("rank %d: %+v\nwant %+v", rank, *e, c.want)
				}
				if text := err.Error(); !strings.HasPrefix(text, c.heads) || jargon.MatchString(text) ||
					name != "monitored barrier" && !strings.HasSuffix(text, hintOf(e.Kind)) {
					t.Errorf("rank %d: the text has not the form of all: %s", rank, text)
				}
			}
		})
	}
}
