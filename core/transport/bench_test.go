package transport

import (
	"context"
	"sync/atomic"
	"testing"
)

// ponger answers every frame from a goroutine of its own, as handlers must not send.
type ponger struct {
	*recorder
	in    chan struct{}
	slots []byte
	count atomic.Int64
	want  int64
	done  chan struct{}
}

func (p *ponger) Control(int, Header, []byte) { p.in <- struct{}{} }
func (p *ponger) Acked(int, Header, []byte)   {}
func (p *ponger) Slot(int, Header) (head, body []byte, err error) {
	return nil, p.slots, nil
}
func (p *ponger) Arrived(int, Header) {
	if p.count.Add(1) == p.want {
		close(p.done)
	}
}

func benchWorld(b *testing.B, kind string) (gs [2]*Group, hs [2]*ponger) {
	eps := pair(b, kind, Config{})
	for r := range eps {
		hs[r] = &ponger{recorder: newRecorder(), in: make(chan struct{}, 1),
			slots: make([]byte, 256<<10), done: make(chan struct{})}
		c := groupConfig(eps, kind, 1, r)
		c.Handler = hs[r]
		g, err := eps[r].Attach(c)
		ok(b, err)
		gs[r] = g
	}
	ok(b, gs[0].Connect(within(b), 1))
	ok(b, gs[1].Connect(within(b), 0))
	return gs, hs
}

func BenchmarkPingPong64(b *testing.B) {
	for _, kind := range kinds {
		b.Run(kind, func(b *testing.B) {
			gs, hs := benchWorld(b, kind)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			go func() {
				p := make([]byte, 64)
				for {
					select {
					case <-hs[1].in:
					case <-ctx.Done():
						return
					}
					if gs[1].Send(ctx, 0, Header{Type: ControlBase}, p) != nil {
						return
					}
				}
			}()
			p := make([]byte, 64)
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				if err := gs[0].Send(ctx, 1, Header{Type: ControlBase}, p); err != nil {
					b.Fatal(err)
				}
				<-hs[0].in
			}
		})
	}
}

func BenchmarkOneWay256K(b *testing.B) {
	for _, kind := range kinds {
		b.Run(kind, func(b *testing.B) {
			gs, hs := benchWorld(b, kind)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			p := make([]byte, 256<<10)
			hs[1].want = int64(b.N)
			b.SetBytes(int64(len(p)))
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				if err := gs[0].Send(ctx, 1, Header{Type: Data}, p); err != nil {
					b.Fatal(err)
				}
			}
			<-hs[1].done
		})
	}
}
