package plan

// Post names a message whose payload may be put where it belongs as it comes, without the detour over
// the inbox: its Wait, Copy and Release follow one another.
type Post struct {
	Wait int // the index of the step
	From int // the first step from which on, up to Wait, nothing uses the destination
}

// Posts finds all messages of at least the given bytes that may be posted, in the order of their
// Waits. Bytes of In and Out at equal offsets count as the same memory, as the plan may run in place, unless they are
// said to be apart.
func (p *Plan) Posts(least int64, apart bool) []Post {
	var posts []Post
	// No more messages than a few a peer can be under way, so looking back further gains nothing.
	back := 64 * p.Size
	for i := range p.Steps {
		if i+2 >= len(p.Steps) || p.Steps[i].Op != Wait || p.Steps[i].Bytes < least {
			continue
		}
		wait, copied, release := &p.Steps[i], &p.Steps[i+1], &p.Steps[i+2]
		if copied.Op != Copy || release.Op != Release || release.Peer != wait.Peer || copied.Bytes != wait.Bytes {
			continue
		}
		if from := copied.Src[0]; from.Space != Inbox || from.Peer != wait.Peer || from.Off != 0 || copied.Dst.Space != Out {
			continue
		}
		from := i
		for from > max(0, i-back) && !p.Steps[from-1].uses(copied.Dst, copied.Bytes, apart) {
			from--
		}
		posts = append(posts, Post{Wait: i, From: from})
	}
	return posts
}

// uses tells whether a step reads or writes any of the bytes at an output's place.
func (s *Step) uses(out Ref, bytes int64, apart bool) bool {
	touches := func(r Ref) bool {
		same := r.Space == Out && r.Block == out.Block || r.Space == In && !apart
		return same && r.Off < out.Off+bytes && out.Off < r.Off+s.Bytes
	}
	switch s.Op {
	case Wait, Release, Reclaim:
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
