package transport

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/address"
)

// BenchmarkMesh joins each of 46 endpoints to each other: 1,035 links. It tells what a link costs,
// both ends together, and what one end of it holds.
func BenchmarkMesh(b *testing.B) {
	for _, kind := range []string{address.Shm, address.TCP} {
		b.Run(kind, func(b *testing.B) {
			const ends = 46
			const links = ends * (ends - 1) / 2
			var spent time.Duration
			var held uint64
			for range b.N {
				eps, end := crowd(b, ends)
				w := newWorld(b, eps, kind, 1)
				before, begun := heap(), cpu(b)
				var all sync.WaitGroup
				for r, g := range w.groups {
					for i := 1; i < ends; i++ {
						all.Go(func() {
							if err := g.Meet(within(b), (r+i)%ends); err != nil {
								b.Error(err)
							}
						})
					}
				}
				all.Wait()
				spent += cpu(b) - begun
				held += heap() - before
				end()
			}
			b.ReportMetric(float64(spent.Microseconds())/float64(b.N*links), "cpu-µs/link")
			b.ReportMetric(float64(held)/1024/float64(b.N*2*links), "KiB/end")
		})
	}
}

// cpu is what the process has used so far.
func cpu(t testing.TB) time.Duration {
	t.Helper()
	var u unix.Rusage
	ok(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// heap is what is in use of Go's heap and stacks.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// Of two ranks that meet one dials first, and each does so for half of its peers.
func TestDialsFirst(t *testing.T) {
	for size := 2; size < 10; size++ {
		for rank := range size {
			dials := 0
			for peer := range size {
				if rank == peer {
					continue
				}
				first := dialsFirst(rank, peer, size)
				if first == dialsFirst(peer, rank, size) {
					t.Errorf("%d and %d of %d", rank, peer, size)
				}
				if first {
					dials++
				}
			}
			if half := size / 2; dials != half && dials != size-1-half {
				t.Errorf("rank %d of %d dials %d peers", rank, size, dials)
			}
		}
	}
}

// A rank that meets one which does not come dials it.
func TestMeetAlone(t *testing.T) {
	for rank := range 3 {
		eps := []*Endpoint{listen(t, Config{}), listen(t, Config{}), listen(t, Config{})}
		w := newWorld(t, eps, address.TCP, 1)
		for peer := range 3 {
			if peer != rank {
				ok(t, w.groups[rank].Meet(within(t), peer))
			}
		}
	}
}
