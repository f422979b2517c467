package plan

import (
	"errors"
	"fmt"
	"slices"
)

// exposure is what a rank exposes to a peer.
type exposure struct {
	in, out      *region
	bytes, total int64
	accessed     bool
	used         int // how often the peer has used it
	usedKnown    int // of that, what its owner knows
}

// offer is a place that a message offers: from a byte of a block on.
type offer struct {
	*region
	from int64
}

// extent is the part of a piece of memory that a rank uses, from the first byte to the last.
type extent struct{ off, end int64 }

func (e *extent) add(off, end int64) {
	if e.off == e.end {
		*e = extent{off, end}
	}
	e.off, e.end = min(e.off, off), max(e.end, end)
}

func (e extent) meets(off, end int64) bool { return e.off < end && off < e.end }

// touched is what each rank reads and writes of a piece of memory that peers use too.
type touched struct{ read, written []extent }

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
	if err != nil {
		return err
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
	dst.write(step.Dst.Off, step.Bytes, v.segs)
	if err := v.touch(s, from.region, off, step.Bytes, false); err != nil {
		return err
	}
	return v.touch(s, dst, step.Dst.Off, step.Bytes, true)
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
		t = &touched{make([]extent, len(v.states)), make([]extent, len(v.states))}
		v.touched[m] = t
	}
	end := off + bytes
	for r := range v.states {
		if r != s.rank && (t.written[r].meets(off, end) || writes && t.read[r].meets(off, end)) {
			return fmt.Errorf("bytes %d to %d are also used by rank %d", off, end, r)
		}
	}
	if writes {
		t.written[s.rank].add(off, end)
	} else {
		t.read[s.rank].add(off, end)
	}
	return nil
}
