package exec

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/plan"
)

// staged is how many bytes of a peer lie in the lane's inbox, put and not yet released.
func (l *Lane) staged(peer int) (bytes int64) {
	c, run := &l.channels[peer], Run{}
	const line = int(MessageHeader)
	for n := uint64(c.freed); n < uint64(c.freed)+uint64(l.c.slots); n++ {
		slot := unsafe.Add(unsafe.Pointer(c.inbox), int64(n%uint64(l.c.slots))*int64(c.stride))
		stamp := *(*uint64)(unsafe.Add(slot, line-8))
		if stamp>>33 != (n+1)&0x7fffffff {
			break
		}
		if stamp>>32&1 != 0 { // the message lies in the line, and its header behind
			slot = unsafe.Add(slot, line)
		}
		bytes += int64(*(*uint32)(unsafe.Add(slot, unsafe.Offsetof(run.c.message.bytes))))
	}
	return bytes
}

// What lies in the windows while an all-to-all runs is measured, with the ranks at different
// speeds: a sequential one has one chunk in each direction at most, whatever the ranks and the
// sizes, and other schedules no more than is proved of their plans.
func TestStagingOfAllToAll(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	const chunk, slots = 256, 4
	for _, size := range []int{2, 3, 4, 7, 8} {
		lanes := meshOf(t, size, Layout{Ranks: size, Lanes: 1, Slots: slots, Chunk: chunk})
		for _, schedule := range []plan.Schedule{plan.Sequential, 2, plan.Parallel} {
			for _, n := range []int64{0, 100, 10 * chunk} {
				plans, params := make([]*plan.Plan, size), make([]plan.Params, size)
				bytes := func(from, to int) int64 { return n * int64((from+2*to)%3) }
				for r := range size {
					p := plan.Params{Collective: plan.AllToAll, Algorithm: plan.Pairwise, Schedule: schedule,
						Rank: r,
						Size: size, ElemSize: 1, Chunk: chunk, Slots: slots, Memory: true}
					if schedule == plan.Parallel {
						p.Algorithm = plan.Linear
					}
					for peer := range size {
						p.InBytes, p.OutBytes = append(p.InBytes, bytes(r, peer)), append(p.OutBytes, bytes(peer, r))
					}
					var err error
					if plans[r], err = plan.Build(p); err != nil {
						t.Fatal(err)
					}
					params[r] = p
				}
				most, err := plan.PeaksOf(plans, params)
				if err != nil {
					t.Fatal(err)
				}
				seen := make([]plan.Peaks, size)
				look := func() {
					for r := range size {
						var now plan.Peaks
						for peer := range size {
							if peer == r {
								continue
							}
							sent, received := lanes[peer].staged(r), lanes[r].staged(peer)
							now.Sent, now.Received = now.Sent+sent, now.Received+received
							if received > 0 {
								now.Incast++
							}
							if sent+received > 0 {
								now.Pairs++
							}
						}
						s := &seen[r]
						*s = plan.Peaks{Pairs: max(s.Pairs, now.Pairs), Incast: max(s.Incast, now.Incast),
							Sent:     max(s.Sent, now.Sent),
							Received: max(s.Received, now.Received), Staging: max(s.Staging, now.Sent+now.Received)}
					}
				}
				carryAll(t, lanes, plans, params, rnd, look, func(int, *Binding) {})
				var all plan.Peaks
				for r, s := range seen {
					m := most[r]
					all.Incast, all.Staging = max(all.Incast, s.Incast), max(all.Staging, s.Staging)
					what := fmt.Sprintf("%d ranks, %q, %d bytes: rank %d had %+v, of %+v", size, schedule, n, r, s,
						m)
					if s.Pairs > m.Pairs || s.Incast > m.Incast || s.Sent > m.Sent || s.Received > m.Received ||
						s.Staging > m.Staging {
						t.Error(what)
					}
					if schedule == plan.Sequential && (s.Pairs > 1 || s.Sent > chunk || s.Received > chunk) {
						t.Error(what)
					}
				}
				if n > chunk && size > 2 && (schedule == plan.Sequential) != (all.Incast == 1 &&
					all.Staging == 2*chunk) {
					t.Errorf("%d ranks, %q: %+v was seen", size, schedule, all)
				}
			}
		}
	}
}

// meshOf is the only lanes of windows that are joined by memory, each with all others.
func meshOf(t *testing.T, size int, l Layout) []*Lane {
	windows, lanes := make([]*Window, size), make([]*Lane, size)
	for r := range size {
		w, err := NewWindow(l, r, true, Waiting{})
		if err != nil {
			t.Fatal(err)
		}
		atEnd(t, w.Close)
		windows[r], lanes[r] = w, w.Lane(0)
	}
	for r, w := range windows {
		for peer, other := range windows {
			if peer == r {
				continue
			}
			fd, err := unix.Dup(other.FD())
			if err != nil {
				t.Fatal(err)
			}
			if err := w.ConnectMemory(r, peer, fd); err != nil {
				t.Fatal(err)
			}
		}
	}
	return lanes
}

// carryAll runs plans, whose inputs fill fills, a rank at a time as far as it goes without waiting,
// or less far. It looks in between.
func carryAll(
	t *testing.T, lanes []*Lane, plans []*plan.Plan, params []plan.Params, rnd *rand.Rand, look func(),
	fill func(rank int, b *Binding),
) (bindings []Binding) {
	t.Helper()
	runs, left := make([]*Run, len(plans)), len(plans)
	for r, p := range plans {
		c := must(Compile(p, false, false))
		runs[r] = must(NewRun(lanes[r]))
		b := Binding{Message: plan.Message{Sequence: 1}}
		for i := range plans {
			b.In = append(b.In, off(t, int(params[r].InBytes[i])+1))
			b.Out = append(b.Out, off(t, int(params[r].OutBytes[i])+1))
		}
		fill(r, &b)
		bindings = append(bindings, b)
		runs[r].Bind(b)
		runs[r].Begin(c, 0)
		defer c.Free()
		defer runs[r].Free()
	}
	ended := make([]bool, len(plans))
	for deadline := time.Now().Add(time.Minute); left > 0; look() {
		r := rnd.IntN(len(plans))
		if ended[r] {
			continue
		}
		// A few steps only, for what others would see in between.
		state := runs[r].c
		p, steps, upTo := state.plan, state.plan.n_steps, state.step+1
		for range rnd.IntN(3) {
			upTo++
		}
		p.n_steps = min(steps, upTo)
		status := runs[r].Continue(0)
		p.n_steps, state.plan = steps, p
		switch {
		case status == Done && state.step == steps:
			ended[r] = true
			left--
		case status != Done && status != Blocked || time.Now().After(deadline):
			t.Fatalf("rank %d: status %d at step %d", r, status, state.step)
		}
	}
	return bindings
}
