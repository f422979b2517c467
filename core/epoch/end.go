package epoch

import (
	"errors"
	"slices"

	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/suspended"
)

// EndWorks ends all works of the epoch with the cause, unless a failure has ended them. When it
// returns no operation of the epoch reads or writes buffers any more.
func (e *Epoch) EndWorks(cause *fault.Error) {
	e.ending.Store(true)
	e.Fail(cause, false)
	<-e.stopped // by this call or by a failure before it
	// The next epoch uses the fast path, too. A thread in it sees the failure, and hands over.
	e.lockOrder()
	e.mu.Unlock()
	// Nothing can be said after the goodbye. Peers that were not told of a refusal would blame the
	// end of this process instead.
	e.tellers.Wait()
	e.queue.Drain()
	e.starting.Wait() // works that a preempted call has queued are suspended, too
}

// Finish ends all works of the epoch, and tells peers that this rank has left it. It waits only for
// peers that have not been told yet of a call that this rank was refused, for half a second at
// most.
func (e *Epoch) Finish(cause *fault.Error) {
	e.EndWorks(cause)
	if e.group != nil {
		e.config.Peers.Use(e.number, nil, 0)
		e.detach()
	}
	e.tasks.mu.Lock()
	e.tasks.ended = true
	e.tasks.mu.Unlock()
	e.tasks.Wait()
}

// End tells the epoch, which has finished, that the next one begins. It ignores news from now on.
func (e *Epoch) End() {
	e.mu.Lock()
	e.over = true
	e.mu.Unlock()
	e.agreement.End()
}

// Free gives back what the epoch holds, after Finish.
func (e *Epoch) Free() {
	e.runner.engine.Free()
	e.p2p.Free()
	e.channels.Free()
	e.closeMemory()
	e.letGo()
}

// FreeFastPath frees the fast path, after the last epoch has finished.
func (e *Epoch) FreeFastPath() {
	e.lockOrder() // a thread in the fast path sees the failure, and leaves
	e.fast.Free()
	e.mu.Unlock()
}

// giveUp fails an epoch whose caller waits no longer. It does not tell peers where the communicator
// is destroyed: Destroy says goodbye to them.
func (e *Epoch) giveUp() {
	if e.config.Life.Err() != nil {
		e.Fail(e.Destroyed(), false)
		return
	}
	e.Fail(e.Members.Errorf(fault.ErrAborted, "%s gave it up", e.Members.Names(e.Rank)).
		Blaming(e.Rank), true)
}

// Destroyed returns the cause of failure where the communicator is destroyed here.
func (e *Epoch) Destroyed() *fault.Error {
	return e.Members.Errorf(fault.ErrAborted, "it was destroyed on this rank, %s",
		e.Members.Names(e.Rank)).Blaming(e.Rank)
}

// Alive returns an error where nothing can follow the epoch: its communicator is destroyed, or has
// no members.
func (e *Epoch) Alive() error {
	if e.config.Life.Err() == nil && !e.Nobody {
		return nil
	}
	if err := e.Failure(); err != nil {
		return err
	}
	return e.Destroyed() // Destroy is about to say so
}

// completes reports whether the members that are left after a failure recover by themselves, and
// complete suspended works: they are enough without newcomers. It is called with mu held.
func (e *Epoch) completes(cause *fault.Error) bool {
	if !e.Recovers() || !errors.Is(cause, fault.ErrPeerFailed) || e.config.Life.Err() != nil {
		return false
	}
	gone := slices.Concat(e.membership.Departed(), cause.Ranks)
	slices.Sort(gone)
	return e.Size()-len(slices.Compact(gone)) >= e.config.Settings.MinSize
}

// EndRecovery ends an automatic recovery, which has come to this epoch. It returns the works that
// are still suspended. The recovery is not over where it has succeeded and another member has died
// since.
func (e *Epoch) EndRecovery(failed bool) (left []*suspended.Work, over bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	failure := e.Failure()
	if !failed && failure != nil && errors.Is(failure, fault.ErrPeerFailed) {
		return nil, false
	}
	left = e.config.Suspended.End()
	e.openFastPath()
	return left, true
}
