// Command elastic keeps on working while members die and come.
//
//	go run ./examples/go/elastic
//
// Four ranks sum a vector, step by step, and keep what they have in checkpoints. One of them is
// killed. The others go on at once, from the last checkpoint. A new process joins, gets the
// checkpoint from the others, and works with them to the end.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/goccl/goccl"
)

const (
	ranks   = 4
	steps   = 30
	victim  = 2
	killed  = 10 // the step in which the victim dies
	timeout = time.Minute
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if handle := os.Getenv("EXAMPLE_HANDLE"); handle != "" {
		comm, err := goccl.Join(ctx, goccl.Config{Group: "elastic"}, handle)
		if err != nil {
			return err
		}
		return work(ctx, comm, nil)
	}
	if text := os.Getenv("EXAMPLE_ID"); text != "" {
		rank, _ := strconv.Atoi(os.Getenv("EXAMPLE_RANK"))
		id, err := goccl.ParseUniqueID(text)
		if err != nil {
			return err
		}
		comm, err := goccl.Init(ctx, goccl.Config{Rank: rank, Size: ranks, ID: id, Group: "elastic"})
		if err != nil {
			return err
		}
		return work(ctx, comm, nil)
	}
	return lead(ctx)
}

// lead is rank 0, which starts the others and, where one has died, a new one.
func lead(ctx context.Context) error {
	id, err := goccl.NewUniqueID()
	if err != nil {
		return err
	}
	var others []*exec.Cmd
	start := func(environment ...string) error {
		other := exec.Command("/proc/self/exe")
		other.Stdout, other.Stderr = os.Stdout, os.Stderr
		other.Env = append(os.Environ(), environment...)
		others = append(others, other)
		return other.Start()
	}
	for rank := 1; rank < ranks; rank++ {
		if err := start("EXAMPLE_ID="+id.String(), fmt.Sprint("EXAMPLE_RANK=", rank)); err != nil {
			return err
		}
	}
	comm, err := goccl.Init(ctx, goccl.Config{Rank: 0, Size: ranks, ID: id, Group: "elastic"})
	if err != nil {
		return err
	}
	err = work(ctx, comm, func() error {
		handle, err := comm.Handle()
		if err != nil {
			return err
		}
		return start("EXAMPLE_HANDLE=" + handle)
	})
	for i, other := range others {
		if e := other.Wait(); err == nil && i != victim-1 {
			err = e
		}
	}
	return err
}

// work sums until all steps are done. Where members have died it calls replace, unless that is nil.
func work(ctx context.Context, comm *goccl.Comm, replace func() error) error {
	defer comm.Close()
	step, total, err := load(ctx, comm)
	for err == nil && step < steps {
		err = advance(ctx, comm, &step, &total)
		if !errors.Is(err, goccl.ErrPeerFailed) && !errors.Is(err, goccl.ErrRevoked) {
			continue // it has gone well, or cannot be mended
		}
		size := comm.Size()
		if err = comm.Recover(ctx); err != nil {
			break
		}
		fmt.Printf("rank %d: %d of %d members are left\n", comm.Rank(), comm.Size(), size)
		if replace != nil {
			if err = replace(); err != nil {
				break
			}
		}
		if err = comm.Grow(ctx, size-comm.Size()); err == nil {
			step, total, err = load(ctx, comm)
		}
	}
	if err == nil {
		fmt.Printf("rank %d of %d: %d steps, total %d\n", comm.Rank(), comm.Size(), step, total)
	}
	return err
}

// advance makes one step, and a checkpoint of it.
func advance(ctx context.Context, comm *goccl.Comm, step, total *int64) error {
	if *step == killed && comm.Rank() == victim && comm.Epoch() == 0 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	parts := []int64{1}
	if err := goccl.AllReduce(ctx, comm, parts, parts, goccl.Sum); err != nil {
		return err
	}
	next := []int64{*step + 1, *total + parts[0]}
	model, _ := binary.Append(nil, binary.LittleEndian, next)
	if err := comm.Checkpoint(ctx, model, nil, 0); err != nil {
		return err
	}
	*step, *total = next[0], next[1]
	return nil
}

// load gets what the last checkpoint has, which a process that has joined gets from the others.
func load(ctx context.Context, comm *goccl.Comm) (step, total int64, err error) {
	last, err := comm.LoadCheckpoint(ctx)
	if err != nil || last.Version == 0 {
		return 0, 0, err
	}
	model := make([]int64, 2)
	_, err = binary.Decode(last.Global, binary.LittleEndian, model)
	return model[0], model[1], err
}
