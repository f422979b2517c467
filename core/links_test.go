package core

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/goccl/goccl/core/internal/polltest"
)

// Waits without patience, again and again, read what they ask for.
func TestImpatientWaitsOverLinks(t *testing.T) {
	w := newWorld(t, "tcp", 2, time.Minute)
	a, b := buffer(t, 3), buffer(t, 3)
	fill(a, 0, 0)
	w.each(func(rank int) error {
		for range 3 {
			if rank == 0 {
				if err := run(w.comms[0], sendOp(a, 1, 0)); err != nil {
					return err
				}
				continue
			}
			work, err := w.comms[1].Start(CallOptions{}, recvOp(b, 0, 0))
			if err != nil {
				return err
			}
			late := time.Now().Add(20 * time.Second)
			for done := false; !done; {
				if done, err = work.Wait(0); err != nil {
					return err
				}
				if time.Now().After(late) {
					return errors.New("the receive does not end")
				}
			}
		}
		return nil
	})
}

// Who finds the progress goroutine reading, after a pause, has it leave the links to the next
// waiter, also if he waits for a little while only.
func TestStartHasTheProgressGoroutineYield(t *testing.T) {
	w := newWorld(t, "tcp", 2, time.Minute)
	sends := make(chan int, 1)
	w.each(func(rank int) error {
		data := buffer(t, 1)
		if rank == 0 {
			for n := 1; n > 0; n = <-sends { // the first makes the link
				for range n {
					if err := run(w.comms[0], sendOp(data, 1, 0)); err != nil {
						return err
					}
				}
			}
			return nil
		}
		defer close(sends)
		if err := run(w.comms[1], recvOp(data, 0, 0)); err != nil {
			return err
		}
		p := linksOf(w.comms[1])
		var works []*Work
		leaves := false
		late := time.Now().Add(20 * time.Second)
		for !leaves && time.Now().Before(late) { // it may be back before this looks
			polltest.Until(t, "the progress goroutine reads", func() bool { return len(p.Token()) > 0 })
			work, err := w.comms[1].Start(CallOptions{WaitSoon: true}, recvOp(data, 0, 0))
			if err != nil {
				return err
			}
			works = append(works, work)
			if leaves = p.Yielding(); !leaves && p.Take() {
				p.Leave()
				leaves = true
			}
		}
		sends <- len(works)
		for _, work := range works {
			if _, err := work.Wait(-1); err != nil {
				return err
			}
		}
		if !leaves {
			return errors.New("the progress goroutine goes on reading")
		}
		return nil
	})
}

// While two ranks keep each other busy, each looking at the other's link only, what a third one
// sends arrives too.
func TestBusyPairHearsTheThird(t *testing.T) {
	w := newWorld(t, "tcp", 3, time.Minute)
	busy := make(chan struct{})
	w.each(func(rank int) error {
		in, out, third := buffer(t, 1), buffer(t, 1), buffer(t, 1)
		if rank == 2 {
			<-busy
			return run(w.comms[2], sendOp(out, 0, 7))
		}
		peer, stop := 1-rank, buffer(t, 1)
		var extra *Work
		if rank == 0 {
			var err error
			if extra, err = w.comms[0].Start(CallOptions{}, recvOp(third, 2, 7)); err != nil {
				return err
			}
		}
		late := time.Now().Add(20 * time.Second)
		for rounds := 0; stop[0] == 0; rounds++ {
			if rounds == 300 && rank == 0 {
				close(busy)
			}
			out[0] = 0
			if rank == 0 {
				if done, err := extra.Test(); done {
					out[0] = 1
					if err != nil {
						return err
					}
				}
				if time.Now().After(late) {
					return errors.New("the third rank's message does not come")
				}
			}
			ops := []Operation{sendOp(out, peer, 0), recvOp(in, peer, 0)}
			if rank == 1 {
				ops[0], ops[1] = ops[1], ops[0]
			}
			for _, op := range ops {
				if err := run(w.comms[rank], op); err != nil {
					return err
				}
			}
			stop[0] = out[0]
			if rank == 1 {
				stop[0] = in[0]
			}
		}
		return nil
	})
}

