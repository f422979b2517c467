package plan

import (
	"errors"
	"fmt"
	"slices"
	"sort"
)

// exposure is what a rank exposes to a peer.
type exposure struct {
	in, out      *region
	bytes, total int64
	accessed     bool
	used         int32 // how often the peer has used it
	usedKnown    int32 // of that, what its owner knows
}

// offer is a place that a message offers: from a byte of a block on.
type offer struct {
	*region
	from int64
}

// use is that of a run of bytes.
type use struct {
	off, end int64
	users    [2]int32 // two of the ranks that read or write them, or the only one and nobody
	written  bool     // by the only one
}

// by has one more rank use the same bytes. Where there are several users, one of which writes, it
// tells another one, else nobody.
func (u *use) by(rank int32, writes bool) (other int32) {
	for i, user := range u.users {
		switch {
		case user == nobody && rank != u.users[0]:
			u.users[i] = rank
		case user != nobody && user != rank && (writes || u.written):
			return user
		}
	}
	u.written = u.written || writes
	return nobody
}

// uses is who uses which bytes of a piece of memory: in order, and each byte in one use.
type uses []use

// add adds a use by a rank of the bytes in [off, end), as by does.
func (m *uses) add(off, end int64, rank int32, writes bool) (other int32) {
	all := *m
	lo := sort.Search(len(all), func(i int) bool { return all[i].end >= off })
	hi, at := lo, off
	var fresh [8]use
	put := fresh[:0]
	add := func(u use, off, end int64) {
		k := len(put) - 1
		switch u.off, u.end = off, end; {
		case off >= end:
		case k >= 0 && put[k].end == off && put[k].users == u.users && put[k].written == u.written:
			put[k].end = end
		default:
			put = append(put, u)
		}
	}
	once := use{users: [2]int32{rank, nobody}, written: writes}
	for ; hi < len(all) && all[hi].off <= end; hi++ {
		u := all[hi]
		add(u, u.off, min(u.end, off))
		add(once, at, min(u.off, end))
		if from, to := max(u.off, off), min(u.end, end); from < to {
			more := u
			if other = more.by(rank, writes); other != nobody {
				return other
			}
			add(more, from, to)
		}
		add(u, max(u.off, end), u.end)
		at = max(at, u.end)
	}
	add(once, at, end)
	*m = slices.Replace(all, lo, hi, put...)
	return nobody
}

// checkPhases refuses a direct plan that does anything before it has exposed to all and has access
// to all (of a star, before its root has access and has exposed): until then all may yet have to
// run the other plan.
func checkPhases(p *Plan, q *Params) error {
	peers, first, then := p.Size-1, Expose, Access
	switch {
	case star(q.Collective) && q.Rank == q.Root:
		first, then = Access, Expose
	case star(q.Collective):
		peers = 1
	}
	for i := range p.Steps {
		op := p.Steps[i].Op
		if (op == first) != (i < peers) || (op == then) != (i >= peers && i < 2*peers) {
			return fmt.Errorf("step %d (%v) is out of order in a direct plan", i, &p.Steps[i])
		}
	}
	return nil
}

func (v *verifier) expose(s *rankState, step *Step) error {
	l := &v.out(s.rank, step.Peer).of
	if s.params.Algorithm != Direct || l.exposure != nil {
		return errors.New("exposes in a plan that is not direct, or twice")
	}
	e := &exposure{bytes: step.Bytes, total: step.Total}
	for _, ref := range step.Src {
		m, err := v.locate(s, ref, step.Bytes)
		switch {
		case err != nil:
			return err
		case ref.Off != 0:
			return fmt.Errorf("exposes %v", ref)
		case ref.Space == In && e.in == nil && e.out == nil:
			e.in = m
		case ref.Space == Out && e.out == nil:
			e.out = m
		default:
			return fmt.Errorf("exposes %v", ref)
		}
	}
	if len(step.Src) == 0 {
		return errors.New("exposes nothing")
	}
	l.exposure = e
	return nil
}

