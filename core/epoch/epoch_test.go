package epoch

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/channel"
	"github.com/goccl/goccl/core/config"
	"github.com/goccl/goccl/core/endpoint"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/memory"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/roster"
	"github.com/goccl/goccl/core/status"
	"github.com/goccl/goccl/core/suspended"
)

// communicator is what owns an epoch. It has no other one.
type communicator struct{ recoveries, changes atomic.Int64 }

func (c *communicator) Timeout() time.Duration { return time.Minute }

func (c *communicator) Recover() { c.recoveries.Add(1) }

// Failed implements Owner.
func (*communicator) Failed() {}

func (c *communicator) Changed() { c.changes.Add(1) }

// newEpochs makes the epochs of a group's ranks, all of this process, without a communicator or a
// meeting. They are finished and freed at the end of the test.
func newEpochs(t *testing.T, transport string, size int, settings config.Config) (
	[]*Epoch, []*communicator) {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	arenas := memory.Arenas{Logger: logger}
	ends, addresses := make([]*endpoint.Endpoint, size), make([]address.Address, size)
	for rank := range ends {
		pool := endpoint.Pool{Logger: logger}
		end, err := pool.Open(endpoint.Key{StoreHost: "127.0.0.1", Grace: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(end.Leave)
		me := end.Address()
		me.Forced = transport
		ends[rank], addresses[rank] = end, me.AsRead()
	}
	epochs, owners := make([]*Epoch, size), make([]*communicator, size)
	for rank := range epochs {
		peers, err := roster.Join(addresses, make([]int, size), rank, transport)
		if err != nil {
			t.Fatal(err)
		}
		r := ends[rank].Roster("test", rank, nil, peers)
		r.Identity = roster.Identity{Job: 1, Group: 2, Secret: make([]byte, 32)}
		settings.Transport = transport
		owners[rank] = &communicator{}
		shared := Config{Settings: config.Completed{Config: settings}, Logger: logger,
			Life: context.Background(), End: ends[rank], Arenas: &arenas,
			Suspended: suspended.NewStore(new(memory.Images)), Lingering: new(Lingering),
			Memories: channel.NewMemories(&arenas), Peers: new(status.Peers), Owner: owners[rank]}
		if epochs[rank], err = New(&shared, r, 0); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(shared.FastPath.Free)
	}
	for _, e := range epochs {
		t.Cleanup(func() {
			e.Finish(e.Destroyed())
			e.Free()
		})
		if err := e.Open(e.Identity); err != nil {
			t.Fatal(err)
		}
	}
	return epochs, owners
}

// allReduce is the sum of one number.
func allReduce(in, out *int32) call.Operation {
	return call.Operation{Collective: plan.AllReduce, DType: reduce.Int32,
		In: []unsafe.Pointer{unsafe.Pointer(in)}, InCounts: []uint64{1},
		Out: []unsafe.Pointer{unsafe.Pointer(out)}, OutCounts: []uint64{1}}
}

var kinds = []string{"shm", "tcp"}

// An epoch runs collectives without a communicator. Its failure is told once to the owner of each
// rank, and ends all that comes.
func TestEpochs(t *testing.T) {
	for _, kind := range kinds {
		epochs, owners := newEpochs(t, kind, 3, config.Config{})
		sums := make([]int32, 3)
		works := make([]interface {
			Wait(time.Duration) (bool, error)
		}, 3)
		for rank, e := range epochs {
			in := int32(rank + 1)
			w, err := e.Start(Options{}, []call.Operation{allReduce(&in, &sums[rank])})
			if err != nil {
				t.Fatal(err)
			}
			works[rank] = w
		}
		for rank, w := range works {
			if _, err := w.Wait(-1); err != nil || sums[rank] != 6 {
				t.Errorf("%s: rank %d: %d, %v", kind, rank, sums[rank], err)
			}
		}
		cause := epochs[0].Members.Errorf(fault.ErrAborted, "enough")
		epochs[0].Fail(cause, true)
		for rank, e := range epochs {
			<-e.works.Context.Done()
			if _, err := e.Start(Options{}, []call.Operation{allReduce(&sums[0], &sums[1])}); !errors.Is(
				err, fault.ErrAborted) {
				t.Errorf("%s: rank %d: %v", kind, rank, err)
			}
			if owners[rank].changes.Load() == 0 || owners[rank].recoveries.Load() > 0 {
				t.Errorf("%s: rank %d: the owner is not told, or is to recover", kind, rank)
			}
		}
	}
}

// The death of a member begins a recovery where survivors complete collectives, and enough of them
// are left. Until it is over operations are for the next epoch.
func TestDeathBeginsRecovery(t *testing.T) {
	for _, test := range []struct {
		recovery string
		minSize  int
		want     int64
	}{{config.RecoveryStep, 0, 0}, {config.RecoverySurvivors, 0, 1}, {config.RecoverySurvivors, 2, 1},
		{config.RecoverySurvivors, 3, 0}} {
		epochs, owners := newEpochs(t, "shm", 3, config.Config{Recovery: test.recovery,
			MinSize: test.minSize})
		e, x := epochs[0], int32(0)
		died := e.Members.Errorf(fault.ErrPeerFailed, "it has ended").Blaming(2)
		e.Fail(died, false)
		e.Fail(died, false)
		if n := owners[0].recoveries.Load(); n != test.want {
			t.Errorf("%+v: %d recoveries have begun", test, n)
		}
		e.config.Suspended.Begin(func(error) {})
		over := test.recovery == config.RecoverySurvivors
		ops := []call.Operation{allReduce(&x, &x)}
		if _, err := e.Start(Options{}, ops); errors.Is(err, ErrOver) != over {
			t.Errorf("%+v: while members recover: %v", test, err)
		}
		if _, err := e.Start(Options{Internal: true}, ops); !errors.Is(err, fault.ErrPeerFailed) {
			t.Errorf("%+v: what recovers itself: %v", test, err)
		}
		if left, ended := e.EndRecovery(false); ended || left != nil {
			t.Errorf("%+v: it is over, though another member has died", test)
		}
		if _, ended := e.EndRecovery(true); !ended {
			t.Errorf("%+v: it goes on, though it has failed", test)
		}
		if _, err := e.Start(Options{}, ops); !errors.Is(err, fault.ErrPeerFailed) {
			t.Errorf("%+v: after the recovery: %v", test, err)
		}
		e.End()
		if _, err := e.Start(Options{}, ops); errors.Is(err, ErrOver) != over {
			t.Errorf("%+v: after the epoch: %v", test, err)
		}
	}
}

// An epoch does not finish while a thread is in the fast path, which the next one uses: it still
// reads and writes its buffers, and takes the number of its collective from there.
func TestFinishWaitsForCallerInC(t *testing.T) {
	epochs, _ := newEpochs(t, "shm", 2, config.Config{})
	e := epochs[0]
	// gate is where that of a goccl_fast_path is: its first word tells who is inside.
	const gate = 3 * unsafe.Sizeof(uintptr(0))
	atomic.StoreUint32((*uint32)(unsafe.Add(e.FastPath(0), gate)), 1)
	finished := make(chan struct{})
	go func() {
		e.Finish(e.Destroyed())
		close(finished)
	}()
	<-e.stopped
	select {
	case <-finished:
		t.Error("it has finished")
	case <-time.After(50 * time.Millisecond):
	}
	x := int32(0)
	if _, err := e.CarryOn(Options{}, allReduce(&x, &x)); !errors.Is(err, fault.ErrAborted) {
		t.Error(err)
	}
	<-finished
}

// An epoch that cannot be opened has no links. Nobody answers it then.
func TestOpenFails(t *testing.T) {
	epochs, _ := newEpochs(t, "shm", 2, config.Config{})
	again := *epochs[0].config
	again.FastPath = nil
	e, err := New(&again, epochs[0].Roster, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Open(epochs[0].Identity); err == nil {
		t.Error("two epochs of one group are open")
	}
	if missing, _ := e.askThese(t.Context(), []int{1}, 0); len(missing) != 1 {
		t.Errorf("of rank 1 %v are missing", missing)
	}
	if kind := e.Kind(1); kind != "shm" {
		t.Errorf("rank 1 is joined by %q", kind)
	}
	e.Finish(e.Destroyed())
	e.FreeFastPath()
	e.Free()
}

// What a peer announces is checked.
func TestBrokenAnnouncement(t *testing.T) {
	epochs, _ := newEpochs(t, "shm", 2, config.Config{})
	if err := epochs[0].onAnnounce(1, make([]byte, 40)); !errors.Is(err, exec.ErrProtocol) {
		t.Error(err)
	}
}

// A plan's connections are made at once, in no order of need.
func TestConnectionsOfAPlan(t *testing.T) {
	const size = 5
	for _, kind := range kinds {
		epochs, _ := newEpochs(t, kind, size, config.Config{})
		e := epochs[0]
		<-e.connect(1, 1, 2, 3, 4)
		for peer := 1; peer < size; peer++ {
			if !e.group.Connected(peer) {
				<-e.connect(peer)
			}
			if !e.group.Connected(peer) {
				t.Errorf("%s: no connection to rank %d", kind, peer)
			}
		}
	}
}

// Not more are made than there is room for, but for those that are waited for. As they end, the
// next begin.
func TestDialsAreBounded(t *testing.T) {
	const size = 4
	epochs, _ := newEpochs(t, "tcp", size, config.Config{})
	e := epochs[0]
	d := &e.dialer
	d.busy = mostDials
	<-e.connect(1, 2, 3)
	d.mu.Lock()
	if two, three := d.dials[2], d.dials[3]; two == nil || two.begun || three == nil || three.begun {
		t.Errorf("dials: %v, %v", two, three)
	}
	planned := []*dial{d.dials[2], d.dials[3]}
	d.busy -= mostDials
	d.mu.Unlock()
	<-e.connect(3)
	for _, p := range planned {
		<-p.ended
	}
	for peer := 1; peer < size; peer++ {
		if !e.group.Connected(peer) {
			t.Errorf("no connection to rank %d", peer)
		}
	}
}
