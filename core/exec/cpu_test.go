package exec

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/plan"
)

// allowed are the CPUs that this process may run on.
func allowed(t *testing.T) (cpus []int) {
	t.Helper()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	for cpu := 0; len(cpus) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

// pin has the calling thread run on some CPUs, which its goroutine is locked to.
func pin(t *testing.T, cpus ...int) {
	var set unix.CPUSet
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		t.Errorf("CPUs %v: %v", cpus, err)
	}
}

// pinned calls a function on a thread of its own that runs on one CPU.
func pinned(t *testing.T, cpu int, f func()) {
	t.Helper()
	over := make(chan struct{})
	go func() {
		defer close(over)
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		pin(t, cpu)
		f()
	}()
	<-over
}

const mostGiven = 64 // GOCCL_GIVEN_MOST

func cpuOf(w *Window) *uint32 { return (*uint32)(&w.Lane(1).c.bell.cpu) }

// A waiter gives its CPU to the peer that it waits for where that ran there last, and sleeps soon
// where this does not bring it. It does neither for a peer elsewhere, or one that sleeps.
func TestYieldsToPeerOnItsCPU(t *testing.T) {
	cpu := allowed(t)[0]
	here, elsewhere, asleep := uint32(cpu+1), uint32(cpu+2), uint32(0)
	for _, c := range []struct {
		name   string
		peer   uint32
		yields uint32
	}{{"here", here, mostGiven}, {"elsewhere", elsewhere, 0}, {"asleep", asleep, 0}} {
		w := newPairWaiting(t, Waiting{Spin: 4 * time.Second, Yields: 10})
		atomic.StoreUint32(cpuOf(w[0]), c.peer)
		recv, _ := started(t, w, 1, 10, plan.Message{})
		pinned(t, cpu, func() {
			if s := recv.Continue(Spin); s != Blocked {
				t.Errorf("%s: status %d", c.name, s)
			}
			recv.Waited(true)
			if at := atomic.LoadUint32(cpuOf(w[1])); at != here {
				t.Errorf("%s: the waiter tells that it is on CPU %d - 1, want %d - 1", c.name, at, here)
			}
			for begun := Now(); ; {
				if s := recv.Continue(soon()); s != Blocked {
					t.Errorf("%s: status %d", c.name, s)
				}
				if uint32(recv.c.polls.given) == c.yields || Now()-begun > 20*time.Second {
					break
				}
			}
			recv.Continue(soon())
		})
		if got := uint32(recv.c.polls.given); got != c.yields {
			t.Errorf("%s: %d yields to the peer, want %d", c.name, got, c.yields)
		}
		if slept := atomic.LoadUint32(cpuOf(w[1])) == 0; slept != (c.yields > 0) {
			t.Errorf("%s: the waiter sleeps: %v", c.name, slept)
		}
	}
}

// A wait in which a yield took long, for a busy program has the CPU, sleeps and yields no more.
func TestYieldsOnceToBusyProgram(t *testing.T) {
	cpu := allowed(t)[0]
	for _, wait := range []Waiting{{Spin: 4 * time.Second, Yields: 10}, {Yields: 1 << 10}} {
		w := newPairWaiting(t, wait)
		atomic.StoreUint32(cpuOf(w[0]), uint32(cpu+1))
		recv, _ := started(t, w, 1, 10, plan.Message{})
		recv.Waited(true)
		if s := recv.Continue(0); s != Blocked { // begins, which makes the polls zero
			t.Fatalf("status %d", s)
		}
		polls := &recv.c.polls
		const longAgo = 1 // ns after the start of the machine
		polls.given, polls.yields, polls.gave = 1, 1, longAgo
		pinned(t, cpu, func() { recv.Continue(soon()) })
		if polls.gave != longAgo {
			t.Errorf("%+v: the wait yields again: %d and %d", wait, polls.given, polls.yields)
		}
	}
}

// Whom a waiter for packets waits for, and no other rank, gets its CPU.
func TestYieldsToSenderOfPacket(t *testing.T) {
	cpu := allowed(t)[0]
	w := newPairWaiting(t, Waiting{Spin: 4 * time.Second, Yields: 10})
	atomic.StoreUint32(cpuOf(w[0]), uint32(cpu+1))
	var done atomic.Uint32
	for peer, yields := range map[int]bool{0: true, -1: true, 1: false} {
		mail := w[1].Mail()
		mail.c.polls.given = 0
		pinned(t, cpu, func() {
			if s, _, _ := mail.Await(nil, &done, peer, true, soon()); s != Late {
				t.Errorf("a wait for rank %d ends by %d", peer, s)
			}
		})
		if got := mail.c.polls.given; (got > 0) != yields {
			t.Errorf("a wait for rank %d: %d yields to a peer, want some: %v", peer, got, yields)
		}
	}
}

