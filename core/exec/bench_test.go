package exec

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/reduce/kernel"
)

// BenchmarkRun measures what a collective of two threads costs in the loop alone: each rewrites its
// input before every call. It reports the median of the slower rank.
func BenchmarkRun(b *testing.B) {
	for _, c := range []plan.Collective{plan.AllReduce, plan.Broadcast, plan.AllGather,
		plan.ReduceScatter, plan.AllToAll} {
		for _, n := range []int64{4, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20,
			64 << 20} {
			b.Run(fmt.Sprintf("%v/%d", c, n), func(b *testing.B) { benchmarkRun(b, c, n) })
		}
	}
}

func benchmarkRun(b *testing.B, c plan.Collective, n int64) {
	const ranks = 2
	l := Layout{Ranks: ranks, Lanes: 1, Slots: 4, Chunk: 256 << 10}
	var windows [ranks]*Window
	for r := range ranks {
		w, err := NewWindow(l, r, true, Waiting{Spin: time.Millisecond})
		if err != nil {
			b.Fatal(err)
		}
		defer w.Close()
		windows[r] = w
	}
	for r := range ranks {
		fd, err := unix.Dup(windows[1-r].FD())
		if err != nil {
			b.Fatal(err)
		}
		if err := windows[r].ConnectMemory(r, 1-r, fd); err != nil {
			b.Fatal(err)
		}
	}
	sum, err := kernel.Of(reduce.Float32, reduce.Sum)
	if err != nil {
		b.Fatal(err)
	}
	var times [ranks][]time.Duration
	var done sync.WaitGroup
	for r := range ranks {
		done.Add(1)
		go func() {
			defer done.Done()
			runtime.LockOSThread()
			in, out := allocate(b, n), allocate(b, n)
			p := plan.Params{Collective: c, Algorithm: plan.Linear, Rank: r, Size: ranks, ElemSize: 4,
				Chunk: l.Chunk, Slots: l.Slots, Memory: true,
				Thresholds: plan.Thresholds{OneShotMax: 2 << 10, PipelineMin: 64 << 10}}
			bind := Binding{Kernels: sum}
			half := n / 8 * 4
			switch whole := []int64{n}; c {
			case plan.AllReduce, plan.Broadcast: // in place
				p.Algorithm = map[plan.Collective]plan.Algorithm{plan.AllReduce: plan.TwoShot,
					plan.Broadcast: plan.Flat}[c]
				p.InBytes, p.OutBytes = whole, whole
				bind.In, bind.Out = []unsafe.Pointer{ptr(in)}, []unsafe.Pointer{ptr(in)}
			case plan.AllGather:
				p.InBytes, p.OutBytes = []int64{half}, []int64{half, half}
				bind.In, bind.Out = []unsafe.Pointer{ptr(in)}, []unsafe.Pointer{ptr(out), ptr(out[half:])}
			case plan.ReduceScatter:
				p.InBytes, p.OutBytes = []int64{half, half}, []int64{half}
				bind.In, bind.Out = []unsafe.Pointer{ptr(in), ptr(in[half:])}, []unsafe.Pointer{ptr(out)}
			case plan.AllToAll:
				p.InBytes, p.OutBytes = []int64{half, half}, []int64{half, half}
				bind.In = []unsafe.Pointer{ptr(in), ptr(in[half:])}
				bind.Out = []unsafe.Pointer{ptr(out), ptr(out[half:])}
			}
			built, err := plan.Build(p)
			if err != nil {
				b.Error(err)
				return
			}
			compiled := must(Compile(built, false, false))
			defer compiled.Free()
			run := must(NewRun(windows[r].Lane(0)))
			defer run.Free()
			for i := range b.N + 1 {
				clear(in)
				bind.Message.Sequence = uint64(i)
				run.Bind(bind)
				start := time.Now()
				run.Begin(compiled, 0)
				if s := run.Continue(Now() + time.Minute); s != Done {
					b.Errorf("status %d", s)
					return
				}
				if i > 0 {
					times[r] = append(times[r], time.Since(start))
				}
			}
		}()
	}
	done.Wait()
	if b.Failed() {
		return
	}
	slower := make([]time.Duration, b.N)
	for i := range slower {
		slower[i] = max(times[0][i], times[1][i])
	}
	slices.Sort(slower)
	b.ReportMetric(float64(slower[b.N/2].Nanoseconds())/1e3, "median-µs")
}

func ptr(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

func allocate(b *testing.B, n int64) []byte {
	m, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		b.Error(err)
		return make([]byte, n)
	}
	b.Cleanup(func() { _ = unix.Munmap(m) })
	return m
}
