package transport

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/internal/polltest"
	"github.com/goccl/goccl/rdma"
	"github.com/goccl/goccl/rdma/fake"
)

// lender is a pair joined by a double, with memory of so many bytes that it knows.
func lender(t *testing.T, size int) (eps []*Endpoint, double *fake.Library, known []byte) {
	double = fake.New(t)
	known = pages(t, size)
	memory := &rdma.Memory{}
	p := unsafe.Pointer(&known[0])
	memory.Add(p, int64(size), nil, nil)
	c := Config{Verbs: VerbsConfig{Library: double.Path, GIDIndex: -1, Memory: memory}}
	return pair(t, address.Verbs, c), double, known
}

// inTwoGroups joins the first two endpoints in two groups, over one link.
func inTwoGroups(t *testing.T, eps []*Endpoint) (ctx context.Context, w, other *world) {
	ctx, w, other = within(t), newWorld(t, eps, address.Verbs, 1), newWorld(t, eps, address.Verbs, 2)
	// each side learns of it by itself
	for _, g := range []*Group{w.groups[0], w.groups[1], other.groups[0], other.groups[1]} {
		ok(t, g.Connect(ctx, 1-g.key.rank))
	}
	return ctx, w, other
}

// An advertised payload comes in its place in the order, wherever its slot is cut and whatever it
// lies in.
func TestAdvertisedBuffers(t *testing.T) {
	const size = 1 << 20
	eps, _, known := lender(t, 2*size)
	w := newWorld(t, eps, address.Verbs, 1)
	from, to := known[:size], known[size:]
	for i := range from {
		from[i] = byte(i * 7 / 5)
	}
	slots := 0
	w.handlers[1].slot = func(_ int, h Header) ([]byte, error) {
		if slots++; slots%2 == 0 && h.Bytes <= size {
			return to[:h.Bytes], nil
		}
		return make([]byte, h.Bytes), nil
	}
	ctx := within(t)
	ok(t, w.groups[0].Connect(ctx, 1))
	for i, c := range []struct {
		head, body int
		advertised bool
	}{{0, size, true}, {64, size - 64, true}, {size / 2, size / 2, true},
		{size - getMin, getMin, true}, {64, getMin - 1, false}, {size, 0, false}} {
		for time := range 2 {
			if c.body > 0 && w.groups[0].Advertises(1, from[:c.body]) != c.advertised {
				t.Errorf("%d bytes: whether they may be advertised is wrong", c.body)
			}
			before := len(w.handlers[1].untilFrames(t, 0))
			head := bytes.Repeat([]byte{byte(i)}, c.head)
			advertised, err := w.groups[0].Advertise(ctx, false, 1,
				Header{Type: Data, Seq: uint64(i)}, head, from[:c.body])
			if err != nil || advertised != c.advertised {
				t.Fatalf("%d and %d bytes: advertised %v, %v", c.head, c.body, advertised, err)
			}
			ok(t, w.groups[0].Send(ctx, 1, Header{Type: QuickBase, Seq: uint64(i)}))
			frames := w.handlers[1].untilFrames(t, before+2)[before:]
			if frames[0].h.Type != Data ||
				!bytes.Equal(frames[0].payload, slices.Concat(head, from[:c.body])) ||
				frames[1].h.Type != QuickBase {
				t.Fatalf("%d and %d bytes, time %d: others have come", c.head, c.body, time)
			}
		}
	}
	w.handlers[0].until(t, "the last answer", func() bool {
		return len(slices.DeleteFunc(slices.Clone(w.handlers[0].order),
			func(s string) bool { return s != "acked 1" })) == 8
	})
	if advertised, err := w.groups[0].Advertise(ctx, false, 1, Header{Type: Data},
		make([]byte, size)); advertised || err != nil {
		t.Errorf("memory that is not known is advertised: %v, %v", advertised, err)
	}
}

