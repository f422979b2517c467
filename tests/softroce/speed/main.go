// Speed compares verbs with TCP between hosts: one rank a host, the two in turn, and prints a line a size.
//
// It is run on each host, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set:
//
//	speed stream              what the stream over a queue pair reaches, of two hosts
//	speed allreduce 64K 1M    medians of allreduce over each, and their ratio
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core"
	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/rdma"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "speed:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	rank, err := strconv.Atoi(os.Getenv("RANK"))
	if err != nil {
		return err
	}
	size, err := strconv.Atoi(os.Getenv("WORLD_SIZE"))
	if err != nil {
		return err
	}
	switch {
	case len(args) == 1 && args[0] == "stream" && size == 2:
		return stream(rank)
	case len(args) > 1 && collectives[args[0]] != nil:
		return compare(args[0], args[1:], rank, size)
	}
	return errors.New("usage: speed stream, or speed COLLECTIVE SIZE...")
}

// conn joins rank 0 to another rank.
func dial() (net.Conn, error) {
	target := net.JoinHostPort(os.Getenv("MASTER_ADDR"), os.Getenv("MASTER_PORT"))
	for end := time.Now().Add(20 * time.Second); ; {
		c, err := net.Dial("tcp", target)
		if err == nil || time.Now().After(end) {
			return c, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func listen() (net.Listener, error) { return net.Listen("tcp", ":"+os.Getenv("MASTER_PORT")) }

// stream measures one stream: bytes one way, and back and forth.
func stream(rank int) error {
	lib, err := rdma.Load("")
	if err != nil {
		return err
	}
	ports, err := lib.Ports()
	if err != nil {
		return err
	}
	choice, err := rdma.Choose(ports, rdma.Want{GIDIndex: -1})
	if err != nil {
		return err
	}
	device, err := lib.Open(choice)
	if err != nil {
		return err
	}
	defer device.Close()
	s, err := device.NewStream(rdma.MostRing)
	if err != nil {
		return err
	}
	defer s.Close()
	var c net.Conn
	if rank == 0 {
		l, err := listen()
		if err != nil {
			return err
		}
		if c, err = l.Accept(); err != nil {
			return err
		}
	} else if c, err = dial(); err != nil {
		return err
	}
	defer c.Close()
	offer, err := s.Offer()
	if err != nil {
		return err
	}
	var theirs [rdma.RecordSize]byte
	if _, err := c.Write(offer[:]); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, theirs[:]); err != nil {
		return err
	}
	if err := s.Join(theirs); err != nil {
		return err
	}
	joined := []byte{1}
	if _, err := c.Write(joined); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, joined); err != nil {
		return err
	}
	if err := s.Resume(); err != nil {
		return err
	}
	for _, n := range []int{4, 64, 4 << 10, 64 << 10} {
		b := make([]byte, n)
		var times []time.Duration
		for range 300 {
			start := time.Now()
			for step := range 2 {
				if step == rank {
					err = move(s, b, true)
				} else {
					err = move(s, b, false)
				}
				if err != nil {
					return err
				}
			}
			times = append(times, time.Since(start))
		}
		if rank == 0 {
			slices.Sort(times)
			fmt.Printf("stream %d B one way: %.1f us\n", n, float64(times[len(times)/2].Nanoseconds())/2000)
		}
	}
	b := make([]byte, 1<<20)
	const count = 100
	start := time.Now()
	for range count {
		if err := move(s, b, rank == 0); err != nil {
			return err
		}
	}
	if err := move(s, b[:1], rank != 0); err != nil {
		return err
	}
	if rank == 0 {
		fmt.Printf("stream 1 MiB after 1 MiB: %.1f MB/s\n", float64(count*len(b))/1e6/time.Since(start).Seconds())
	}
	return nil
}

// move writes or reads all of b.
func move(s *rdma.Stream, b []byte, out bool) error {
	fds := []unix.PollFd{{Fd: int32(s.FD()), Events: unix.POLLIN}}
	for len(b) > 0 {
		v := unix.Iovec{Base: &b[0], Len: uint64(len(b))}
		n, room, err := 0, false, error(nil)
		if out {
			n, err = s.Write(&v, 1)
			if n == 0 && err == nil {
				_, room, err = s.Read(&v, 0)
				room = room || s.Ask()
			}
		} else {
			n, _, err = s.Read(&v, 1)
		}
		if err != nil {
			return err
		}
		b = b[n:]
		if n == 0 && !room {
			if _, err := unix.Poll(fds, 10_000); err != nil && err != unix.EINTR {
				return err
			}
			s.Wake()
		}
	}
	return nil
}

// collectives make the operation of so many bytes in all.
var collectives = map[string]func(bytes, rank, size int) *core.Operation{
	"allreduce": func(bytes, _, _ int) *core.Operation {
		in, counts := blocks(1, bytes)
		return &core.Operation{Collective: plan.AllReduce, DType: reduce.Float32, In: in, Out: in, InCounts: counts, OutCounts: counts}
	},
	"alltoall": func(bytes, _, size int) *core.Operation {
		in, counts := blocks(size, bytes/size)
		out, _ := blocks(size, bytes/size)
		return &core.Operation{Collective: plan.AllToAll, DType: reduce.Float32, In: in, Out: out, InCounts: counts, OutCounts: counts}
	},
}

// blocks are n blocks of so many bytes, touched.
func blocks(n, bytes int) (l []unsafe.Pointer, counts []uint64) {
	for range n {
		b, err := unix.Mmap(-1, 0, max(bytes, 4), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
		if err != nil {
			panic(err)
		}
		l = append(l, unsafe.Pointer(&b[0]))
		counts = append(counts, uint64(max(bytes, 4)/4))
	}
	return l, counts
}

func compare(name string, sizes []string, rank, size int) error {
	nets := []string{"verbs", "tcp"}
	store, err := meet(rank, size)
	if err != nil {
		return err
	}
	r := core.NewRuntime(core.RuntimeConfig{})
	defer r.Close()
	var comms []*core.Comm
	for _, net := range nets {
		c, err := r.Init(context.Background(), core.Config{Rank: rank, Size: size, Store: store, GroupName: net, Transport: net,
			StoreHost: os.Getenv("MASTER_ADDR"), Timeout: time.Minute})
		if err != nil {
			return err
		}
		comms = append(comms, c)
	}
	barrier := core.Operation{Collective: plan.Barrier}
	for _, text := range sizes {
		bytes, err := parseSize(text)
		if err != nil {
			return err
		}
		op := collectives[name](bytes, rank, size)
		var times [2][]time.Duration
		rounds := max(10, min(100, 32<<20/bytes))
		for i := range rounds + 2 {
			for k, c := range comms {
				if err := call(c, barrier); err != nil {
					return err
				}
				start := time.Now()
				if err := call(c, *op); err != nil {
					return err
				}
				if i >= 2 {
					times[k] = append(times[k], time.Since(start))
				}
			}
		}
		for k := range times {
			slices.Sort(times[k])
		}
		if rank == 0 {
			v, t := times[0][rounds/2], times[1][rounds/2]
			fmt.Printf("%s %8s: verbs %9.1f us, tcp %9.1f us, tcp / verbs %.2f\n", name, text,
				float64(v.Nanoseconds())/1000, float64(t.Nanoseconds())/1000, float64(t)/float64(v))
		}
	}
	for _, c := range comms {
		if err := call(c, barrier); err != nil {
			return err
		}
	}
	return nil
}

func call(c *core.Comm, o core.Operation) error {
	w, err := c.Start(core.CallOptions{WaitSoon: true}, o)
	if err != nil {
		return err
	}
	_, err = w.Wait(-1)
	return err
}

// meet makes the ranks' store at rank 0.
func meet(rank, size int) (bootstrap.Store, error) {
	if rank != 0 {
		c, err := dial()
		if err != nil {
			return nil, err
		}
		defer c.Close()
		var id [bootstrap.IDSize]byte
		if _, err := io.ReadFull(c, id[:]); err != nil {
			return nil, err
		}
		store, _, err := bootstrap.DialRoot(context.Background(), id)
		return store, err
	}
	root, err := bootstrap.NewRoot(os.Getenv("MASTER_ADDR"))
	if err != nil {
		return nil, err
	}
	l, err := listen()
	if err != nil {
		return nil, err
	}
	defer l.Close()
	id := root.ID()
	for range size - 1 {
		c, err := l.Accept()
		if err != nil {
			return nil, err
		}
		c.Write(id[:])
		c.Close()
	}
	return root.Store(), nil
}

func parseSize(text string) (int, error) {
	unit := 1
	switch {
	case strings.HasSuffix(text, "K"):
		unit = 1 << 10
	case strings.HasSuffix(text, "M"):
		unit = 1 << 20
	}
	n, err := strconv.Atoi(strings.TrimRight(text, "KM"))
	return n * unit, err
}
