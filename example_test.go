package goccl_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccl/goccl"
)

// ranks runs f on so many ranks that are goroutines of this process. Ranks that are processes call
// Init with an ID: see the example of Init.
func ranks(size int, f func(ctx context.Context, comm *goccl.Comm) error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	store := goccl.NewMemStore()
	var all sync.WaitGroup
	for rank := range size {
		all.Go(func() {
			comm, err := goccl.Init(ctx, goccl.Config{Rank: rank, Size: size, Store: store})
			if err == nil {
				defer comm.Close()
				err = f(ctx, comm)
			}
			if err != nil {
				log.Printf("rank %d: %v", rank, err)
			}
		})
	}
	all.Wait()
}

func ExampleAllReduce() {
	ranks(3, func(ctx context.Context, comm *goccl.Comm) error {
		data := []float32{1, float32(comm.Rank())}
		if err := goccl.AllReduce(ctx, comm, data, data, goccl.Sum); err != nil {
			return err
		}
		fmt.Println(data)
		return nil
	})
	// Output:
	// [3 3]
	// [3 3]
	// [3 3]
}

// Who waited for whom, while calls were made.
func ExampleStartTrace() {
	tracer, err := goccl.StartTrace()
	if err != nil {
		log.Fatal(err)
	}
	defer tracer.Close()
	ranks(2, func(ctx context.Context, comm *goccl.Comm) error {
		if comm.Rank() == 0 {
			return goccl.Send(ctx, comm, []float32{1}, 1, 7)
		}
		_, err := goccl.Recv(ctx, comm, make([]float32, 1), 0, 7)
		return err
	})
	spans, missed := tracer.Read(1000)
	for _, s := range spans {
		fmt.Printf("rank %d: %s, %d bytes\n", s.Rank, s.Title(), s.Bytes)
	}
	fmt.Println(missed, "missed")
	// Unordered output:
	// rank 0: send to rank 1, 4 bytes
	// rank 1: recv from rank 0, 4 bytes
	// 0 missed
}

// Each rank puts its number into the memory of the next one, which is in no call meanwhile.
func ExamplePutSignal() {
	ranks(2, func(ctx context.Context, comm *goccl.Comm) error {
		board, err := goccl.Alloc[int](1)
		if err != nil {
			return err
		}
		defer goccl.Free(board)
		mine, err := goccl.Register(comm, board, goccl.RemoteWrite)
		if err != nil {
			return err
		}
		boards, err := comm.Exchange(ctx, mine)
		if err != nil {
			return err
		}
		peer := 1 - comm.Rank()
		channel, err := comm.Channel(peer, 0, goccl.BestChannel)
		if err != nil {
			return err
		}
		defer channel.Close()
		if err := goccl.PutSignal(channel, boards[peer], 0, []int{10 + comm.Rank()}, 1); err != nil {
			return err
		}
		if err := channel.Wait(ctx, 1); err != nil {
			return err
		}
		if board[0] != 10+peer {
			return fmt.Errorf("the peer has put %d", board[0])
		}
		fmt.Println("it has come")
		return goccl.Barrier(ctx, comm) // who closes ends the channel on both ranks
	})
	// Output:
	// it has come
	// it has come
}

func ExampleAllGatherV() {
	ranks(3, func(ctx context.Context, comm *goccl.Comm) error {
		// Rank r has r+1 elements. All know how many each has.
		in := make([]int, comm.Rank()+1)
		for i := range in {
			in[i] = 10*comm.Rank() + i
		}
		out := make([][]int, comm.Size())
		for r := range out {
			out[r] = make([]int, r+1)
		}
		if err := goccl.AllGatherV(ctx, comm, in, out); err != nil {
			return err
		}
		if comm.Rank() == 0 {
			fmt.Println(out)
		}
		return nil
	})
	// Output:
	// [[0] [10 11] [20 21 22]]
}

