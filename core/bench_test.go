package core

import (
	"fmt"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
)

// BenchmarkAllReduce calls small allreduces, as a program in Go would: two ranks of one process.
func BenchmarkAllReduce(b *testing.B) {
	for _, n := range []int{1, 256, 4096} {
		b.Run(fmt.Sprint(4*n), func(b *testing.B) {
			w := newWorld(b, "mem", 2, time.Minute)
			var done sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			for _, c := range w.comms {
				done.Add(1)
				go func() {
					defer done.Done()
					buf := buffer(b, n)
					for range b.N {
						counts := []uint64{uint64(n)}
						at := []unsafe.Pointer{ptr(buf)}
						work, err := c.Start(CallOptions{WaitSoon: true},
							Operation{Collective: plan.AllReduce, DType: reduce.Int32, In: at, Out: at, InCounts: counts,
								OutCounts: counts})
						if err == nil {
							_, err = work.Wait(-1)
						}
						if err != nil {
							b.Error(err)
							return
						}
					}
				}()
			}
			done.Wait()
		})
	}
}
