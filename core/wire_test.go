package core

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
)

// toBFloat16 rounds to nearest, ties to even, by hand.
func toBFloat16(x float32) uint16 {
	b := math.Float32bits(x)
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

func fromBFloat16(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// some numbers of a rank's block, whose roundings differ.
func some(rank, block, n int) []float32 {
	f := make([]float32, n)
	for i := range f {
		f[i] = float32((rank*7919+block*131+i)*2654435761%1000003)/4096 - 100
	}
	return f
}

// blocksOf are a rank's blocks on one side of a collective, of which that of each rank has so many
// elements.
func blocksOf(c plan.Collective, rank int, counts []int, input bool) (lengths []int, used bool) {
	lengths = counts[rank : rank+1]
	switch c {
	case plan.AllGather, plan.Gather:
		if !input {
			lengths = counts
		}
	case plan.ReduceScatter, plan.Scatter:
		if input {
			lengths = counts
		}
	case plan.AllToAll:
		lengths = counts
	}
	o := Operation{Collective: c, Root: len(counts) - 1}
	in, out := o.Uses(rank)
	return lengths, in && input || out && !input
}

// twoDTypes is an operation of float32, and the same one of bfloat16.
type twoDTypes struct {
	wide, narrow       Operation
	in, out            [][]float32
	narrowIn, narrowTo [][]uint16
}

func wirePair(c plan.Collective, rank, size, n int, inPlace bool) *twoDTypes {
	return wirePairOf(c, rank, slices.Repeat([]int{n}, size), inPlace)
}

func wirePairOf(c plan.Collective, rank int, counts []int, inPlace bool) *twoDTypes {
	p := &twoDTypes{}
	p.wide = Operation{Collective: c, DType: reduce.Float32, Root: len(counts) - 1,
		Wire: call.As(reduce.BFloat16)}
	ins, reads := blocksOf(c, rank, counts, true)
	outs, writes := blocksOf(c, rank, counts, false)
	for i, n := range ins {
		p.wide.InCounts = append(p.wide.InCounts, uint64(n))
		if reads {
			p.in = append(p.in, some(rank, i, n))
			narrow := make([]uint16, n)
			for k, x := range p.in[i] {
				narrow[k] = toBFloat16(x)
			}
			p.narrowIn = append(p.narrowIn, narrow)
		}
	}
	for i, n := range outs {
		p.wide.OutCounts = append(p.wide.OutCounts, uint64(n))
		if writes {
			p.out = append(p.out, make([]float32, n))
			p.narrowTo = append(p.narrowTo, make([]uint16, n))
			from := i // the input in its place
			switch {
			case c == plan.ReduceScatter:
				from = rank
			case c == plan.AllGather && i == rank:
				from = 0
			}
			if (inPlace || c == plan.Broadcast) && reads && from < len(ins) &&
				(c != plan.AllGather || i == rank) {
				p.out[i], p.narrowTo[i] = p.in[from], p.narrowIn[from]
			}
		}
	}
	p.narrow = p.wide
	p.narrow.DType, p.narrow.Wire = reduce.BFloat16, call.AnyDType
	for _, f := range p.in {
		p.wide.In = append(p.wide.In, unsafe.Pointer(unsafe.SliceData(f)))
	}
	for _, f := range p.out {
		p.wide.Out = append(p.wide.Out, unsafe.Pointer(unsafe.SliceData(f)))
	}
	for _, b := range p.narrowIn {
		p.narrow.In = append(p.narrow.In, unsafe.Pointer(unsafe.SliceData(b)))
	}
	for _, b := range p.narrowTo {
		p.narrow.Out = append(p.narrow.Out, unsafe.Pointer(unsafe.SliceData(b)))
	}
	return p
}

func (p *twoDTypes) compare() error {
	for i, out := range p.out {
		for k, x := range out {
			if want := fromBFloat16(p.narrowTo[i][k]); math.Float32bits(x) != math.Float32bits(want) {
				return fmt.Errorf("%v: element %d of block %d is %v, want %v", p.wide.Collective, k, i, x,
					want)
			}
		}
	}
	return nil
}

// What travels as bfloat16 has the bits of what was converted before, and back after: all
// collectives, over all transports, in place or not.
func TestWireDType(t *testing.T) {
	for _, transport := range transports {
		for _, size := range []int{1, 2, 5} {
			if testing.Short() && size == 5 && transport != "shm" {
				continue
			}
			t.Run(fmt.Sprint(transport, size), func(t *testing.T) {
				w := newWorld(t, transport, size, time.Minute)
				for c := plan.AllReduce; c <= plan.AllToAll; c++ {
					for _, n := range []int{0, 1, 1000, 300_001} {
						if testing.Short() && size == 5 && n > 1000 {
							continue
						}
						for _, inPlace := range []bool{false, c < plan.Gather && c != plan.Broadcast} {
							w.each(func(rank int) error {
								p := wirePair(c, rank, size, n, inPlace)
								return errors.Join(run(w.comms[rank], p.narrow), run(w.comms[rank], p.wide),
									p.compare())
							})
						}
					}
				}
			})
		}
	}
}

// What is longer than a segment has the same bits: images are used for one segment after the other.
func TestWireDTypeOfSegments(t *testing.T) {
	for _, c := range []struct {
		collective plan.Collective
		counts     []int
		inPlace    bool
		transport  string
	}{
		{plan.AllReduce, []int{34 << 20, 34 << 20}, true, "shm"},
		{plan.Broadcast, []int{34 << 20, 34 << 20}, true, "shm"},
		{plan.ReduceScatter, []int{17 << 20, 1000}, false, "shm"},
		{plan.AllGather, []int{12 << 20, 5, 3 << 20}, true, "shm"},
		{plan.AllGather, []int{12 << 20, 5, 3 << 20}, false, "tcp"},
	} {
		if testing.Short() && c.inPlace && c.collective != plan.AllReduce {
			continue
		}
		t.Run(fmt.Sprint(c.collective, c.counts, c.inPlace, c.transport), func(t *testing.T) {
			w := newWorld(t, c.transport, len(c.counts), time.Minute)
			w.each(func(rank int) error {
				p := wirePairOf(c.collective, rank, c.counts, c.inPlace)
				return errors.Join(run(w.comms[rank], p.narrow), run(w.comms[rank], p.wide), p.compare())
			})
		})
	}
}

// A rank that gives the narrow dtype itself may mix with ranks that have theirs narrowed; others
// may not.
func TestWireDTypesMeet(t *testing.T) {
	w := newWorld(t, "shm", 2, time.Minute)
	w.each(func(rank int) error {
		p := wirePair(plan.AllReduce, rank, 2, 1000, false)
		want := wirePair(plan.AllReduce, rank, 2, 1000, false)
		err := run(w.comms[rank], want.narrow)
		if rank == 0 {
			return errors.Join(err, run(w.comms[rank], p.narrow))
		}
		p.narrowTo = want.narrowTo
		return errors.Join(err, run(w.comms[rank], p.wide), p.compare())
	})
	w.each(func(rank int) error {
		p := wirePair(plan.AllReduce, rank, 2, 1000, false)
		if rank == 0 {
			p.wide.Wire = call.OwnDType
		}
		err := run(w.comms[rank], p.wide)
		if !errors.Is(err, fault.ErrMismatch) || !strings.Contains(err.Error(), "bfloat16") ||
			!strings.Contains(err.Error(), "float32") {
			return fmt.Errorf("%w, want a mismatch of two dtypes", err)
		}
		return nil
	})
}

// What has no narrower form is refused by its own word, and passed by where the group chooses.
func TestWireDTypeOfGroups(t *testing.T) {
	t.Setenv(EnvWireDType, "bfloat16")
	w := newWorld(t, "shm", 2, time.Minute)
	for _, c := range []plan.Collective{plan.AllReduce, plan.Reduce, plan.ReduceScatter} {
		w.each(func(rank int) error {
			p := wirePair(c, rank, 2, 1000, false)
			p.wide.Wire = call.AnyDType
			return errors.Join(run(w.comms[rank], p.narrow), run(w.comms[rank], p.wide), p.compare())
		})
	}
	for range 3 { // also once its own dtype was asked for, of which the fast path knows nothing
		w.each(func(rank int) error {
			p := wirePair(plan.AllReduce, rank, 2, 1000, false)
			p.wide.Wire = call.OwnDType
			err := run(w.comms[rank], p.wide)
			if err == nil && p.out[0][1] == fromBFloat16(toBFloat16(p.out[0][1])) {
				err = errors.New("it was rounded")
			}
			p = wirePair(plan.AllReduce, rank, 2, 1000, false)
			p.wide.Wire = call.AnyDType
			return errors.Join(err, run(w.comms[rank], p.narrow), run(w.comms[rank], p.wide), p.compare())
		})
	}
	w.each(func(rank int) error { // what is only moved stays as it is
		p := wirePair(plan.Broadcast, rank, 2, 1000, true)
		p.wide.Wire = call.AnyDType
		err := run(w.comms[rank], p.wide)
		return errors.Join(err, same32(p.out[0], some(1, 0, 1000)))
	})
	w.each(func(rank int) error {
		op := allReduce(t, 5)
		op.Wire = call.As(reduce.BFloat16)
		err := run(w.comms[rank], op)
		if !errors.Is(err, fault.ErrInvalidArgument) || !strings.Contains(err.Error(), "wire dtype") {
			return fmt.Errorf("%w, want a refusal", err)
		}
		return nil
	})
}

// Where a member dies, survivors run a collective again on the images: what was read is not read
// once more, as its place may have been written to.
func TestWireDTypeCompletes(t *testing.T) {
	for _, transport := range transports {
		t.Run(transport, func(t *testing.T) {
			w := newWorldOf(t, transport, 3,
				Config{Timeout: 20 * time.Second, Recovery: RecoverySurvivors})
			everything(t, w)
			const n = 1 << 22
			of0, of2 := some(0, 0, n), some(2, 0, n)
			var pairs [3]*twoDTypes
			var works [3]*Work
			for _, rank := range []int{0, 2} { // the other one never calls it
				pairs[rank] = wirePair(plan.AllReduce, rank, 3, n, true)
				var err error
				if works[rank], err = w.comms[rank].Start(CallOptions{}, pairs[rank].wide); err != nil {
					t.Fatal(err)
				}
			}
			w.endFor(0, 1)
			for _, rank := range []int{0, 2} {
				if _, err := works[rank].Wait(-1); err != nil {
					t.Fatalf("rank %d: %v", rank, err)
				}
				for i, x := range pairs[rank].out[0] {
					sum := fromBFloat16(toBFloat16(of0[i])) + fromBFloat16(toBFloat16(of2[i]))
					if want := fromBFloat16(toBFloat16(sum)); x != want {
						t.Fatalf("rank %d: element %d is %v, want %v", rank, i, x, want)
					}
				}
			}
		})
	}
}

func same32(got, want []float32) error {
	if !slices.Equal(got, want) {
		return errors.New("it is not what was sent")
	}
	return nil
}
