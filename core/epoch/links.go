package epoch

import (
	"context"
	"time"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/transport"
)

// What a rank waits for from a peer that shares no memory with it comes over a link. The waiter
// itself reads the links, where nobody else does: see transport.Poller.

// linkReader is the wire of an epoch's collectives. It belongs to the holder of the queue's
// token.
type linkReader struct {
	e        *Epoch
	reads    bool          // this thread has the poller's token
	relies   bool          // another thread has it, and reads for this one
	step     int           // of the run, that was waited in last
	polls    int           // how often it may still be polled for
	patient  time.Duration // until when
	credited []uint64      // by peer: messages whose release it has been told of
}

func newLinkReader(e *Epoch) *linkReader {
	return &linkReader{e: e, credited: make([]uint64, e.Size())}
}

// Enter implements collective.Wire.
func (r *linkReader) Enter() { r.step = -1 }

// Connect implements collective.Wire.
func (r *linkReader) Connect(peer int, next []int) <-chan struct{} {
	return r.e.connect(peer, next...)
}

// Wait implements collective.Wire.
func (r *linkReader) Wait(run *exec.Run, until time.Duration) {
	p := r.e.poller
	if !r.reads {
		r.reads = p.Take()
		for i := 0; !r.reads && i < r.e.waiting.PortPolls && p.Yielding(); i++ {
			exec.YieldCPU()
			r.reads = p.Take()
		}
		if !r.reads {
			r.relies = true
			p.StartProgress()
			run.Brought(true)
			return
		}
		run.Reading(true)
		return // the last reader may have brought it
	}
	if s := run.Step(); s != r.step {
		bytes, _ := run.Expected()
		r.step, r.polls = s, r.e.waiting.PortPollsFor(bytes)
		r.patient = exec.Now() + pollMost
		if bytes > pumpMost {
			p.Wait(0)
			return
		}
	}
	if r.polls > 0 && exec.Now() < r.patient {
		if r.polls < r.e.waiting.PortPolls {
			exec.YieldCPU()
		}
		r.polls--
		r.e.group.Pump(run.Peer())
		return
	}
	p.Wait(max(until-exec.Now(), 0))
}

// pollMost is the longest time for which a waiter looks at no other link. On a busy host its polls,
// between which others have the CPU, may take longer.
const pollMost = 5 * time.Millisecond

// pumpMost is the most bytes of a step for which a waiter looks at no other link: of longer ones
// many may come in succession, while others wait.
const pumpMost = 64 << 10

// Put implements collective.Wire. The peer may be left to read a long message by itself.
func (r *linkReader) Put(ctx context.Context, run *exec.Run) error {
	peer, l := run.Peer(), r.e.window.Lane(collectiveLane)
	h := transport.Header{Type: transport.Data, Flags: collectiveLane,
		Arg: [2]uint64{l.Sent(peer), l.Freed(peer)}}
	l.MarkSent(peer)
	if err := r.put(ctx, peer, h, run); err != nil {
		l.MarkUnsent(peer)
		return err
	}
	r.credited[peer] = h.Arg[1]
	return nil
}

func (r *linkReader) put(ctx context.Context, peer int, h transport.Header, run *exec.Run) error {
	header, payload := run.PortMessage()
	if !r.e.group.Advertises(peer, payload) || !run.Advertise() {
		return r.send(ctx, peer, h, header, payload)
	}
	advertised, err := r.e.group.Advertise(ctx, r.reads, peer, h, header, payload)
	if !advertised {
		run.TakeBack()
	}
	return err
}

// Release implements collective.Wire. Credits go back in twos, or with a message of this rank: the
// plans are proved for senders that see one slot fewer than there are.
func (r *linkReader) Release(ctx context.Context, run *exec.Run) {
	peer := run.Peer()
	freed := r.e.window.Lane(collectiveLane).Freed(peer)
	if freed-r.credited[peer] < 2 {
		return
	}
	r.credited[peer] = freed
	h := transport.Header{Type: frameCredit, Flags: collectiveLane, Arg: [2]uint64{freed}}
	// An error means that the peer is gone, or that the time is up. The step that needs the peer, or
	// the time, will see it; this one does not.
	_ = r.send(ctx, peer, h)
}

func (r *linkReader) send(ctx context.Context, peer int, h transport.Header,
	payload ...[]byte) error {
	if r.reads {
		return r.e.group.SendReading(ctx, peer, h, payload...)
	}
	return r.e.group.Send(ctx, peer, h, payload...)
}

// Leave implements collective.Wire.
func (r *linkReader) Leave(run *exec.Run) {
	switch {
	case r.reads:
		run.Reading(false)
		r.e.poller.Leave()
	case r.relies:
		r.e.poller.StopProgress()
		run.Brought(false)
	}
	r.reads, r.relies = false, false
}

// listen has another goroutine read the links until stop is called. A caller that waits for a
// control frame does not read the links itself.
func (e *Epoch) listen() (stop func()) {
	if e.poller == nil {
		return func() {}
	}
	e.poller.StartProgress()
	return e.poller.StopProgress
}

// kick has the thread that reads the links look at what it waits for.
func (e *Epoch) kick() {
	if e.poller != nil {
		e.poller.Kick()
	}
}
