package exec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"
)

// longest is the longest packet: twice as long as those that travel in bounce buffers are at least.
const longest = 2 * bounceMin

// next takes the next packet of a peer.
func next(m *Mail, peer int) (l Packet, payload []byte, ok bool, err error) {
	if l, ok, err = m.Next(peer); ok {
		payload = make([]byte, l.Bytes)
		m.Take(peer, l, payload)
	}
	return l, payload, ok, err
}

// TestPackets sends packets of all lengths around the ring many times, with as many under way as
// fit.
func TestPackets(t *testing.T) {
	w := newPair(t)
	from, to := w[0].Mail(), w[1].Mail()
	most := longest
	packet := func(i int) (Packet, []byte) {
		payload := bytes.Repeat([]byte{byte(i)}, i%(most+1))
		return Packet{Type: uint8(1 + i%255), Bytes: uint32(len(payload)), Seq: uint64(i),
			Arg: [2]uint64{uint64(2 * i), ^uint64(i)}}, payload
	}
	taken, full := 0, 0
	take := func() {
		want, payload := packet(taken)
		l, got, ok, err := next(to, 0)
		if l.shown = want.shown; !ok || err != nil || l != want || !bytes.Equal(got, payload) {
			t.Fatalf("packet %d is %v with %d bytes, %v, %v", taken, l, len(got), ok, err)
		}
		taken++
	}
	const n = 3000
	for i := range n {
		l, payload := packet(i)
		for {
			posted, seen := from.Post(1, l, payload)
			if seen {
				t.Fatal("nobody looks")
			}
			if posted {
				break
			}
			full++
			if i == taken {
				t.Fatalf("no room for packet %d in an empty mailbox", i)
			}
			take()
		}
	}
	for taken < n {
		take()
	}
	if _, ok, err := to.Next(0); ok || err != nil {
		t.Fatalf("another packet: %v, %v", ok, err)
	}
	if full == 0 {
		t.Fatal("the mailbox was never full")
	}
}

func TestMailWaits(t *testing.T) {
	w := newPair(t)
	from, to := w[0].Mail(), w[1].Mail()
	var done atomic.Uint32
	if s, _, _ := to.Await(nil, &done, 0, true, Now()+time.Millisecond); s != Late {
		t.Fatalf("an empty mailbox: %d", s)
	}
	minute := func() time.Duration { return Now() + time.Minute }
	ended := make(chan int)
	wait := func() {
		go func() {
			s, _, _ := to.Await(nil, &done, 0, true, minute())
			ended <- s
		}()
	}

	to.Poll(1)
	wait()
	if posted, seen := from.Post(1, Packet{Type: 1}, nil); !posted || !seen {
		t.Fatalf("posted %v, seen %v", posted, seen)
	}
	if s := <-ended; s != Came {
		t.Fatalf("a packet: %d", s)
	}
	next(to, 0)
	to.Poll(-1)

	wait()
	done.Store(1)
	to.Ring()
	if s := <-ended; s != Over {
		t.Fatalf("the end: %d", s)
	}
	done.Store(0)

	wait()
	to.Poke()
	if s := <-ended; s != Came {
		t.Fatalf("a poke: %d", s)
	}

	wait()
	w[1].Stop()
	if s := <-ended; s != Halted {
		t.Fatalf("a stop: %d", s)
	}
}

// TestRoom has a sender wait for room that its peer makes.
func TestRoom(t *testing.T) {
	w := newPair(t)
	from, to := w[0].Mail(), w[1].Mail()
	payload := make([]byte, longest)
	for posted := true; posted; {
		posted, _ = from.Post(1, Packet{Type: 1}, payload)
	}
	ended := make(chan bool)
	go func() {
		for posted := false; !posted; posted, _ = from.Post(1, Packet{Type: 2}, payload) {
			from.AwaitRoom(1, len(payload), Now()+time.Minute)
		}
		close(ended)
	}()
	for kind := uint8(1); kind != 2; {
		l, _, ok, err := next(to, 0)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			kind = l.Type
		}
	}
	<-ended
}

func TestBadMailbox(t *testing.T) {
	w := newPair(t)
	to := w[1].Mail()
	for _, posted := range []uint64{1, 65, uint64(layout.Mailbox) + 64, 1 << 63} {
		atomic.StoreUint64((*uint64)(&to.peers[0].from.posted), posted)
		if _, ok, err := to.Next(0); ok || !errors.Is(err, ErrProtocol) {
			t.Errorf("%d bytes posted: %v, %v", posted, ok, err)
		}
	}
}

