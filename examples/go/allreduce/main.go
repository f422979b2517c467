// Command allreduce sums a vector over all ranks, each a process of its own, and checks the result.
//
//	go run ./examples/go/allreduce 4
//
// Without more arguments it is a launcher that starts itself once a rank. Ranks on other hosts
// would be started by ssh or a scheduler, and be handed the id of the root address by any means;
// here a pipe does.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core"
	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
)

const (
	count   = 1 << 20
	timeout = time.Minute
)

func main() {
	var numbers []int
	for _, a := range os.Args[1:] {
		n, err := strconv.Atoi(a)
		if err != nil {
			usage()
		}
		numbers = append(numbers, n)
	}
	var err error
	switch {
	case len(numbers) == 2:
		err = run(numbers[0], numbers[1])
	case len(numbers) == 1 && numbers[0] >= 1:
		err = launch(numbers[0])
	case len(numbers) == 0:
		err = launch(2)
	default:
		usage()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: allreduce [number of ranks]")
	os.Exit(2)
}

// run is one rank.
func run(rank, size int) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("rank %d: %w", rank, err)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	store, secret, done, err := meet(ctx, rank, size)
	if err != nil {
		return err
	}
	r := core.NewRuntime(core.RuntimeConfig{})
	defer r.Close()
	comm, err := r.Init(ctx, core.Config{Rank: rank, Size: size, Store: store, Secret: secret,
		Timeout: timeout})
	done()
	if err != nil {
		return err
	}
	defer comm.Destroy()

	in, out := make([]float32, count), make([]float32, count)
	for i := range in {
		in[i] = float32(rank + i%1000)
	}
	// Until the work has ended the library uses the memory, of which Go's collector does not know.
	var pinner runtime.Pinner
	defer pinner.Unpin()
	pinner.Pin(&in[0])
	pinner.Pin(&out[0])
	work, err := comm.Start(core.CallOptions{}, core.Operation{
		Collective: plan.AllReduce, DType: reduce.Float32, Op: reduce.Sum,
		In: []unsafe.Pointer{unsafe.Pointer(&in[0])}, InCounts: []uint64{count},
		Out: []unsafe.Pointer{unsafe.Pointer(&out[0])}, OutCounts: []uint64{count},
	})
	if err != nil {
		return err
	}
	if _, err := work.Wait(-1); err != nil {
		return err
	}
	for i, v := range out {
		if want := float32(size*(size-1)/2 + size*(i%1000)); v != want {
			return fmt.Errorf("out[%d] is %g, not %g", i, v, want)
		}
	}
	fmt.Printf("rank %d of %d: the sum of %d elements is right (next rank by: %s)\n", rank, size,
		count, comm.Transport((rank+1)%size))
	return nil
}

// meet opens a root address on rank 0, and hands its id to the other ranks, once each, over a pipe.
func meet(ctx context.Context, rank, size int) (store bootstrap.Store, secret string, done func(),
	err error) {
	const readEnd, writeEnd = 3, 4
	from, to := os.NewFile(readEnd, "pipe"), os.NewFile(writeEnd, "pipe")
	defer from.Close()
	defer to.Close()
	var id [bootstrap.IDSize]byte
	if rank == 0 {
		root, err := bootstrap.NewRoot("")
		if err != nil {
			return nil, "", nil, err
		}
		id = root.ID()
		for range size - 1 {
			if _, err := to.Write(id[:]); err != nil {
				return nil, "", nil, err
			}
		}
		// The others may still be reading from it.
		store, done = root.Store(), func() { root.Drain(timeout) }
	} else {
		if _, err := io.ReadFull(from, id[:]); err != nil {
			return nil, "", nil, err
		}
		s, closer, err := bootstrap.DialRoot(ctx, id)
		if err != nil {
			return nil, "", nil, err
		}
		store, done = s, func() { _ = closer.Close() }
	}
	secret, err = bootstrap.IDSecret(id)
	return store, secret, done, err
}

// launch starts a process a rank.
func launch(size int) error {
	from, to, err := os.Pipe()
	if err != nil {
		return err
	}
	var all []*exec.Cmd
	for rank := range size {
		c := exec.Command("/proc/self/exe", strconv.Itoa(rank), strconv.Itoa(size))
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		c.ExtraFiles = []*os.File{from, to}
		if err := c.Start(); err != nil {
			return err
		}
		all = append(all, c)
	}
	_ = from.Close()
	_ = to.Close()
	for _, c := range all {
		if e := c.Wait(); e != nil {
			err = e
		}
	}
	return err
}