// player is one of two ranks that send each other a message in turn.
type player struct {
	send, recv *Run
	plans      [2]*Compiled
	in, out    *uint64
}

func newPlayer(t *testing.T, w [2]*Window, rank int) *player {
	t.Helper()
	p := &player{in: (*uint64)(off(t, 4096)), out: (*uint64)(off(t, 4096))}
	params := plan.Params{Rank: rank, Size: 2, Root: 1 - rank, ElemSize: 8, Chunk: layout.Chunk,
		Slots: layout.Slots}
	for i := range p.plans {
		q := params
		if i == 0 {
			q.Collective, q.InBytes = plan.Send, []int64{8}
		} else {
			q.Collective, q.OutBytes = plan.Recv, []int64{8}
		}
		p.plans[i] = must(Compile(must(plan.Build(q)), false, false))
		atEnd(t, p.plans[i].Free)
	}
	p.send, p.recv = must(NewRun(w[rank].Lane(1))), must(NewRun(w[rank].Lane(1)))
	atEnd(t, p.send.Free)
	atEnd(t, p.recv.Free)
	return p
}

var errStuck = errors.New("a message does not come")

// play makes one turn, the first player's or the other's.
func (p *player) play(first bool, turn uint64) error {
	steps := []func() (*Run, *Compiled, Binding){
		func() (*Run, *Compiled, Binding) {
			*p.in = turn
			return p.send, p.plans[0], Binding{In: []unsafe.Pointer{unsafe.Pointer(p.in)}}
		},
		func() (*Run, *Compiled, Binding) {
			return p.recv, p.plans[1], Binding{Out: []unsafe.Pointer{unsafe.Pointer(p.out)}}
		},
	}
	if !first {
		steps[0], steps[1] = steps[1], steps[0]
	}
	for _, step := range steps {
		run, compiled, b := step()
		b.Message = plan.Message{Sequence: turn}
		if err := run.Bind(b); err != nil {
			return err
		}
		run.Waited(true)
		if err := run.Begin(compiled, 0); err != nil {
			return err
		}
		if s := run.Continue(Now() + time.Minute); s != Done {
			return errStuck
		}
	}
	if *p.out != turn {
		return errors.New("another turn's message")
	}
	return nil
}

// Ranks that are moved between CPUs, beside programs that come and go, miss nothing and do not
// starve each other: whatever the priorities and however few CPUs there are.
func TestRanksThatMove(t *testing.T) {
	all := allowed(t)
	for _, c := range []struct {
		name  string
		cpus  []int
		hogs  bool
		first uint32 // the policy of the first rank
		turns uint64
	}{
		{"moving", all, false, unix.SCHED_NORMAL, 3000},
		{"beside others", all, true, unix.SCHED_NORMAL, 100},
		{"one CPU", all[:1], false, unix.SCHED_NORMAL, 3000},
		{"idle priority", all[:1], false, unix.SCHED_IDLE, 1000},
		{"realtime priority", all[:1], false, unix.SCHED_FIFO, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newPairWaiting(t, Waiting{Spin: 3 * time.Millisecond, Yields: 20})
			var hogs, ranks sync.WaitGroup
			var over atomic.Bool
			for i := 0; c.hogs && i < len(all); i++ {
				hogs.Go(func() { comeAndGo(t, all, &over) })
			}
			for rank := range w {
				p := newPlayer(t, w, rank)
				ranks.Go(func() {
					runtime.LockOSThread()
					if rank == 0 && c.first != unix.SCHED_NORMAL {
						a := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: c.first}
						if c.first == unix.SCHED_FIFO {
							a.Priority = 1
						}
						if err := unix.SchedSetAttr(0, &a, 0); err != nil {
							t.Logf("not run with this priority, for the system refuses it: %v", err)
						}
					}
					for turn := range c.turns {
						if turn%16 == 0 {
							pin(t, c.cpus[rand.IntN(len(c.cpus))])
						}
						if err := p.play(rank == 0, turn+1); err != nil {
							t.Errorf("rank %d, turn %d: %v", rank, turn, err)
							return
						}
					}
				})
			}
			ranks.Wait()
			over.Store(true)
			hogs.Wait()
		})
	}
}

// comeAndGo takes a CPU for a while, and leaves it for a while, until it is over.
func comeAndGo(t *testing.T, cpus []int, over *atomic.Bool) {
	runtime.LockOSThread()
	for !over.Load() {
		pin(t, cpus[rand.IntN(len(cpus))])
		for until := time.Now().Add(time.Duration(rand.IntN(5e6))); time.Now().Before(until); {
		}
		time.Sleep(time.Duration(rand.IntN(5e6)))
	}
}