// A large send that its receiver has accepted, and takes slowly, does not hold up who waits for
// something else.
func TestAcceptedSendHoldsUpNoOther(t *testing.T) {
	w := newWorld(t, "tcp", 3, time.Minute)
	w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, 1)) })
	const n = 16 << 20 // elements: more than the sockets hold
	sending, large, read := sendUnread(t, w, buffer(t, n), buffer(t, n), begun)
	small := buffer(t, 1)
	receiving, err := w.comms[0].Start(CallOptions{}, recvOp(small, 2, 0))
	if err != nil {
		t.Fatal(err)
	}
	if err := run(w.comms[2], sendOp(buffer(t, 1), 0, 0)); err != nil {
		t.Fatal(err)
	}
	if done, err := receiving.Wait(-1); err != nil || !done {
		t.Errorf("the small receive: %v, %v", done, err)
	}
	if sending.Ended() {
		t.Error("the large send has ended, though its receiver does not read")
	}
	read()
	for _, work := range []*Work{sending, large} {
		if _, err := work.Wait(-1); err != nil {
			t.Error(err)
		}
	}
}

// An offer that does not fit the receive is rejected, also while its receiver is sending.
func TestRejectReachesTheSender(t *testing.T) {
	w := newWorld(t, "tcp", 2, 20*time.Second)
	errs := w.try(func(rank int) error {
		if rank == 0 {
			return run(w.comms[0], sendOp(buffer(t, 4<<20), 1, 0))
		}
		// Nobody receives this one.
		flood, err := w.comms[1].Start(CallOptions{}, sendOp(buffer(t, 200_000), 0, 1))
		if err != nil {
			return err
		}
		err = run(w.comms[1], recvOp(buffer(t, 5), 0, 0))
		_, _ = flood.Test()
		return err
	})
	for rank, err := range errs {
		if !errors.Is(err, ErrMismatch) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// Sends that go in several frames, several to one peer at once, and both ways.
func TestSendsInParts(t *testing.T) {
	const eagerMost, part = 1 << 18, 1 << 20
	w := newWorld(t, "tcp", 2, time.Minute)
	for _, n := range []int{eagerMost, eagerMost + 1, part - 1, part + 1, 2*part + 3} {
		w.each(func(rank int) error {
			var ops []Operation
			var out [2][]int32
			for tag := range out {
				in := buffer(t, n+tag)
				fill(in, rank, tag)
				out[tag] = buffer(t, n+tag)
				ops = append(ops, sendOp(in, 1-rank, tag), recvOp(out[tag], 1-rank, tag))
			}
			work, err := w.comms[rank].Start(CallOptions{}, ops...)
			if err != nil {
				return err
			}
			if _, err := work.Wait(-1); err != nil {
				return err
			}
			for tag := range out {
				if err := expect(fmt.Sprintf("%d elements, tag %d", n, tag), out[tag],
					func(i int) int32 { return value(1-rank, tag, i) }); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// An accepted send whose receiver does not read for now ends well when it does, and with an error
// when it never will.
func TestUnreadSend(t *testing.T) {
	for _, c := range []struct {
		name    string
		reads   bool // its receiver does so again
		aborts  int  // who does; -1: nobody
		failure error
	}{
		{"it goes on", true, -1, nil},
		{"it is late", false, -1, ErrTimeout},
		{"its communicator fails", false, 0, ErrAborted},
		{"its receiver leaves", true, 1, ErrAborted},
	} {
		t.Run(c.name, func(t *testing.T) {
			timeout := time.Minute
			if c.failure == ErrTimeout {
				timeout = 2 * time.Second
			}
			w := newWorld(t, "tcp", 2, timeout)
			w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, 1)) })
			const n = 16 << 20 // elements: more than the sockets hold
			from, into := buffer(t, n), buffer(t, n)
			fill(from, 0, 1)
			sent, received, read := sendUnread(t, w, from, into, begun)
			if c.reads {
				read()
			}
			if c.aborts >= 0 {
				w.comms[c.aborts].Abort("for a test")
			}
			done, err := sent.Wait(20 * time.Second)
			if !done || !errors.Is(err, c.failure) {
				t.Fatalf("%v, %v", done, err)
			}
			if !c.reads {
				read()
			}
			done, err = received.Wait(20 * time.Second)
			if !done || (err == nil) != (c.failure == nil) {
				t.Errorf("the receive: %v, %v", done, err)
			}
			if c.failure == nil {
				if err := expect("all", into, func(i int) int32 { return value(0, 1, i) }); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
