package sim

import (
	"fmt"
	"maps"
	"slices"

	"github.com/goccl/goccl/core/plan"
)

// step is a step of a plan, as far as its time depends on it.
type step struct {
	op      plan.Op
	sources uint8 // of a Combine
	// posted is set where the message goes straight to its place, so that it is not copied.
	posted bool
	peer   int32
	ring   int32 // of the messages that the step puts, waits for or releases
	number int32 // of a Reclaim: that of the message
	bytes  int64
}

// compact appends the steps of a plan to those of a rank. Messages of earlier plans, of which puts
// has the number by peer, come first. ports tells to whom ports join the rank.
func compact(steps []step, p *plan.Plan, puts map[int32]int32, ports []bool) []step {
	base := maps.Clone(puts)
	for i := range p.Steps {
		s := &p.Steps[i]
		c := step{op: s.Op, peer: s.Peer, bytes: s.Bytes, sources: uint8(min(len(s.Src), 255))}
		switch s.Op {
		case plan.Put, plan.Offer:
			puts[s.Peer]++
		case plan.PutToAll:
			for peer := range int32(p.Size) {
				if int(peer) != p.Rank {
					puts[peer]++
				}
			}
		case plan.Reclaim:
			c.number = base[s.Peer] + s.Src[0].Block
		case plan.Copy:
			c.posted = i > 0 && p.Takes(i-1) && ports != nil && ports[p.Steps[i-1].Peer] &&
				s.Bytes >= plan.PostMin
			if s.Dst == s.Src[0] {
				c.bytes = 0
			}
		}
		steps = append(steps, c)
	}
	return steps
}

// ring is the messages of a rank to a peer.
type ring struct {
	put, waited, released int32
	arrives               int32 // so many messages have crossed the network, or need not
	known                 int32 // so many releases are on their way to the sender, or there
	needed                int32 // the message whose release a blocked sender waits for
	exposed               bool
	port                  bool  // it is one
	sender, receiver      int32 // ranks
	messages              []message
	exposure              message // what the sender exposes, if it does
}

// message lies in the slot of its number.
type message struct {
	sent     int64 // when it left the sender
	from     int32 // the sender's step
	released int32 // the receiver's step that has released it
	freed    int64 // when it was released
	knownAt  int64 // when the sender knows that
	crossing transit
	passage  passage // until it has crossed the network
}

// connect makes the rings of all ranks, of so many slots, and gives each step its ring.
func connect(ranks []rank, slots int, port func(a, b int32) bool) ([]ring, error) {
	n := int32(len(ranks))
	for r := range ranks {
		for i := range ranks[r].steps {
			s := &ranks[r].steps[i]
			switch {
			case s.op == plan.Copy || s.op == plan.Combine:
			case s.op == plan.PutToAll:
				for peer := range n {
					if int(peer) != r {
						ranks[r].join(peer)
						ranks[peer].join(int32(r))
					}
				}
			case s.peer < 0 || s.peer >= n || int(s.peer) == r:
				return nil, fmt.Errorf("rank %d, step %d: there is no peer %d", r, i, s.peer)
			case !ranks[r].joined(s.peer):
				ranks[r].join(s.peer)
				ranks[s.peer].join(int32(r))
			}
		}
	}
	var rings []ring
	for r := range ranks {
		k := &ranks[r]
		slices.Sort(k.peers)
		k.peers = slices.Compact(k.peers)
		k.rings = int32(len(rings))
		for _, peer := range k.peers {
			rings = append(rings, ring{sender: int32(r), receiver: peer, port: port(int32(r), peer)})
		}
	}
	puts := make([]int32, len(rings))
	for r := range ranks {
		k := &ranks[r]
		for i := range k.steps {
			switch s := &k.steps[i]; s.op {
			case plan.Put, plan.Offer:
				s.ring = k.ringTo(s.peer)
				puts[s.ring]++
			case plan.Expose, plan.Reclaim:
				s.ring = k.ringTo(s.peer)
			case plan.Wait, plan.Release, plan.Access, plan.Get:
				s.ring = ranks[s.peer].ringTo(int32(r))
			case plan.PutToAll:
				for i := range k.peers {
					puts[k.rings+int32(i)]++
				}
			}
		}
	}
	total := 0
	for _, n := range puts {
		total += min(int(n), slots)
	}
	messages := make([]message, total)
	for i := range rings {
		k := min(int(puts[i]), slots)
		rings[i].messages, messages = messages[:k:k], messages[k:]
	}
	return rings, nil
}

// joined reports whether a peer was joined to the rank lately, so that most need not be twice.
func (k *rank) joined(peer int32) bool {
	last := len(k.peers)
	return slices.Contains(k.peers[max(0, last-16):], peer)
}

func (k *rank) join(peer int32) { k.peers = append(k.peers, peer) }

// ringTo is the ring of the rank's messages to a peer.
func (k *rank) ringTo(peer int32) int32 {
	i, _ := slices.BinarySearch(k.peers, peer)
	return k.rings + int32(i)
}
