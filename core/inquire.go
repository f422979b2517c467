package core

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/order"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/work"
)

// inquiry is what peers answer to the question how far they have come.
type inquiry struct {
	mu      sync.Mutex
	answers map[int]plan.Message // nil: nobody has asked
	changed chan struct{}        // a new answer
}

// askTime is how long a rank that timed out waits for its peers to say what they are doing.
const askTime = 500 * time.Millisecond

// timeoutError finds out which ranks did not arrive.
func (c *epoch) timeoutError(w *work.Work, m plan.Message) *fault.Error {
	missing, behind := c.ask(m.Sequence)
	head := fmt.Sprintf("%s: timeout after %v on %s", c.runner.title(m, true), w.Timeout(),
		c.Members.Names(c.Rank))
	var parts []string
	if len(missing) > 0 {
		parts = append(parts, fmt.Sprintf("%s did not answer (stopped, or stuck outside of the "+
			"interpreter, or unreachable)", c.Members.Names(missing...)))
	}
	for _, r := range behind {
		what := "has not started a collective yet"
		if r.sequence > 0 {
			what = fmt.Sprintf("is still at #%d", r.sequence)
		}
		parts = append(parts, c.Members.Names(r.rank)+" "+what)
	}
	if len(parts) == 0 {
		return c.Members.Errorf(fault.ErrTimeout, "%s. All ranks have arrived: the transfer itself "+
			"did not end in time", head).During(m.Name(), m.Sequence)
	}
	all := slices.Clone(missing)
	for _, r := range behind {
		all = append(all, r.rank)
	}
	slices.Sort(all)
	return c.Members.Errorf(fault.ErrTimeout, "%s: %s did not arrive: %s", head,
		c.Members.Names(all...), strings.Join(parts, ", ")).
		During(m.Name(), m.Sequence).Blaming(all...)
}

type laggard struct {
	rank     int
	sequence uint64
}

// ask finds out who has not started the collective of the given number, and who does not answer.
//
// In a tree a rank is connected with few others. If it asked all when a rank is missing, so would
// each other rank, and connections between all would have to be made first. So it asks those that
// it has a connection to. If all of these have come, then the missing rank is connected with
// others, which find that out and tell: it asks the rest if nobody has told it in time.
func (c *epoch) ask(sequence uint64) (missing []int, behind []laggard) {
	var near, far []int
	for peer := range c.Size() {
		switch {
		case peer == c.Rank:
		case c.group.Connected(peer):
			near = append(near, peer)
		default:
			far = append(far, peer)
		}
	}
	missing, behind = c.askThese(c.works.Context, near, sequence)
	if len(missing)+len(behind) > 0 || len(far) == 0 {
		return missing, behind
	}
	select {
	case <-c.works.Context.Done():
		return nil, nil
	case <-time.After(2 * askTime): // others wait for answers, too
	}
	return c.askThese(c.works.Context, far, sequence)
}

// askThese asks some peers how far they have come. It answers nothing where the context ends first:
// once the communicator has failed, for instance, when no answer matters.
func (c *epoch) askThese(ctx context.Context, peers []int, sequence uint64) (missing []int,
	behind []laggard) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	q := &c.inquiry
	q.mu.Lock()
	q.answers = map[int]plan.Message{}
	q.mu.Unlock()
	var wg sync.WaitGroup
	for _, peer := range peers {
		wg.Go(func() {
			// An error means no answer, which is what is found out here.
			_ = c.group.Send(ctx, peer, transport.Header{Type: frameAsk})
		})
	}
	wg.Wait()
	defer c.listen()()
	for !q.answered(peers) && ctx.Err() == nil {
		select {
		case <-q.changed:
		case <-ctx.Done():
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, peer := range peers {
		if m, ok := q.answers[peer]; !ok {
			missing = append(missing, peer)
		} else if m.Sequence < sequence {
			behind = append(behind, laggard{peer, m.Sequence})
		}
	}
	return missing, behind
}

// answered tells whether some peers all have.
func (q *inquiry) answered(peers []int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !slices.ContainsFunc(peers, func(peer int) bool {
		_, ok := q.answers[peer]
		return !ok
	})
}

// onStatus takes a peer's answer.
func (q *inquiry) onStatus(peer int, payload []byte) error {
	m, err := order.Decode(payload)
	if err != nil {
		return fmt.Errorf("%w: %w", exec.ErrProtocol, err)
	}
	q.mu.Lock()
	if q.answers != nil {
		q.answers[peer] = m
	}
	q.mu.Unlock()
	notify(q.changed)
	return nil
}

// answer tells a peer how far this rank has come. A communicator that has failed still answers. The
// asker counts a lost answer as no answer: one that does not read its answers loses some.
func (c *epoch) answer(peer int) {
	c.lockOrder()
	m := c.fast.At(c.Sequence())
	c.unlockOrder()
	c.group.Notify(peer, transport.Header{Type: frameStatus}, order.Encode(m))
}
