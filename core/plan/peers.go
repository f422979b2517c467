package plan

// Carried is how many bytes this rank's part puts to each peer, or reads from its memory. What goes
// to all, written once, counts as put to the next rank.
func (p *Plan) Carried() []int64 {
	bytes := make([]int64, p.Size)
	for i := range p.Steps {
		switch s := &p.Steps[i]; s.Op {
		case Put, Get:
			bytes[s.Peer] += s.Bytes
		case PutToAll:
			bytes[(p.Rank+1)%p.Size] += s.Bytes
		case Copy, Combine:
			for _, refs := range [][]Ref{s.Src, s.Also, {s.Dst}} {
				for _, r := range refs {
					if r.Space == PeerIn || r.Space == PeerOut {
						bytes[r.Peer] += s.Bytes
					}
				}
			}
		}
	}
	return bytes
}

// Peers are the ranks whose messages a plan waits for, or to which it puts some, each in the order
// of its steps.
func (p *Plan) Peers() (senders, receivers []int) {
	heard, told := make([]bool, p.Size), make([]bool, p.Size)
	add := func(to *[]int, known []bool, peer int) {
		if !known[peer] {
			known[peer] = true
			*to = append(*to, peer)
		}
	}
	for i := range p.Steps {
		switch s := &p.Steps[i]; s.Op {
		case Wait, Access:
			add(&senders, heard, int(s.Peer))
		case Put, Offer, Expose:
			add(&receivers, told, int(s.Peer))
		case PutToAll:
			for d := 1; d < p.Size; d++ {
				add(&receivers, told, (p.Rank+d)%p.Size)
			}
		}
	}
	return senders, receivers
}
