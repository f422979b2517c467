// Speed measures verbs between hosts, one rank a host, beside TCP: in turn, medians, and a line a
// size.
//
// It is run on each host, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set:
//
//	speed stream              what the stream over a queue pair reaches, of two hosts, and
//	                          a plain TCP connection
//	speed allreduce 64K 1M    allreduce over each, over verbs of shareable memory, too; the same
//	                          for alltoall, of so many bytes a rank, and for sendrecv, to the
//	                          next rank and from the one before
//	speed schedules 64K 1M    alltoall over verbs by several schedules
//
// or by Open MPI's mpirun, with MASTER_ADDR and MASTER_PORT:
//
//	speed openmpi 64K 1M      alltoall over verbs by several schedules, over TCP, and by
//	                          that Open MPI
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
	rank, err := number("OMPI_COMM_WORLD_RANK", "RANK")
	if err != nil {
		return err
	}
	size, err := number("OMPI_COMM_WORLD_SIZE", "WORLD_SIZE")
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
	case len(args) > 1 && args[0] == "sendrecv":
		return compare(sendrecv, nets, args[1:], rank, size)
	case len(args) > 1 && args[0] == "openmpi":
		other, err := openMPI()
		if err != nil {
			return err
		}
		return compare(alltoall, append(scheduled, tcp), args[1:], rank, size, other)
	}
	return errors.New("usage: speed stream, or speed allreduce|alltoall|sendrecv|schedules|openmpi " +
		"SIZES")
}

// number is that of the first of these variables that is set.
func number(variables ...string) (n int, err error) {
	for _, variable := range variables {
		if n, err = strconv.Atoi(os.Getenv(variable)); err == nil {
			return n, nil
		}
	}
	return 0, fmt.Errorf("%s: %w", strings.Join(variables, " or "), err)
}

// dial joins rank 0 to another rank.
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
		fmt.Printf("stream 1 MiB after 1 MiB: %.1f MB/s\n",
			float64(count*len(b))/1e6/time.Since(start).Seconds())
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
		fmt.Printf("TCP 1 MiB after 1 MiB: %.1f MB/s\n",
			float64(count*len(b))/1e6/time.Since(start).Seconds())
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

// What is compared, by name.
var (
	tcp  = core.Config{GroupName: "tcp", Transport: "tcp"}
	nets = []core.Config{
		{GroupName: "verbs", Transport: "verbs"},
		{GroupName: shareable, Transport: "verbs"},
		tcp,
	}
	scheduled = []core.Config{
		{GroupName: "parallel", Transport: "verbs", AllToAllSchedule: "parallel"},
		{GroupName: "window=2", Transport: "verbs", AllToAllSchedule: "window=2"},
		{GroupName: "sequential", Transport: "verbs", AllToAllSchedule: "sequential"},
	}
)

// shareable is the name of what has shareable memory.
const shareable = "shareable"

// memory gives memory that is not Go's, touched.
type memory func(bytes int) (unsafe.Pointer, error)

func ordinary(bytes int) (unsafe.Pointer, error) {
	b, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("mmap of %d bytes: %w", bytes, err)
	}
	return unsafe.Pointer(&b[0]), nil
}

func shareableOf(r *core.Runtime) memory {
	return func(bytes int) (unsafe.Pointer, error) {
		p, err := r.Alloc(int64(bytes))
		if err == nil {
			clear(unsafe.Slice((*byte)(p), bytes))
		}
		return p, err
	}
}

// problem is some operations at once on memory of their own. check tells whether their results are
// right, and forgets them.
type problem struct {
	operations []core.Operation
	check      func() error
}

func allreduce(m memory, bytes, _, _ int) (problem, error) {
	in, err := blocks[float32](m, 1, bytes/4)
	if err != nil {
		return problem{}, err
	}
	places, counts := operands(in)
	op := core.Operation{Collective: plan.AllReduce, DType: reduce.Float32, In: places, Out: places,
		InCounts: counts, OutCounts: counts}
	return problem{[]core.Operation{op}, func() error { return nil }}, nil
}

func sendrecv(m memory, bytes, rank, size int) (problem, error) {
	b, err := blocks[float32](m, 2, max(bytes/4, 1))
	if err != nil {
		return problem{}, err
	}
	left, right := (rank+size-1)%size, (rank+1)%size
	last := len(b[0]) - 1
	b[0][last] = float32(rank)
	places, counts := operands(b)
	check := func() error {
		if b[1][last] != float32(left) {
			return fmt.Errorf("what came from rank %d ends with %v", left, b[1][last])
		}
		b[1][last] = -1
		return nil
	}
	return problem{[]core.Operation{
		{Collective: plan.Recv, DType: reduce.Float32, Root: left, Out: places[1:],
			OutCounts: counts[1:]},
		{Collective: plan.Send, DType: reduce.Float32, Root: right, In: places[:1], InCounts: counts[:1]},
	}, check}, nil
}

