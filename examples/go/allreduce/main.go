// Command allreduce sums a vector over all ranks, each a process of its own, and checks the result.
//
//	go run ./examples/go/allreduce 4
//
// It is rank 0, and starts the others with an id by which all meet. Ranks on other hosts would be
// started by ssh or a scheduler, and be handed the id by any means; here the environment does.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/goccl/goccl"
)

const (
	count   = 1 << 20 // elements
	timeout = time.Minute
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	if text := os.Getenv("EXAMPLE_ID"); text != "" {
		rank, _ := strconv.Atoi(os.Getenv("EXAMPLE_RANK"))
		size, _ := strconv.Atoi(os.Getenv("EXAMPLE_SIZE"))
		id, err := goccl.ParseUniqueID(text)
		if err != nil {
			return err
		}
		return work(goccl.Config{Rank: rank, Size: size, ID: id})
	}

	size := 2
	if len(os.Args) > 1 {
		n, err := strconv.Atoi(os.Args[1])
		if err != nil || n < 1 || len(os.Args) > 2 {
			return fmt.Errorf("usage: allreduce [number of ranks]")
		}
		size = n
	}
	id, err := goccl.NewUniqueID()
	if err != nil {
		return err
	}
	var others []*exec.Cmd
	for rank := 1; rank < size; rank++ {
		other := exec.Command("/proc/self/exe")
		other.Stdout, other.Stderr = os.Stdout, os.Stderr
		other.Env = append(os.Environ(), "EXAMPLE_ID="+id.String(),
			fmt.Sprint("EXAMPLE_RANK=", rank), fmt.Sprint("EXAMPLE_SIZE=", size))
		if err := other.Start(); err != nil {
			return err
		}
		others = append(others, other)
	}
	err = work(goccl.Config{Rank: 0, Size: size, ID: id})
	for _, other := range others {
		if e := other.Wait(); err == nil {
			err = e
		}
	}
	return err
}

// work is one rank.
func work(config goccl.Config) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	comm, err := goccl.Init(ctx, config)
	if err != nil {
		return err
	}
	defer comm.Close()
	rank, size := comm.Rank(), comm.Size()

	data := make([]float32, count)
	for i := range data {
		data[i] = float32(rank + i%1000)
	}
	if err := goccl.AllReduce(ctx, comm, data, data, goccl.Sum); err != nil {
		return err
	}
	for i, v := range data {
		if want := float32(size*(size-1)/2 + size*(i%1000)); v != want {
			return fmt.Errorf("rank %d: data[%d] is %g, not %g", rank, i, v, want)
		}
	}
	fmt.Printf("rank %d of %d: the sum of %d elements is right (next rank by: %s)\n", rank, size,
		count, comm.Transport((rank+1)%size))
	return nil
}
