package plan

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
)

// machine is ranks that run their plans together, one step of one rank after another, and the
// channels that join them. It knows for whom each step waits and how many messages lie in each
// ring. It knows nothing of data and of time: a T is what its user keeps of each ring beside that.
//
// It holds rings for those pairs of ranks only that some plan joins.
type machine[T any] struct {
	ranks []progress
	rings []ring[T] // of each pair that of the lower rank's messages, then that of the other's
	idle  ring[T]   // stands for the rings of all other pairs
	ready []int     // the ranks that are not blocked, each once
	// pick chooses which of these ranks goes on, until it is blocked: an index. nil: the last one that
	// has become ready. No result depends on it.
	pick func(ready []int) int
}

// progress is how far a rank is.
type progress struct {
	plan    *Plan
	next    int     // the step to be done
	blocked int     // the rank for which it waits, or nobody
	most    int32   // how many messages of a ring it may have put that are not released
	peers   []int32 // those that some plan joins to it, in order
	pairs   []int32 // the pair with each of them
	puts    []int32 // how many messages the plan puts to each of them
	last    int     // which of them was looked for last
}

const nobody = -1

// ring is one direction of a channel. Its messages are counted from 0.
type ring[T any] struct {
	put, waited, released int32
	exposed               bool // its sender has exposed its blocks to its receiver
	of                    T
}

// newMachine is a machine before the first step. A rank may have put most(rank) messages of a ring
// that are not released. Plans may name ranks that are not there; blocked refuses such steps.
func newMachine[T any](plans []*Plan, most func(rank int) int) *machine[T] {
	m := &machine[T]{ranks: make([]progress, len(plans))}
	for r, p := range plans {
		m.ranks[r] = progress{plan: p, blocked: nobody, most: int32(most(r))}
		m.ready = append(m.ready, r)
	}
	m.findPeers()
	m.countPuts()
	pairs, seen := int32(0), make([]int, len(plans)) // how many of a rank's peers have come
	for r := range m.ranks {
		for _, peer := range m.ranks[r].peers[seen[r]:] {
			for _, end := range []int{r, int(peer)} {
				m.ranks[end].pairs[seen[end]] = pairs
				seen[end]++
			}
			pairs++
		}
	}
	m.rings = make([]ring[T], 2*pairs)
	return m
}

// findPeers finds the pairs that some plan joins.
func (m *machine[T]) findPeers() {
	join := func(r, peer int) {
		m.ranks[r].peers = append(m.ranks[r].peers, int32(peer))
		m.ranks[peer].peers = append(m.ranks[peer].peers, int32(r))
	}
	joined := make([]int, len(m.ranks)) // by peer: the rank after the last that has joined it
	for r := range m.ranks {
		for i := range m.ranks[r].plan.Steps {
			switch s := &m.ranks[r].plan.Steps[i]; {
			case s.Op == PutToAll:
				for peer := range m.ranks {
					if peer != r && joined[peer] != r+1 {
						joined[peer] = r + 1
						join(r, peer)
					}
				}
			case s.Op.hasPeer() && m.isPeer(r, s.Peer) && joined[s.Peer] != r+1:
				joined[s.Peer] = r + 1
				join(r, int(s.Peer))
			}
		}
	}
	for r := range m.ranks {
		p := &m.ranks[r]
		slices.Sort(p.peers)
		p.peers = slices.Compact(p.peers)
		p.pairs, p.puts = make([]int32, len(p.peers)), make([]int32, len(p.peers))
	}
}

// countPuts counts the messages of each ring.
func (m *machine[T]) countPuts() {
	puts := make([]int32, len(m.ranks)) // by peer
	for r := range m.ranks {
		p, toAll := &m.ranks[r], int32(0)
		for i := range p.plan.Steps {
			switch s := &p.plan.Steps[i]; {
			case s.Op == PutToAll:
				toAll++
			case (s.Op == Put || s.Op == Offer) && m.isPeer(r, s.Peer):
				puts[s.Peer]++
			}
		}
		for i, peer := range p.peers {
			p.puts[i] = puts[peer] + toAll
			puts[peer] = 0
		}
	}
}

// hasPeer tells whether a step of this kind names a peer.
func (o Op) hasPeer() bool {
	return o != Copy && o != Combine && o != PutToAll && o != Need && o != Final
}

func (m *machine[T]) isPeer(r int, peer int32) bool {
	return peer >= 0 && int(peer) < len(m.ranks) && int(peer) != r
}

// out is the ring of a rank's messages to a peer, in that of the peer's to it.
func (m *machine[T]) out(r int, peer int32) *ring[T] { return m.ring(r, peer, int(peer) < r) }
func (m *machine[T]) in(r int, peer int32) *ring[T]  { return m.ring(r, peer, r < int(peer)) }

// outs are the peers that some plan joins to a rank, each with the ring of the rank's messages to
// it.
func (m *machine[T]) outs(r int) iter.Seq2[int32, *ring[T]] {
	return func(yield func(int32, *ring[T]) bool) {
		for i, peer := range m.ranks[r].peers {
			if !yield(peer, m.outTo(r, i)) {
				return
			}
		}
	}
}

