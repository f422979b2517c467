package core

import (
	"errors"
	"testing"
	"time"
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

// While two ranks keep each other busy, each looking at the other's link only, what a third one sends arrives too.
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

// A large send that its receiver has accepted, and takes slowly, does not hold up who waits for something else.
func TestAcceptedSendHoldsUpNoOther(t *testing.T) {
	w := newWorld(t, "tcp", 3, time.Minute)
	const big = 16 << 20 // elements: more than the sockets hold
	accepted := make(chan struct{})
	release := make(chan struct{})
	w.each(func(rank int) error {
		small := buffer(t, 1)
		switch rank {
		case 0:
			large := buffer(t, big)
			sending, err := w.comms[0].Start(CallOptions{}, sendOp(large, 1, 0))
			if err != nil {
				return err
			}
			receiving, err := w.comms[0].Start(CallOptions{}, recvOp(small, 2, 0))
			if err != nil {
				return err
			}
			if done, err := receiving.Wait(20 * time.Second); err != nil || !done {
				return errors.Join(err, errors.New("the small receive waits for the large send"))
			}
			close(release)
			_, err = sending.Wait(-1)
			return err
		case 1:
			// It accepts, and then nobody reads: the test holds the poller's token.
			large := buffer(t, big)
			receiving, err := w.comms[1].Start(CallOptions{}, recvOp(large, 0, 0))
			if err != nil {
				return err
			}
			p := w.comms[1].poller
			for !w.comms[1].p2p.hasAccepted(0) {
				time.Sleep(time.Millisecond)
			}
			for !p.Take() {
				p.Relieve()
				time.Sleep(time.Millisecond)
			}
			close(accepted)
			<-release
			p.Leave()
			_, err = receiving.Wait(-1)
			return err
		default:
			<-accepted
			return run(w.comms[2], sendOp(small, 0, 0))
		}
	})
}

// hasAccepted tells whether data of a peer's offer is on its way.
func (p *pointToPoint) hasAccepted(peer int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.peers[peer].accepted) > 0
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