// Each rank sends to the next one and receives from the one before, at once.
func ExampleComm_Run() {
	ranks(3, func(ctx context.Context, comm *goccl.Comm) error {
		rank, size := comm.Rank(), comm.Size()
		sent, got := []int{100 + rank}, []int{0}
		if err := comm.Run(ctx, goccl.SendOp(sent, (rank+1)%size, 0),
			goccl.RecvOp(got, (rank+size-1)%size, 0)); err != nil {
			return err
		}
		if rank == 0 {
			fmt.Println("rank 0 has got", got)
		}
		return nil
	})
	// Output:
	// rank 0 has got [102]
}

// A sum is on its way while the rank computes something else.
func ExampleComm_Start() {
	ranks(2, func(ctx context.Context, comm *goccl.Comm) error {
		gradients, sums := []float64{1, 2, 3}, make([]float64, 3)
		work, err := comm.Start(ctx, goccl.AllReduceOp(gradients, sums, goccl.Avg))
		if err != nil {
			return err
		}
		other := 6 * 7
		if err := work.Wait(ctx); err != nil {
			return err
		}
		if comm.Rank() == 0 {
			fmt.Println(other, sums)
		}
		return nil
	})
	// Output:
	// 42 [1 2 3]
}

// The members that are left go on, with what a checkpoint has kept.
func ExampleComm_Recover() {
	ranks(3, func(ctx context.Context, comm *goccl.Comm) error {
		if err := comm.Checkpoint(ctx, []byte("the model"), nil, 0); err != nil {
			return err
		}
		if comm.Rank() == 1 {
			return nil // it leaves
		}
		err := goccl.Barrier(ctx, comm)
		var failure *goccl.Error
		if !errors.As(err, &failure) {
			return fmt.Errorf("a barrier that one rank has not called: %w", err)
		}
		left := failure.Ranks
		if err := comm.Recover(ctx); err != nil {
			return err
		}
		last, err := comm.LoadCheckpoint(ctx)
		if err == nil && comm.Rank() == 0 {
			fmt.Printf("ranks %v have left, %d go on with %q\n", left, comm.Size(), last.Global)
		}
		return err
	})
	// Output:
	// ranks [1] have left, 2 go on with "the model"
}

// Ranks are processes: this one is rank 0, and starts the other, which main calls worker for.
func ExampleInit() {
	id, err := goccl.NewUniqueID()
	if err != nil {
		log.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		log.Fatal(err)
	}
	var said strings.Builder
	other := exec.Command(program)
	other.Env = append(os.Environ(), "EXAMPLE_ID="+id.String())
	other.Stdout, other.Stderr = &said, os.Stderr
	if err := other.Start(); err != nil {
		log.Fatal(err)
	}
	if err := rank(goccl.Config{Rank: 0, Size: 2, ID: id}, os.Stdout); err != nil {
		log.Print(err)
	}
	if err := other.Wait(); err != nil {
		log.Print(err)
	}
	fmt.Print(said.String())
	// Output:
	// rank 0 of 2: [1 2], by shm
	// rank 1 of 2: [1 2], by shm
}

// worker is rank 1, as a process of its own.
func worker(text string) error {
	id, err := goccl.ParseUniqueID(text)
	if err != nil {
		return err
	}
	return rank(goccl.Config{Rank: 1, Size: 2, ID: id}, os.Stdout)
}

func rank(config goccl.Config, to *os.File) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	comm, err := goccl.Init(ctx, config)
	if err != nil {
		return err
	}
	defer comm.Close()
	in, out := []int32{int32(comm.Rank()) + 1}, make([]int32, 2)
	if err := goccl.AllGather(ctx, comm, in, out); err != nil {
		return err
	}
	_, err = fmt.Fprintf(to, "rank %d of %d: %v, by %s\n", comm.Rank(), comm.Size(), out,
		comm.Transport(1-comm.Rank()))
	return err
}

func TestMain(m *testing.M) {
	if id := os.Getenv("EXAMPLE_ID"); id != "" {
		if err := worker(id); err != nil {
			log.Fatal(err)
		}
		return
	}
	os.Exit(m.Run())
}
