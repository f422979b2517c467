package exec

import (
	"bytes"
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

// longest is the longest letter.
const longest = 400

// TestLetters sends letters of all lengths around the ring many times, with as many under way as fit.
func TestLetters(t *testing.T) {
	w := newPair(t)
	from, to := w[0].Mail(), w[1].Mail()
	most := longest
	letter := func(i int) (Letter, []byte) {
		payload := bytes.Repeat([]byte{byte(i)}, i%(most+1))
		return Letter{Type: uint8(1 + i%255), Bytes: uint32(len(payload)), Seq: uint64(i), Arg: [2]uint64{uint64(2 * i), ^uint64(i)}}, payload
	}
	taken, full := 0, 0
	take := func() {
		want, payload := letter(taken)
		l, got, ok, err := to.Next(0)
		if !ok || err != nil || l != want || !bytes.Equal(got, payload) {
			t.Fatalf("letter %d is %v with %d bytes, %v, %v", taken, l, len(got), ok, err)
		}
		to.Take(0, l)
		taken++
	}
	const n = 3000
	for i := range n {
		l, payload := letter(i)
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
				t.Fatalf("no room for letter %d in an empty mailbox", i)
			}
			take()
		}
	}
	for taken < n {
		take()
	}
	if _, _, ok, err := to.Next(0); ok || err != nil {
		t.Fatalf("another letter: %v, %v", ok, err)
	}
	if full == 0 {
		t.Fatal("the mailbox was never full")
	}
}

func TestMailWaits(t *testing.T) {
	w := newPair(t)
	from, to := w[0].Mail(), w[1].Mail()
	var done atomic.Uint32
	if s, _, _ := to.Await(nil, &done, Now()+time.Millisecond); s != Interrupted {
		t.Fatalf("an empty mailbox: %d", s)
	}
	minute := func() time.Duration { return Now() + time.Minute }
	ended := make(chan int)
	wait := func() {
		go func() {
			s, _, _ := to.Await(nil, &done, minute())
			ended <- s
		}()
	}

	to.Poll(1)
	wait()
	if posted, seen := from.Post(1, Letter{Type: 1}, nil); !posted || !seen {
		t.Fatalf("posted %v, seen %v", posted, seen)
	}
	if s := <-ended; s != Came {
		t.Fatalf("a letter: %d", s)
	}
	l, _, _, _ := to.Next(0)
	to.Take(0, l)
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
		posted, _ = from.Post(1, Letter{Type: 1}, payload)
	}
	ended := make(chan bool)
	go func() {
		for posted := false; !posted; posted, _ = from.Post(1, Letter{Type: 2}, payload) {
			from.AwaitRoom(1, len(payload), Now()+time.Minute)
		}
		close(ended)
	}()
	for kind := uint8(1); kind != 2; {
		l, _, ok, err := to.Next(0)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			kind = l.Type
			to.Take(0, l)
		}
	}
	<-ended
}

func TestBadMailbox(t *testing.T) {
	w := newPair(t)
	to := w[1].Mail()
	for _, posted := range []uint64{1, 65, uint64(layout.Mailbox) + 64, 1 << 63} {
		atomic.StoreUint64((*uint64)(&to.mine[0].posted), posted)
		if _, _, ok, err := to.Next(0); ok || !errors.Is(err, ErrProtocol) {
			t.Errorf("%d bytes posted: %v, %v", posted, ok, err)
		}
	}
}