// A group is halted while what was advertised to it is on its way: it is told that nothing more
// comes when that is so, and not before; or, where that takes too long, when the queue pair is
// gone.
func TestHaltDuringAGet(t *testing.T) {
	for _, mended := range []bool{true, false} {
		eps, double, known := lender(t, 1<<20)
		ctx, w, other := inTwoGroups(t, eps)
		asked := make(chan int, 1)
		w.handlers[1].slot = func(_ int, h Header) ([]byte, error) {
			double.Link(0, 1, false) // before the read
			asked <- double.Calls("wr")
			return make([]byte, h.Bytes), nil
		}
		advertised, err := w.groups[0].Advertise(ctx, false, 1, Header{Type: Data}, known)
		if !advertised || err != nil {
			t.Fatal(advertised, err)
		}
		before := <-asked
		polltest.Until(t, "a read", func() bool { return double.Calls("wr") > before })
		w.groups[1].Halt()
		r := w.handlers[1]
		dropped := func() bool { return slices.Contains(r.order, "dropped 0") }
		r.mu.Lock()
		early := dropped()
		r.mu.Unlock()
		if early {
			t.Error("what is on its way is said not to come")
		}
		if mended {
			double.Link(0, 1, true)
		}
		r.until(t, "the end of the payload", dropped)
		if !mended {
			err := other.handlers[1].untilDown(t, 0)
			if !strings.Contains(err.Error(), "does not come") {
				t.Errorf("the link has ended by %v", err)
			}
			continue
		}
		w.handlers[0].until(t, "the answer",
			func() bool { return slices.Contains(w.handlers[0].order, "acked 1") })
		ok(t, other.groups[0].Send(ctx, 1, Header{Type: ControlBase}))
		other.handlers[1].untilFrames(t, 1)
	}
}

// What nobody wants is answered for all the same.
func TestAdvertsToAHaltedGroup(t *testing.T) {
	eps, double, known := lender(t, 1<<20)
	w := newWorld(t, eps, address.Verbs, 1)
	ctx := within(t)
	ok(t, w.groups[0].Connect(ctx, 1))
	w.groups[1].Halt()
	const read, accessError = 4, 10
	double.Complete(1, read, 0, accessError, 0) // which would end the link
	lends := 0
	for range 20 { // more than may be under way
		advertised, err := w.groups[0].Advertise(ctx, false, 1, Header{Type: Data},
			make([]byte, 100), known)
		ok(t, err)
		if advertised {
			lends++
		}
		ok(t, w.groups[0].Send(ctx, 1, Header{Type: QuickBase}))
	}
	if lends == 0 {
		t.Error("nothing was advertised")
	}
	w.handlers[1].untilFrames(t, 20)
	answers := func() (n int) {
		for _, s := range w.handlers[0].order {
			if s == "acked 1" {
				n++
			}
		}
		return n
	}
	w.handlers[0].until(t, "the last answer", func() bool { return answers() == lends })
	if n := eps[1].verbs.memory.Taken.Load(); n != 0 {
		t.Errorf("%d bytes were fetched for a group that is halted", n)
	}
}

// A rank gives its memory back to its user before it has been read: what is read then is not taken
// for what was advertised, nor is what comes after it from that rank. What others send is.
func TestWithdrawnBuffer(t *testing.T) {
	eps, double, known := lender(t, 1<<20)
	eps = append(eps, listen(t, Config{Verbs: VerbsConfig{Library: double.Path, GIDIndex: -1}}))
	ctx, w, other := inTwoGroups(t, eps)
	w.handlers[1].slot = func(src int, h Header) ([]byte, error) {
		if src == 0 {
			atomic.StoreUint32(w.handlers[0].stopped, 1)
		}
		return make([]byte, h.Bytes), nil
	}
	advertised, err := w.groups[0].Advertise(ctx, false, 1, Header{Type: Data}, known)
	if !advertised || err != nil {
		t.Fatal(advertised, err)
	}
	ok(t, w.groups[0].Send(ctx, 1, Header{Type: Data}, make([]byte, 100)))
	ok(t, w.groups[0].Send(ctx, 1, Header{Type: QuickBase}))
	if frames := w.handlers[1].untilFrames(t, 1); len(frames) != 1 ||
		frames[0].h.Type != QuickBase {
		t.Errorf("%d frames have come, the first %+v", len(frames), frames[0].h)
	}
	w.handlers[1].until(t, "the end of the payload",
		func() bool { return slices.Contains(w.handlers[1].order, "dropped 0") })
	w.handlers[0].until(t, "the answer",
		func() bool { return slices.Contains(w.handlers[0].order, "acked 1") })
	ok(t, w.groups[2].Send(ctx, 1, Header{Type: Data}, make([]byte, 100)))
	if f := w.handlers[1].untilFrames(t, 2)[1]; f.src != 2 || f.h.Type != Data {
		t.Errorf("a frame of rank %d has come: %+v", f.src, f.h)
	}
	w.groups[0].Detach()
	w.handlers[1].until(t, "the news that rank 0 has left",
		func() bool { return w.handlers[1].left[0] })
	ok(t, other.groups[0].Send(ctx, 1, Header{Type: ControlBase}))
	other.handlers[1].untilFrames(t, 1)
}