func (v *verifier) access(s *rankState, step *Step) error {
	switch e := v.in(s.rank, step.Peer).of.exposure; {
	case e.accessed:
		return errors.New("accesses twice")
	case !slices.Equal(step.Src, e.refs(step.Peer)):
		return fmt.Errorf("%v is exposed", e.refs(step.Peer))
	case e.bytes != step.Bytes || e.total != step.Total:
		return fmt.Errorf("%d bytes are exposed, total %d; total %d is waited for",
			e.bytes, e.total, step.Total)
	default:
		e.accessed = true
	}
	return nil
}

// refs is how the peer names what is exposed to it.
func (e *exposure) refs(owner int32) (refs []Ref) {
	if e.in != nil {
		refs = append(refs, Ref{Space: PeerIn, Peer: owner})
	}
	if e.out != nil {
		refs = append(refs, Ref{Space: PeerOut, Peer: owner})
	}
	return refs
}

// exposed tells whether places of the space are a peer's, which exposes them.
func (s Space) exposed() bool { return s == PeerIn || s == PeerOut }

// use is the memory of a place that is exposed to the rank which names it, or nil.
func (e *exposure) use(ref Ref, bytes int64) *region {
	if e == nil || !e.accessed || ref.Off > e.bytes-bytes {
		return nil
	}
	e.used++
	if ref.Space == PeerIn {
		return e.in
	}
	return e.out
}

func (v *verifier) offer(s *rankState, step *Step) error {
	if s.params.GetMin == 0 || step.Bytes != OfferBytes || len(step.Src) != 1 ||
		step.Src[0].Space != In && step.Src[0].Space != Out {
		return errors.New("offers what cannot be got")
	}
	m, err := v.locate(s, step.Src[0], 0)
	switch {
	case err != nil:
		return err
	case len(m.late) > 0:
		return errors.New("offers an input that is yet to come")
	}
	v.send(s, step.Peer, step, nil).offer = &offer{m, step.Src[0].Off}
	g := v.out(s.rank, step.Peer)
	g.of.owed = append(g.of.owed, g.put)
	return nil
}

func (v *verifier) get(s *rankState, step *Step) error {
	if len(step.Src) != 1 || step.Src[0].Space != Inbox || step.Src[0].Peer != step.Peer ||
		step.Dst.Space != Out {
		return errors.New("must name one message of its peer, and an output")
	}
	ref, g := step.Src[0], v.in(s.rank, step.Peer)
	if ref.Block < g.released || ref.Block >= g.waited || g.of.at(ref.Block).offer == nil {
		return fmt.Errorf("%v offers nothing, or not now", ref)
	}
	from := g.of.at(ref.Block).offer
	if ref.Off < 0 || ref.Off > from.bytes-from.from-step.Bytes {
		return fmt.Errorf("%d bytes from byte %d on of a block of %d, of which byte %d is offered",
			step.Bytes, ref.Off, from.bytes, from.from)
	}
	dst, err := v.destination(s, step)
	if err != nil {
		return err
	}
	off := from.from + ref.Off
	if v.segs, err = from.read(off, step.Bytes, v.segs[:0]); err != nil {
		return err
	}
	if err := v.touch(s, from.region, off, step.Bytes, false); err != nil {
		return err
	}
	return v.write(s, dst, step.Dst.Off, step.Bytes, v.segs)
}

// touch refuses what does depend on time: a place that two ranks use, and one of them writes.
// Messages need no such proof, as a slot is with its sender or with its receiver.
func (v *verifier) touch(s *rankState, m *region, off, bytes int64, writes bool) error {
	gets := s.params.GetMin > 0 && !s.params.Collective.Reduces()
	if !m.block || s.params.Algorithm != Direct && !gets {
		return nil
	}
	t := v.touched[m]
	if t == nil {
		t = &uses{}
		v.touched[m] = t
	}
	end := off + bytes
	if other := t.add(off, end, int32(s.rank), writes); other != nobody {
		return fmt.Errorf("bytes %d to %d are also used by rank %d", off, end, other)
	}
	return nil
}