// TestBounces has two ranks send each other packets of all lengths, one more and then the other.
// No bounce buffer is ever lost or has two owners.
func TestBounces(t *testing.T) {
	w := newPair(t)
	mail := [2]*Mail{w[0].Mail(), w[1].Mail()}
	random := rand.New(rand.NewPCG(1, 2))
	var under [2][][]byte // way, by sender
	inBounces, inRing := 0, 0
	for step := range 20_000 {
		i := random.IntN(2)
		if step/1000%3 == 0 { // one is silent, and the other's bounce buffers run out
			i = step / 3000 % 2
		}
		if random.IntN(3) > 0 || len(under[1-i]) == 0 {
			payload := make([]byte, random.IntN(longest+1))
			for j := range payload {
				payload[j] = byte(random.Uint32())
			}
			if posted, _ := mail[i].Post(1-i, Packet{Type: 1}, payload); posted {
				under[i] = append(under[i], payload)
			}
		}
		if random.IntN(3) > 0 && len(under[1-i]) > 0 {
			l, got, ok, err := next(mail[i], 1-i)
			if !ok || err != nil || !bytes.Equal(got, under[1-i][0]) {
				t.Fatalf("step %d: %d bytes of %d, %v, %v", step, len(got), len(under[1-i][0]), ok, err)
			}
			under[1-i] = under[1-i][1:]
			if l.shown.packet.bounces != 0 {
				inBounces++
			} else if l.Bytes >= bounceMin {
				inRing++
			}
		}
	}
	for i := range mail {
		for len(under[i]) > 0 {
			if _, _, ok, err := next(mail[1-i], i); !ok || err != nil {
				t.Fatal(ok, err)
			}
			under[i] = under[i][1:]
		}
	}
	owners := map[int]int{} // by rank 0's numbers
	for i := range mail {
		p := &mail[i].peers[1-i]
		for _, n := range p.has[:p.owned] {
			owners[int(n)^i*bouncesEach]++
		}
	}
	if len(owners) != 2*bouncesEach {
		t.Errorf("bounce buffers and their owners: %v", owners)
	}
	for n, k := range owners {
		if k != 1 {
			t.Errorf("bounce buffer %d has %d owners", n, k)
		}
	}
	if inBounces < 1000 || inRing < 1000 {
		t.Errorf("%d packets in bounce buffers, %d of such a length in the ring", inBounces, inRing)
	}
}

// TestBounceOfStranger has a rank send in bounce buffers to one that has not mapped its window yet.
func TestBounceOfStranger(t *testing.T) {
	w := newStrangers(t, brief)
	connect(t, w, 0)
	payload := bytes.Repeat([]byte{7}, longest)
	if posted, _ := w[0].Mail().Post(1, Packet{Type: 1}, payload); !posted {
		t.Fatal("not posted")
	}
	l, got, ok, err := next(w[1].Mail(), 0)
	if !ok || err != nil || l.shown.packet.bounces == 0 || !bytes.Equal(got, payload) {
		t.Fatalf("%v with %d bytes, %v, %v", l, len(got), ok, err)
	}
	connect(t, w, 1)
	for range 2 { // what has come goes first
		if posted, _ := w[1].Mail().Post(0, Packet{Type: 2}, payload); !posted {
			t.Fatal("not posted")
		}
		if l, got, ok, err := next(w[0].Mail(), 1); !ok || err != nil || l.shown.packet.bounces == 0 ||
			!bytes.Equal(got, payload) {
			t.Fatalf("%v with %d bytes, %v, %v", l, len(got), ok, err)
		}
	}
}

func TestBadBounces(t *testing.T) {
	fill := uint32(BounceFor(longest))
	for _, c := range []struct {
		name      string
		connected bool
		bytes     uint32
		bounces   uint32
		ok        bool
	}{
		{"the sender's", true, fill, 1, true},
		{"the sender's, before its window is known", false, fill, 1, true},
		{"the reader's", true, fill, 1 << bouncesEach, false},
		{"the reader's, before the sender's window is known", false, fill, 1 << bouncesEach, false},
		{"some the reader's", true, 2 * fill, 1<<bouncesEach | 1, false},
		{"too many", true, fill, 3, false},
		{"too few", true, fill + 1, 1, false},
		{"nothing in them", true, 0, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newStrangers(t, brief)
			if c.connected {
				connect(t, w, 1)
			}
			to := w[1].Mail()
			box := to.peers[0].from
			binary.NativeEndian.PutUint32(to.ringOf(box), 1|c.bytes<<8)
			binary.NativeEndian.PutUint32(to.ringOf(box)[4:], c.bounces)
			atomic.StoreUint64((*uint64)(&box.posted), packetAlign)
			if _, ok, err := to.Next(0); ok != c.ok || !ok && !errors.Is(err, ErrProtocol) {
				t.Errorf("%v, %v", ok, err)
			}
		})
	}
}