func alltoall(m memory, bytes, rank, size int) (problem, error) {
	count := max(bytes/size/4, 1)
	in, err := blocks[float32](m, size, count)
	if err != nil {
		return problem{}, err
	}
	out, err := blocks[float32](m, size, count)
	if err != nil {
		return problem{}, err
	}
	for r, b := range in {
		b[0], b[count-1] = float32(rank), float32(r)
	}
	op := core.Operation{Collective: plan.AllToAll, DType: reduce.Float32}
	op.In, op.InCounts = operands(in)
	op.Out, op.OutCounts = operands(out)
	check := func() error {
		for r, b := range out {
			if (count > 1 && b[0] != float32(r)) || b[count-1] != float32(rank) {
				return fmt.Errorf("the block from rank %d begins with %v and ends with %v", r, b[0], b[count-1])
			}
			b[0], b[count-1] = -1, -1
		}
		return nil
	}
	return problem{[]core.Operation{op}, check}, nil
}

// blocks are n slices, one after the other.
func blocks[E any](m memory, n, count int) ([][]E, error) {
	bytes := count * int(unsafe.Sizeof(*new(E)))
	b, err := m(n * bytes)
	if err != nil {
		return nil, err
	}
	l := make([][]E, n)
	for i := range l {
		l[i] = unsafe.Slice((*E)(unsafe.Add(b, i*bytes)), count)
	}
	return l, nil
}

func operands[E any](blocks [][]E) (places []unsafe.Pointer, counts []uint64) {
	for _, b := range blocks {
		places, counts = append(places, unsafe.Pointer(&b[0])), append(counts, uint64(len(b)))
	}
	return places, counts
}

// entrant is one of those that are compared.
type entrant struct {
	name   string
	call   func(...core.Operation) error
	close  func() error
	memory memory
}

// turns is how often it is the turn of each, in which it is called once to warm up, and then some
// times that are measured.
const turns = 10

// compare prints a line a size: of each entrant the median of the times, in µs, of the slowest
// rank.
func compare(operation func(m memory, bytes, rank, size int) (problem, error),
	configs []core.Config, sizes []string, rank, size int, others ...entrant) error {
	store, err := meet(rank, size)
	if err != nil {
		return err
	}
	r := core.NewRuntime(core.RuntimeConfig{})
	defer r.Close()
	var entrants []entrant
	for _, config := range configs {
		config.Rank, config.Size, config.Store = rank, size, store
		config.StoreHost, config.Timeout = os.Getenv("MASTER_ADDR"), time.Minute
		c, err := r.Init(context.Background(), config)
		if err != nil {
			return err
		}
		run := func(ops ...core.Operation) error { return call(c, ops) }
		leave := func() error { return run(core.Operation{Collective: plan.Barrier}) }
		m := memory(ordinary)
		if config.GroupName == shareable {
			m = shareableOf(r)
		}
		entrants = append(entrants, entrant{config.GroupName, run, leave, m})
	}
	entrants = append(entrants, others...)
	head := fmt.Sprintf("%8s", "µs")
	for _, e := range entrants {
		head += fmt.Sprintf(" %12s", e.name)
	}
	if rank == 0 {
		fmt.Println(head)
	}
	for _, text := range sizes {
		bytes, err := parseSize(text)
		if err != nil {
			return err
		}
		problems := make([]problem, len(entrants))
		for k, e := range entrants {
			if problems[k], err = operation(e.memory, bytes, rank, size); err != nil {
				return err
			}
		}
		times, err := measure(entrants, problems, max(1, min(10, 4<<20/bytes)))
		if err != nil {
			return err
		}
		line := fmt.Sprintf("%8s", text)
		for _, t := range times {
			slices.Sort(t)
			line += fmt.Sprintf(" %12.1f", t[len(t)/2])
		}
		if rank == 0 {
			fmt.Println(line)
		}
	}
	for _, e := range entrants {
		if err := e.close(); err != nil {
			return err
		}
	}
	return nil
}

// measure returns how long the slowest rank took for each call, by entrant. All meet in the same
// barrier, the first entrant's: how far apart the ranks leave it is in what is measured.
func measure(entrants []entrant, problems []problem, calls int) ([][]float64, error) {
	times, err := blocks[float64](ordinary, len(entrants), turns*calls)
	if err != nil {
		return nil, err
	}
	for turn := range turns {
		for i := range entrants {
			k := (turn + i) % len(entrants) // none always follows the same one
			e, p := entrants[k], problems[k]
			for n := range calls + 1 {
				if err := entrants[0].call(core.Operation{Collective: plan.Barrier}); err != nil {
					return nil, err
				}
				start := time.Now()
				if err := e.call(p.operations...); err != nil {
					return nil, fmt.Errorf("%s: %w", e.name, err)
				}
				if n > 0 {
					times[k][turn*calls+n-1] = float64(time.Since(start).Nanoseconds()) / 1000
				}
			}
			if err := p.check(); err != nil {
				return nil, fmt.Errorf("%s: %w", e.name, err)
			}
		}
	}
	slowest := core.Operation{Collective: plan.AllReduce, DType: reduce.Float64, Op: reduce.Max}
	slowest.In, slowest.InCounts = operands(times)
	slowest.Out, slowest.OutCounts = slowest.In, slowest.InCounts
	return times, entrants[0].call(slowest)
}

func call(c *core.Comm, ops []core.Operation) error {
	w, err := c.Start(core.CallOptions{WaitSoon: true}, ops...)
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
