// Speed measures verbs between hosts, one rank a host, beside TCP: in turn, medians, and a line a size.
//
// It is run on each host, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set:
//
//	speed stream              what the stream over a queue pair reaches, of two hosts, and a plain TCP connection
//	speed allreduce 64K 1M    allreduce over each; the same for alltoall, of so many bytes a rank
//	speed schedules 64K 1M    alltoall over verbs by several schedules
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
	case len(args) > 1 && args[0] == "schedules":
		return compare(alltoall, scheduled, args[1:], rank, size)
	case len(args) > 1 && args[0] == "allreduce":
		return compare(allreduce, nets, args[1:], rank, size)
	case len(args) > 1 && args[0] == "alltoall":
		return compare(alltoall, nets, args[1:], rank, size)
	}
	return errors.New("usage: speed stream, or speed allreduce|alltoall|schedules SIZE...")
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
	start = time.Now()
	for range count {
		if rank == 0 {
			_, err = c.Write(b)
		} else {
			_, err = io.ReadFull(c, b)
		}
		if err != nil {
			return err
		}
	}
	if rank == 0 {
		_, err = io.ReadFull(c, b[:1])
		fmt.Printf("TCP 1 MiB after 1 MiB: %.1f MB/s\n", float64(count*len(b))/1e6/time.Since(start).Seconds())
	} else {
		_, err = c.Write(b[:1])
	}
	return err
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

// What is compared, by name: the first is what the others are divided by.
var (
	nets = []core.Config{
		{GroupName: "verbs", Transport: "verbs"},
		{GroupName: "tcp", Transport: "tcp"},
	}
	scheduled = []core.Config{
		{GroupName: "parallel", Transport: "verbs", AllToAllSchedule: "parallel"},
		{GroupName: "window=2", Transport: "verbs", AllToAllSchedule: "window=2"},
		{GroupName: "sequential", Transport: "verbs", AllToAllSchedule: "sequential"},
	}
)

func allreduce(bytes, _ int) core.Operation {
	in, counts := blocks(1, bytes)
	return core.Operation{Collective: plan.AllReduce, DType: reduce.Float32, In: in, Out: in, InCounts: counts, OutCounts: counts}
}

func alltoall(bytes, size int) core.Operation {
	in, counts := blocks(size, bytes/size)
	out, _ := blocks(size, bytes/size)
	return core.Operation{Collective: plan.AllToAll, DType: reduce.Float32, In: in, Out: out, InCounts: counts, OutCounts: counts}
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

func compare(operation func(bytes, size int) core.Operation, configs []core.Config, sizes []string, rank, size int) error {
	store, err := meet(rank, size)
	if err != nil {
		return err
	}
	r := core.NewRuntime(core.RuntimeConfig{})
	defer r.Close()
	var comms []*core.Comm
	for _, config := range configs {
		config.Rank, config.Size, config.Store = rank, size, store
		config.StoreHost, config.Timeout = os.Getenv("MASTER_ADDR"), time.Minute
		c, err := r.Init(context.Background(), config)
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
		op := operation(bytes, size)
		times := make([][]time.Duration, len(comms))
		rounds := max(10, min(100, 32<<20/bytes))
		for i := range rounds + 2 {
			for k, c := range comms {
				if err := call(c, barrier); err != nil {
					return err
				}
				start := time.Now()
				if err := call(c, op); err != nil {
					return err
				}
				if i >= 2 {
					times[k] = append(times[k], time.Since(start))
				}
			}
		}
		line := fmt.Sprintf("%8s:", text)
		for k, config := range configs {
			slices.Sort(times[k])
			median, first := times[k][rounds/2], times[0][rounds/2]
			line += fmt.Sprintf("  %s %.1f us", config.GroupName, float64(median.Nanoseconds())/1000)
			if k > 0 {
				line += fmt.Sprintf(" (%.2f x)", float64(median)/float64(first))
			}
		}
		if rank == 0 {
			fmt.Println(line)
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
