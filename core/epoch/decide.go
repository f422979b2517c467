package epoch

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/goccl/goccl/core/agreement"
	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/roster"
	"github.com/goccl/goccl/core/suspended"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/tune"
)

// voter is an epoch as its agreement sees it.
type voter struct{ *Epoch }

// messageTime is how long a message of an agreement may take. What is lost is sent again.
const messageTime = 2 * time.Second

// Send implements agreement.Face. A message that an attached peer does not read waits in its link's
// queue, which has a bound.
func (e voter) Send(to int, message []byte) {
	e.mu.Lock()
	group := e.group
	e.mu.Unlock()
	h := transport.Header{Type: frameAgree}
	if group == nil || group.TrySend(to, h, message) || group.Notify(to, h, message) {
		return
	}
	go func() { // no task of the epoch: it may go on after the epoch's end
		ctx, cancel := context.WithTimeout(context.Background(), messageTime)
		defer cancel()
		_ = group.Send(ctx, to, h, message) // see above
	}()
}

// Out implements agreement.Face.
func (e voter) Out(cause *fault.Error) { e.Fail(cause, false) }

// Silent implements agreement.Face.
func (e voter) Silent(ctx context.Context, peers []int) []int {
	missing, _ := e.askThese(ctx, peers, 0)
	return missing
}

// Fence implements agreement.Face.
func (e voter) Fence(peer int) (ended, lives bool) { return e.end.Fence(e.Peers[peer].Process) }

// Listen implements agreement.Face.
func (e voter) Listen() (stop func()) { return e.listen() }

// Confirmed implements agreement.Face: it leaves the group of an epoch that has ended.
func (e voter) Confirmed() {
	if e.config.Lingering.remove(e.Epoch) {
		go e.leave() // a handler may not wait for itself
	}
}