// A peer advertises, says its last, and closes the connection before it has been read: what it has
// said is heard, unless the read takes long.
func TestLastWordsBehindAnAdvert(t *testing.T) {
	for _, mended := range []bool{true, false} {
		eps, double, known := lender(t, 1<<20)
		ctx, w, other := inTwoGroups(t, eps)
		from, to := w.groups[0].members[1].ready.Load().link,
			other.groups[1].members[0].ready.Load().link
		_, leave := take(t, eps[1])
		advertised, err := w.groups[0].Advertise(ctx, false, 1, Header{Type: Data}, known)
		if !advertised || err != nil {
			t.Fatal(advertised, err)
		}
		ok(t, w.groups[0].Send(ctx, 1, Header{Type: ControlBase}))
		w.groups[0].Detach()
		from.retire(true)
		polltest.Until(t, "the end of what is queued", func() bool {
			from.mu.Lock()
			defer from.mu.Unlock()
			return !from.queue.draining
		})
		double.Link(0, 1, false)
		leave()
		polltest.Until(t, "the reading of what is advertised", func() bool {
			to.reading.lock.Lock()
			defer to.reading.lock.Unlock()
			return to.reading.phase == inGet && to.queuePair().gone != nil
		})
		if mended {
			double.Link(0, 1, true)
			if frames := w.handlers[1].untilFrames(t, 2); frames[0].h.Type != Data ||
				frames[1].h.Type != ControlBase {
				t.Errorf("%+v have come", frames)
			}
			w.handlers[1].until(t, "the goodbye", func() bool { return w.handlers[1].left[0] })
		}
		err = other.handlers[1].untilDown(t, 0)
		if !strings.Contains(err.Error(), "closed the connection") {
			t.Errorf("the link has ended by %v", err)
		}
	}
}

// Memory that could not be registered is taken for ordinary memory from then on.
func TestMemoryThatCannotBeRegisteredIsNotAdvertised(t *testing.T) {
	for failing := range 2 { // the payload, or the word
		eps, double, known := lender(t, 1<<20)
		w := newWorld(t, eps, address.Verbs, 1)
		ctx := within(t)
		ok(t, w.groups[0].Connect(ctx, 1))
		double.Fail("reg_mr", 1+failing, 1, syscall.ENOMEM)
		for _, may := range []bool{true, false} {
			if lends := w.groups[0].Advertises(1, known); lends != may {
				t.Errorf("whether it may be advertised: %v", lends)
			}
			if advertised, err := w.groups[0].Advertise(ctx, false, 1, Header{Type: Data},
				known); advertised || err != nil {
				t.Errorf("it is advertised: %v, %v", advertised, err)
			}
		}
		w.handlers[1].untilFrames(t, 2)
	}
}

func FuzzAdvert(f *testing.F) {
	word := rdma.Remote{Addr: 1 << 50, Key: 9}
	for _, l := range []advert{
		{rdma.Remote{Addr: 1 << 40, Key: 7}, 100, word},
		{rdma.Remote{Addr: 1<<64 - 100, Key: 1}, 100, word}, {rdma.Remote{}, 1, rdma.Remote{}},
		{rdma.Remote{Addr: 1 << 63, Key: 1 << 31}, MaxData, word},
		{rdma.Remote{Addr: 5, Key: 5}, 0, word},
	} {
		var b [advertSize]byte
		l.put(&b)
		f.Add(b[:], uint32(MaxData))
	}
	f.Fuzz(func(t *testing.T, in []byte, payload uint32) {
		var b, again [advertSize]byte
		copy(b[:], in)
		l, err := parseAdvert(&b, payload)
		if err != nil {
			return
		}
		if l.bytes == 0 || l.bytes > payload || l.at.Addr > l.at.Addr+uint64(l.bytes) {
			t.Fatalf("%+v is let through for %d bytes", l, payload)
		}
		if l.put(&again); again != b {
			t.Fatalf("% x became % x", b, again)
		}
	})
}
