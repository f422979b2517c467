package epoch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/work"
)

// monitoredBarrier runs barriers over control frames: rank 0 hears from every rank, then tells all.
type monitoredBarrier struct {
	e       *Epoch
	changed chan struct{} // a change of what mu guards, or of membership
	// sequence of the last one that began here; the holder's of the queue's token
	entered uint64

	mu        sync.Mutex
	checkIns  map[uint64]map[int]bool // by sequence: the ranks that came to rank 0
	checkOuts map[uint64]*fault.Error // likewise: what rank 0 said; nil: all came
	ended     uint64                  // sequence of the last one that ended here
}

func newMonitoredBarrier(e *Epoch) *monitoredBarrier {
	return &monitoredBarrier{e: e, changed: make(chan struct{}, 1),
		checkIns: map[uint64]map[int]bool{}, checkOuts: map[uint64]*fault.Error{}}
}

// maxCheckIns bounds what a peer can make this rank remember of barriers to come.
const maxCheckIns = 1024

// onCheckIn takes the news that a rank has come to a barrier.
func (b *monitoredBarrier) onCheckIn(peer int, sequence uint64) {
	b.mu.Lock()
	if b.checkIns[sequence] == nil && sequence > b.ended && len(b.checkIns) < maxCheckIns {
		b.checkIns[sequence] = map[int]bool{}
	}
	if here := b.checkIns[sequence]; here != nil {
		here[peer] = true
	}
	b.mu.Unlock()
	notify(b.changed)
}

// onCheckOut takes what rank 0 says of a barrier: nil if all came.
func (b *monitoredBarrier) onCheckOut(peer int, sequence uint64, result *fault.Error) {
	b.mu.Lock()
	if peer == 0 && sequence > b.ended && len(b.checkOuts) < maxCheckIns {
		b.checkOuts[sequence] = result
	}
	b.mu.Unlock()
	notify(b.changed)
}

// advance carries a barrier on until a time. It reports whether it has finished, and how.
func (b *monitoredBarrier) advance(
	w *work.Work, p *work.Part, until time.Duration,
) (finished bool, failure *fault.Error) {
	if b.e.Size() == 1 {
		return true, nil
	}
	if b.entered != p.Message.Sequence {
		if entered, err := b.enter(w, p, until); !entered || err != nil {
			return err != nil, err
		}
		b.entered = p.Message.Sequence
	}
	finished, failure = b.wait(w, p, until)
	if finished {
		b.end(p.Message.Sequence)
	}
	// What comes after it in its batch is not run here, so peers must not wait for it.
	if failure != nil && p != &w.Parts()[len(w.Parts())-1] {
		b.e.Fail(failure, true)
	}
	return finished, failure
}

// enter tells rank 0 that this rank has come.
func (b *monitoredBarrier) enter(
	w *work.Work, p *work.Part, until time.Duration,
) (entered bool, failure *fault.Error) {
	if b.e.Rank == 0 || exec.Now() >= w.Deadline() {
		return true, nil
	}
	ctx := work.WithDeadline(w.Context(), until)
	defer ctx.End()
	h := transport.Header{Type: frameCheckIn, Seq: p.Message.Sequence}
	switch err := b.e.group.Send(ctx, 0, h); {
	case errors.Is(err, context.DeadlineExceeded):
		return false, nil
	case err != nil:
		return false, b.e.FailWith(b.e.peerError(0, err))
	}
	return true, nil
}

// wait waits for all ranks, or for what rank 0 says.
func (b *monitoredBarrier) wait(
	w *work.Work, p *work.Part, until time.Duration,
) (finished bool, failure *fault.Error) {
	e, sequence := b.e, p.Message.Sequence
	defer e.listen()()
	// Rank 0 decides; the others wait a little longer, to hear from it who is missing.
	deadline := w.Deadline()
	if e.Rank != 0 {
		deadline += 2 * askTime
	}
	for {
		here, result, told := b.state(sequence)
		missed := b.missed(p.Message)
		switch {
		case told && result == nil:
			return true, nil
		case told:
			return true, b.errorOf(e.Members.Names(0)+" said: "+result.Text, result.Ranks...)
		case missed != nil:
			return true, e.FailWith(missed)
		case e.Rank == 0 && here == e.Size()-1:
			return true, b.checkOut(w, sequence, nil)
		case exec.Now() >= deadline && e.Rank == 0:
			result := b.absentError(sequence, w, p.Operation.WaitAll)
			return true, cmp.Or(b.checkOut(w, sequence, result), result)
		case exec.Now() >= deadline:
			return true, b.errorOf(e.Members.Names(0)+" did not answer in time", 0)
		}
		now := exec.Now()
		if now >= until {
			return false, nil
		}
		t := time.NewTimer(min(until, deadline) - now)
		select {
		case <-b.changed:
		case <-t.C:
		case <-e.works.Context.Done():
			t.Stop()
			return true, e.Failure()
		}
		t.Stop()
	}
}

