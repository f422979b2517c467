package plan

// Post names a message whose payload may be put where it belongs as it comes, without the detour
// over the inbox: its Wait, Copy and Release follow one another.
type Post struct {
	Wait int // the index of the step
	From int // the first step from which on, up to Wait, nothing uses the destination
}

// PostMin is the least number of bytes for which a placement costs less than a copy.
const PostMin = 16 << 10

// Posts finds all messages of at least the given bytes that may be posted, in the order of their
// Waits. Bytes of In and Out at equal offsets count as the same memory, as the plan may run in
// place, unless they are said to be apart.
func (p *Plan) Posts(least int64, apart bool) []Post {
	var posts []Post
	// No more messages than a few a peer can be under way, so looking back further gains nothing.
	back := 64 * p.Size
	for i := range p.Steps {
		if p.Steps[i].Bytes < least || !p.Takes(i) {
			continue
		}
		copied := &p.Steps[i+1]
		from := i
		for from > max(0, i-back) && !p.Steps[from-1].uses(copied.Dst, copied.Bytes, apart) {
			from--
		}
		posts = append(posts, Post{Wait: i, From: from})
	}
	return posts
}

// Takes reports whether a step is a Wait whose message the next two steps copy whole to an output,
// and release.
func (p *Plan) Takes(i int) bool {
	if i+2 >= len(p.Steps) || p.Steps[i].Op != Wait {
		return false
	}
	wait, copied, release := &p.Steps[i], &p.Steps[i+1], &p.Steps[i+2]
	if copied.Op != Copy || len(copied.Src) != 1 || copied.Bytes != wait.Bytes ||
		release.Op != Release || release.Peer != wait.Peer {
		return false
	}
	from := copied.Src[0]
	return from.Space == Inbox && from.Peer == wait.Peer && from.Off == 0 && copied.Dst.Space == Out
}

// uses tells whether a step reads or writes any of the bytes at an output's place.
func (s *Step) uses(out Ref, bytes int64, apart bool) bool {
	touches := func(r Ref) bool {
		same := r.Space == Out && r.Block == out.Block || r.Space == In && !apart
		return same && r.Off < out.Off+bytes && out.Off < r.Off+s.Bytes
	}
	switch s.Op {
	case Wait, Release, Reclaim, Final:
		return false
	case Copy, Combine, Get:
		if touches(s.Dst) {
			return true
		}
	}
	for _, r := range s.Src {
		if touches(r) {
			return true
		}
	}
	return false
}

// posting names a message that is posted.
type posting struct{ peer, n int32 }

// postings is the messages that a run of the plan posts, with the Put by which they are so at the
// latest. It posts them in the order of their Waits, and stops at one that has to wait: until
// nothing uses the place, a slot is free, and the peer is connected. Inputs and outputs are taken
// to be apart: an AllToAll is never in place, and of a Scatter only the root has inputs.
func (p *Plan) postings(slots int) map[posting]int32 {
	posted := map[posting]int32{}
	posts := p.Posts(1, true)
	freed, met := map[int32]int32{}, map[int32]bool{}
	next := 0
	for i := range p.Steps {
		step := &p.Steps[i]
		switch step.Op {
		case Wait:
			met[step.Peer] = true
		case Release:
			freed[step.Peer]++
		case Put:
			met[step.Peer] = true
			for ; next < len(posts); next++ {
				if posts[next].Wait < i {
					continue
				}
				from := p.Steps[posts[next].Wait+1].Src[0] // of the Copy
				q := posting{from.Peer, from.Block}
				if posts[next].From > i || !met[q.peer] || q.n >= freed[q.peer]+int32(slots) {
					break
				}
				posted[q] = int32(i)
			}
		}
	}
	return posted
}

// mayBeLong tells whether the receiver of message n has posted its place for certain.
func (v *verifier) mayBeLong(s *rankState, n int32, step *Step) bool {
	peer := &v.states[step.Peer]
	if s.params.Ports == nil || !s.params.Ports[step.Peer] || step.Bytes > s.params.Long ||
		peer.params == nil ||
		peer.params.Collective != AllToAll && peer.params.Collective != Scatter {
		return false
	}
	if peer.posted == nil {
		peer.posted = v.ranks[step.Peer].plan.postings(peer.params.Slots)
	}
	at, ok := peer.posted[posting{int32(s.rank), n}]
	return ok && at < v.out(s.rank, step.Peer).of.done
}