// Decide has the epoch's members decide who goes on. Members that are lost, that do not answer, or
// that are excluded take no part. It waits for the others for half of the context's time. The error
// is agreement.ErrRecovers where members recover by themselves, which comes first.
func (e *Epoch) Decide(ctx context.Context, m agreement.Proposal, exclude []int) (
	*agreement.Decision, error) {
	m.Ended = !m.Completes && e.Failure() != nil
	d := e.agreement.Begin(ctx, m, e.blamed(), exclude)
	e.config.Owner.Changed() // newcomers may be waited for
	err := e.agreement.Await(ctx, d, m)
	if errors.Is(err, agreement.ErrRecovers) {
		// This rank recovers, too, even if it has not heard of the failure yet.
		e.Fail(e.Members.Errorf(fault.ErrPeerFailed, "others recover from a failure"), false)
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

// DecideSuccessor has the members decide who is in the next epoch. It also returns how far this
// rank has come in this one.
func (e *Epoch) DecideSuccessor(ctx context.Context, m agreement.Proposal) (
	d *agreement.Decision, ended suspended.Ended, err error) {
	if e.Failure() == nil {
		// After the barrier, collectives that have ended on other ranks have ended on this one, too.
		half, cancel := context.WithTimeout(ctx, halfOf(ctx))
		err := e.Service().Barrier(half)
		cancel()
		if err != nil && e.Failure() == nil {
			return nil, ended, err
		}
	}
	if e.Failure() != nil {
		// When others hear from this rank, no operation of the epoch reads or writes buffers any more.
		e.EndWorks(nil)
	}
	e.lockOrder()
	recovers := e.config.Suspended.Recovery() != nil
	ended = suspended.Ended{Epoch: e.ofWorks(), Begun: e.fast.Sequence(),
		Finished: e.fast.Sequence(), Kept: e.fast.Kept}
	if e.firstUndone > 0 {
		ended.Finished = e.firstUndone - 1
	}
	m.Progress = e.config.Suspended.Progress(ended)
	e.unlockOrder()
	m.Unmet = e.agreement.Unmet()
	if recovers && !m.Completes {
		return nil, ended, agreement.ErrRecovers
	}
	d, err = e.Decide(ctx, m, e.absent(ctx))
	return d, ended, err
}

// blamed returns the peers that the epoch's failure blames for a timeout.
func (e *Epoch) blamed() (peers []int) {
	failure := e.Failure()
	if failure == nil || !errors.Is(failure, fault.ErrTimeout) {
		return nil
	}
	for _, peer := range failure.Ranks {
		if _, gone := e.departure(peer); !gone && peer != e.Rank {
			peers = append(peers, peer)
		}
	}
	return peers
}

// absent returns the newcomers that the members do without after a first meeting has failed. These
// are the lost ones, and those that are blamed and do not answer. Where the meeting's time was over
// they are those that have not come. Where nobody is missing then, they are all newcomers: one of
// them says that it has come, and has not.
func (e *Epoch) absent(ctx context.Context) (ranks []int) {
	failure, strangers := e.Failure(), e.agreement.Strangers()
	if failure == nil || len(strangers) == 0 {
		return nil
	}
	late := errors.Is(failure, fault.ErrTimeout)
	var asked []int
	for rank := range e.Size() {
		_, lost := e.departure(rank)
		switch blamed := slices.Contains(failure.Ranks, rank) && e.IsNewcomer(rank); {
		case rank == e.Rank:
		case lost && e.IsNewcomer(rank):
			ranks = append(ranks, rank)
		case !lost && (late || blamed):
			asked = append(asked, rank)
		}
	}
	if len(asked) == 0 {
		return ranks
	}
	missing, behind := e.askThese(ctx, asked, 1)
	for _, r := range behind {
		if late {
			missing = append(missing, r.rank)
		}
	}
	if late && len(missing)+len(ranks) == 0 {
		return strangers
	}
	for _, rank := range strangers {
		if slices.Contains(missing, rank) {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// Meet runs the first collective of an epoch whose members have not been in one together before. It
// waits for all members, and takes what all have answered alike. It waits for newcomers for half of
// the context's time, so that the members can do without them in the other half.
func (e *Epoch) Meet(ctx context.Context) error {
	if len(e.Joined) > 0 {
		half := halfOf(ctx)
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, max(half/2, half-findOut))
		defer cancel()
	}
	s := e.Service()
	s.partOf = plan.Split
	all, err := s.Gather(ctx, int64(AnswersOf(&e.Roster)))
	if err != nil {
		return err
	}
	unanimous := bootstrap.Answers(all[0])
	for _, answers := range all {
		unanimous &= bootstrap.Answers(answers)
	}
	e.Agree(unanimous)
	e.agreement.Met()
	if len(e.Joined) > 0 {
		// Newcomers go on without the others only where none of these can do without them.
		if err := e.Service().Barrier(ctx); err != nil {
			return err
		}
	}
	e.agreement.AllMet()
	return nil
}

// halfOf returns half of the time that a context has, which must have a deadline.
func halfOf(ctx context.Context) time.Duration {
	deadline, _ := ctx.Deadline()
	return time.Until(deadline) / 2
}

// findOut is the most time that it takes to find out who has not come.
const findOut = 2*askTime + 2*askMost

// AnswersOf returns what this rank tells the others of a roster.
func AnswersOf(ranks *roster.Roster) bootstrap.Answers {
	reads := tune.CheapReads
	if ranks.Measures() {
		reads = tune.ReadsAt(exec.ReadCost())
	}
	return bootstrap.Answers(ranks.Answers(reads))
}

// NewcomersFail reports whether an error is that of a first meeting with newcomers, whose time was
// over, or which somebody has left or given up. Then the members do without those that have not
// come.
func (e *Epoch) NewcomersFail(err error) bool {
	return (errors.Is(err, fault.ErrTimeout) || errors.Is(err, fault.ErrAborted)) &&
		e.agreement.Unmet()
}

// Leads reports whether newcomers are to come to this rank: it is the lowest that lives. Where the
// epoch has failed it leads only while it waits for a decision: else others may go on without it.
func (e *Epoch) Leads() bool {
	for peer := range e.Rank {
		if _, gone := e.departure(peer); !gone {
			return false
		}
	}
	return e.Failure() == nil || e.agreement.Waits()
}