// outTo is the ring of a rank's messages to the peer with an index among its peers.
func (m *machine[T]) outTo(r, i int) *ring[T] {
	p := &m.ranks[r]
	at := 2 * p.pairs[i]
	if int(p.peers[i]) < r {
		at++
	}
	return &m.rings[at]
}

func (m *machine[T]) ring(r int, peer int32, second bool) *ring[T] {
	p := &m.ranks[r]
	if p.last >= len(p.peers) || p.peers[p.last] != peer {
		i := int(peer) // where all ranks are peers
		if int(peer) > r {
			i--
		}
		if i < 0 || i >= len(p.peers) || p.peers[i] != peer {
			var ok bool
			if i, ok = slices.BinarySearch(p.peers, peer); !ok {
				return &m.idle
			}
		}
		p.last = i
	}
	i := 2 * p.pairs[p.last]
	if second {
		i++
	}
	return &m.rings[i]
}

// run runs all ranks to their ends. It calls do for each step that can be done, just before it is:
// rings are as the step finds them.
func (m *machine[T]) run(do func(r int, s *Step) error) error {
	for len(m.ready) > 0 {
		at := len(m.ready) - 1
		if m.pick != nil {
			at = m.pick(m.ready)
		}
		r := m.ready[at]
		m.ready = slices.Delete(m.ready, at, at+1)
		for p := &m.ranks[r]; p.next < len(p.plan.Steps); {
			s := &p.plan.Steps[p.next]
			peer, err := m.waitsFor(r, s)
			if p.blocked = peer; peer != nobody {
				break
			}
			if err == nil {
				err = do(r, s)
			}
			if err != nil {
				return fmt.Errorf("rank %d, step %d (%v): %w", r, p.next, s, err)
			}
			m.advance(r, s)
		}
	}
	var stuck []string
	for r := range m.ranks {
		if p := &m.ranks[r]; p.next < len(p.plan.Steps) {
			stuck = append(stuck,
				fmt.Sprintf("rank %d in step %d (%v)", r, p.next, &p.plan.Steps[p.next]))
		}
	}
	if stuck != nil {
		return fmt.Errorf("deadlock: %s", strings.Join(stuck, "; "))
	}
	return nil
}

// waitsFor is the rank that must first do something before rank r can do its next step, or nobody.
// It refuses a step that no rank can ever do.
func (m *machine[T]) waitsFor(r int, s *Step) (peer int, err error) {
	if s.Op.hasPeer() && !m.isPeer(r, s.Peer) {
		return nobody, errors.New("there is no such peer")
	}
	blocked := false
	switch s.Op {
	case Put, Offer:
		blocked = m.full(r, m.out(r, s.Peer))
	case PutToAll:
		for peer, g := range m.outs(r) {
			if m.full(r, g) {
				return int(peer), nil
			}
		}
	case Wait:
		g := m.in(r, s.Peer)
		blocked = g.waited == g.put
	case Release:
		if g := m.in(r, s.Peer); g.released == g.waited {
			return nobody, errors.New("releases a message that it has not waited for")
		}
	case Reclaim:
		g := m.out(r, s.Peer)
		if len(s.Src) != 1 || s.Src[0] != (Ref{Outbox, s.Peer, s.Src[0].Block, 0}) {
			return nobody, errors.New("must name one message to its peer")
		}
		if n := s.Src[0].Block; n < 0 || n >= g.put {
			return nobody, errors.New("reclaims a message that was not put")
		}
		blocked = s.Src[0].Block >= g.released
	case Access:
		blocked = !m.in(r, s.Peer).exposed
	case Expose, Get, Copy, Combine, Need, Final:
	default:
		return nobody, errors.New("there is no such step")
	}
	if blocked {
		return int(s.Peer), nil
	}
	return nobody, nil
}

// full tells whether a put of a rank to a ring must wait.
func (m *machine[T]) full(r int, g *ring[T]) bool {
	return g.put-g.released >= m.ranks[r].most
}

// advance does the next step of a rank, which nothing blocks, and makes ready whom that frees.
func (m *machine[T]) advance(r int, s *Step) {
	switch s.Op {
	case Put, Offer:
		m.out(r, s.Peer).put++
		m.wake(r, s.Peer)
	case PutToAll:
		for peer, g := range m.outs(r) {
			g.put++
			m.wake(r, peer)
		}
	case Wait:
		m.in(r, s.Peer).waited++
	case Release:
		m.in(r, s.Peer).released++
		m.wake(r, s.Peer)
	case Expose:
		m.out(r, s.Peer).exposed = true
		m.wake(r, s.Peer)
	}
	m.ranks[r].next++
}

// wake makes a peer ready that waits for rank r.
func (m *machine[T]) wake(r int, peer int32) {
	if p := &m.ranks[peer]; p.blocked == r {
		p.blocked = nobody
		m.ready = append(m.ready, int(peer))
	}
}