// errorOf returns the error of a rank that came to a barrier to which others did not come. Its
// first sentence is the one that users of Gloo know.
func (b *monitoredBarrier) errorOf(news string, absent ...int) *fault.Error {
	e := b.e
	return fault.Errorf(fault.ErrTimeout, "[Rank %d]: Rank %d successfully reached "+
		"monitoredBarrier, but received errors while waiting for send/recv from rank 0. "+
		"Please check rank 0 logs for faulty rank. This is %s. %s", e.Rank, e.Rank,
		e.Members.Names(e.Rank), news).In(&e.Members).Blaming(absent...)
}

// state returns how many ranks have come to rank 0, or what rank 0 has said.
func (b *monitoredBarrier) state(sequence uint64) (here int, result *fault.Error, told bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	result, told = b.checkOuts[sequence]
	return len(b.checkIns[sequence]), result, told
}

// missed returns the failure where a rank is gone that has not come to the barrier.
func (b *monitoredBarrier) missed(m plan.Message) *fault.Error {
	b.e.mu.Lock()
	defer b.e.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	members := &b.e.membership
	if err := members.Missing(m); err != nil {
		return err
	}
	for _, peer := range members.Departed() {
		if peer == 0 || b.e.Rank == 0 && !b.checkIns[m.Sequence][peer] {
			d, _ := members.Departure(peer)
			return d.MissedBy(m)
		}
	}
	return nil
}

// end forgets a barrier. What comes of it later is dropped.
func (b *monitoredBarrier) end(sequence uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = sequence
	delete(b.checkIns, sequence)
	delete(b.checkOuts, sequence)
}

// absentError returns an error that names the ranks that have not come to rank 0; nil if all have.
func (b *monitoredBarrier) absentError(sequence uint64, w *work.Work, all bool) *fault.Error {
	e := b.e
	b.mu.Lock()
	defer b.mu.Unlock()
	var missing []int
	for r := 1; r < e.Size(); r++ {
		if !b.checkIns[sequence][r] {
			missing = append(missing, r)
			if !all {
				break
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	noun := "Rank "
	if all {
		noun = "Ranks "
	}
	numbers := strings.ReplaceAll(strings.Trim(fmt.Sprint(missing), "[]"), " ", ", ")
	return fault.Errorf(fault.ErrTimeout, "[Rank 0]: %s%s failed to pass monitoredBarrier "+
		"in %d ms: %s", noun, numbers,
		w.Timeout().Milliseconds(), e.Members.Names(missing...)).In(&e.Members).Blaming(missing...)
}

// checkOut tells all ranks that came how a monitored barrier ended. A rank that came may have ended
// since: the barrier is complete without it.
func (b *monitoredBarrier) checkOut(
	w *work.Work, sequence uint64, result *fault.Error,
) (failure *fault.Error) {
	e := b.e
	var payload []byte
	if result != nil {
		payload = result.Encode()
	}
	b.mu.Lock()
	here := maps.Clone(b.checkIns[sequence])
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(e.works.Context, max(w.Deadline()-exec.Now(), askTime))
	defer cancel()
	for r := 1; r < e.Size(); r++ {
		if !here[r] {
			continue
		}
		err := e.group.Send(ctx, r, transport.Header{Type: frameCheckOut, Seq: sequence}, payload)
		gone := errors.Is(err, transport.ErrPeerDown) || errors.Is(err, transport.ErrPeerLeft)
		if err != nil && !gone && failure == nil && result == nil {
			failure = e.peerError(r, err)
		}
	}
	return failure
}
