package channel

import (
	"bytes"
	"testing"
	"unsafe"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/polltest"
)

// lenders are two ranks joined by verbs, and a channel of the first.
func lenders(t *testing.T) (w *world, c *Channel) {
	w = joinWorld(t, 2, true)
	w.verbs = true
	c = w.ranks[0].open(1, 0, "")
	w.ranks[1].open(0, 0, "")
	w.settle()
	return w, c
}

// A put of shareable memory copies nothing. What a peer was lent comes back when it is gone.
func TestDepartureReturnsWhatIsLent(t *testing.T) {
	w, c := lenders(t)
	r := w.ranks[0]
	src := r.shareable(room)
	if err := c.Put(r.imported(w.ranks[1].own, 1), 0, src, 0); err != nil {
		t.Fatal(err)
	}
	copy(src, "written behind the put, which has not been flushed")
	r.release(src)
	if next := r.shareable(room); &next[0] == &src[0] {
		t.Fatal("what is lent is allocated again")
	} else {
		r.release(next)
	}
	r.Depart(1, fault.Errorf(fault.ErrPeerFailed, "test"))
	next := r.shareable(room)
	if &next[0] != &src[0] {
		t.Error("what was lent is lost")
	}
	r.release(next)
	w.settle() // the answer comes late
	if !bytes.HasPrefix(w.ranks[1].registered(), []byte("written behind")) {
		t.Error("the put was copied")
	}
	w.correct()
}

// Memory that is not shareable is copied, and so is what the peer may not read by itself.
func TestNothingElseIsLent(t *testing.T) {
	w, c := lenders(t)
	r := w.ranks[0]
	its := r.imported(w.ranks[1].own, 1)
	src := r.shareable(8)
	defer r.release(src)
	w.verbs = false
	for _, from := range [][]byte{src, make([]byte, 8)} {
		copy(from, "put here")
		if err := c.Put(its, 0, from, 0); err != nil {
			t.Fatal(err)
		}
		clear(from)
		w.settle()
		if !bytes.HasPrefix(w.ranks[1].registered(), []byte("put here")) {
			t.Error("the source was not copied")
		}
		clear(w.ranks[1].registered())
		w.verbs = true
	}
	w.correct()
}

// A peer that fails takes back what it has lent: what comes behind it, signals too, does not count.
func TestNothingBehindWhatIsTakenBack(t *testing.T) {
	w, c := lenders(t)
	r, owner := w.ranks[0], w.ranks[1]
	peer := owner.all()[0]
	its := r.imported(owner.own, 1)
	if err := c.Put(its, 0, make([]byte, 8), 1); err != nil {
		t.Fatal(err)
	}
	first := w.links[way{0, 1}][0]
	w.links[way{0, 1}] = nil
	first.Bytes = 8
	if _, err := owner.Slot(0, first.Header); err != nil {
		t.Fatal(err)
	}
	owner.Dropped(0)
	if err := c.Signal(1); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(make([]byte, 8), its, 0); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if taken, _ := peer.Poll(1); taken {
		t.Error("a signal was taken whose data is not there")
	}
	if len(r.gets) != 1 || len(owner.peers[0].lent) != 0 {
		t.Errorf("what was to be put there is got: %v", r)
	}
	w.correct()
}

// A long get is read from the owner's memory. If that is deregistered before all was read, the get
// is lost, and nothing else is allocated there meanwhile.
func TestDeregisterAmidLongGet(t *testing.T) {
	for name, deregistered := range map[string]bool{"kept": false, "deregistered": true} {
		t.Run(name, func(t *testing.T) {
			w, c := lenders(t)
			r, owner := w.ranks[0], w.ranks[1]
			from := owner.shareable(4 * shortGet)
			for i := range from {
				from[i] = byte(i / 100)
			}
			want := bytes.Clone(from)
			m, err := owner.Memories.Register(unsafe.Pointer(&from[0]), uint64(len(from)),
				exec.RemoteRead)
			if err != nil {
				t.Fatal(err)
			}
			dst := make([]byte, len(from))
			if err := c.Get(dst, r.imported(m, 1), 0); err != nil {
				t.Fatal(err)
			}
			serves := make(chan func(), 1)
			owner.peers[0].served.Spawn = func(f func()) { serves <- f }
			w.read(way{0, 1})
			over := make(chan struct{})
			go func() { // it waits until the peer has read
				defer close(over)
				(<-serves)()
			}()
			awaitFrame(t, owner)
			if deregistered {
				m.Deregister()
				owner.release(from)
				next := owner.shareable(len(from))
				clear(next)
				owner.release(next)
			}
			w.read(way{1, 0})
			<-over
			w.settle()
			if lost := len(c.lost) > 0; lost != deregistered {
				t.Errorf("the get is lost: %v", c.lost)
			}
			if read := len(dst) - shortGet; !bytes.Equal(dst[:read], want[:read]) {
				t.Error("others have come")
			}
			if !deregistered {
				owner.release(from)
			}
			w.correct()
		})
	}
}

// awaitFrame waits until a rank's link to rank 0 has something to be read.
func awaitFrame(t *testing.T, r *rank) {
	t.Helper()
	polltest.Until(t, "something is sent", func() bool {
		r.w.mu.Lock()
		defer r.w.mu.Unlock()
		return len(r.w.links[way{r.number, 0}]) > 0
	})
}
