package epoch

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/goccl/goccl/core/collective"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/order"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/work"
)

// inquiry has the peers' answers to the question how far they have come.
type inquiry struct {
	mu      sync.Mutex
	answers map[int]answer // nil: nobody has asked
	changed chan struct{}  // a new answer
}

// answer is how far a peer has come.
type answer struct {
	last  uint64 // the collective that it has started last
	unfed uint64 // the one whose input is not there yet; 0: there is none
}

// A rank that timed out asks its peers what they are doing. It waits for answers until none has
// come for askTime, for askMost at most: on a busy host those that answer do so one after the
// other.
const (
	askTime = 500 * time.Millisecond
	askMost = 4 * askTime
)

// timeoutError asks the peers how far they have come, and returns an error that names the ranks
// that did not arrive. This one has where an input of its own is waited for.
func (e *Epoch) timeoutError(w *work.Work, m plan.Message, in *collective.Input) *fault.Error {
	head := fmt.Sprintf("%s: timeout after %v on %s", e.runner.title(m, true), w.Timeout(),
		e.Members.Names(e.Rank))
	if in != nil {
		what := fmt.Sprintf("its input is not there yet: bytes %d to %d of block %d", in.From, in.Upto,
			in.Block)
		if in.Block < 0 {
			what = fmt.Sprintf("there is no memory yet for bytes %d to %d of its blocks", in.From, in.Upto)
		}
		return e.Members.Errorf(fault.ErrTimeout, "%s: %s", head, what).
			During(m.Name(), m.Sequence).Blaming(e.Rank)
	}
	missing, behind := e.ask(m.Sequence)
	var parts []string
	if len(missing) > 0 {
		parts = append(parts, fmt.Sprintf("%s did not answer (stopped, or stuck outside of the "+
			"interpreter, or unreachable)", e.Members.Names(missing...)))
	}
	for _, r := range behind {
		what := "has not started a collective yet"
		switch {
		case r.unfed > 0:
			what = fmt.Sprintf("waits for its input of #%d, which is not there yet", r.unfed)
		case r.last > 0:
			what = fmt.Sprintf("is still at #%d", r.last)
		}
		parts = append(parts, e.Members.Names(r.rank)+" "+what)
	}
	if len(parts) == 0 {
		return e.Members.Errorf(fault.ErrTimeout, "%s. All ranks have arrived: the transfer itself "+
			"did not end in time", head).During(m.Name(), m.Sequence)
	}
	all := slices.Clone(missing)
	for _, r := range behind {
		all = append(all, r.rank)
	}
	slices.Sort(all)
	return e.Members.Errorf(fault.ErrTimeout, "%s: %s did not arrive: %s", head,
		e.Members.Names(all...), strings.Join(parts, ", ")).
		During(m.Name(), m.Sequence).Blaming(all...)
}

// laggard is a rank that has not come as far as it was asked for.
type laggard struct {
	rank int
	answer
}

// ask finds out who has not started the collective of the given number, and who does not answer.
//
// In a tree a rank is connected with few others. If it asked all when a rank is missing, so would
// each other rank, and connections between all would have to be made first. So it asks those that
// it has a connection to. If all of these have come, then the missing rank is connected with
// others, which find that out and tell: it asks the rest if nobody has told it in time.
func (e *Epoch) ask(sequence uint64) (missing []int, behind []laggard) {
	var near, far []int
	for peer := range e.Size() {
		switch {
		case peer == e.Rank:
		case e.group.Connected(peer):
			near = append(near, peer)
		default:
			far = append(far, peer)
		}
	}
	missing, behind = e.askThese(e.works.Context, near, sequence)
	if len(missing)+len(behind) > 0 || len(far) == 0 {
		return missing, behind
	}
	select {
	case <-e.works.Context.Done():
		return nil, nil
	case <-time.After(2 * askTime): // others wait for answers, too
	}
	return e.askThese(e.works.Context, far, sequence)
}

// askThese asks some peers how far they have come. It returns those that did not answer, and those
// that have not started the collective of the given number.
func (e *Epoch) askThese(ctx context.Context, peers []int, sequence uint64) (missing []int,
	behind []laggard) {
	if e.group == nil { // Open has failed
		return peers, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askMost)
	q := &e.inquiry
	q.mu.Lock()
	q.answers = map[int]answer{}
	q.mu.Unlock()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, peer := range peers {
		wg.Go(func() {
			// An error means no answer, which is what is found out here.
			_ = e.group.Send(ctx, peer, transport.Header{Type: frameAsk})
		})
	}
	defer e.listen()()
	quiet := time.NewTimer(askTime)
	defer quiet.Stop()
	for over := false; !over && !q.answered(peers); {
		select {
		case <-q.changed:
			quiet.Reset(askTime)
		case <-quiet.C:
			over = true
		case <-ctx.Done():
			over = true
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, peer := range peers {
		if a, ok := q.answers[peer]; !ok {
			missing = append(missing, peer)
		} else if a.last < sequence || a.unfed > 0 && a.unfed <= sequence {
			behind = append(behind, laggard{peer, a})
		}
	}
	return missing, behind
}

// answered reports whether some peers all have.
func (q *inquiry) answered(peers []int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !slices.ContainsFunc(peers, func(peer int) bool {
		_, ok := q.answers[peer]
		return !ok
	})
}

// onStatus takes a peer's answer.
func (q *inquiry) onStatus(peer int, unfed uint64, payload []byte) error {
	m, err := order.Decode(payload)
	if err != nil {
		return fmt.Errorf("%w: %w", exec.ErrProtocol, err)
	}
	q.mu.Lock()
	if q.answers != nil {
		q.answers[peer] = answer{m.Sequence, unfed}
	}
	q.mu.Unlock()
	notify(q.changed)
	return nil
}

// answer tells a peer how far this rank has come. An epoch that has failed still answers. The
// asker counts a lost answer as no answer: one that does not read its answers loses some.
func (e *Epoch) answer(peer int) {
	e.lockOrder()
	m := e.fast.At(e.fast.Sequence())
	e.unlockOrder()
	h := transport.Header{Type: frameStatus, Arg: [2]uint64{e.fast.Trace().Unfed()}}
	e.group.Notify(peer, h, order.Encode(m))
}
