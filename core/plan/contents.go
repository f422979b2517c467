package plan

import (
	"errors"
	"fmt"
)

func (v *verifier) copy(s *rankState, step *Step) error {
	if len(step.Src) != 1 {
		return fmt.Errorf("has %d sources", len(step.Src))
	}
	dst, err := v.destination(s, step)
	if err != nil {
		return err
	}
	var src *region
	if v.segs, src, err = v.readSource(s, step, v.segs[:0]); err != nil {
		return err
	}
	if err := overlap(dst, src, step.Dst.Off, step.Bytes, step.Src[0].Off, step.Bytes); err != nil {
		return err
	}
	if dst == src && step.Dst.Off == step.Src[0].Off {
		return nil
	}
	return v.write(s, dst, step.Dst.Off, step.Bytes, v.segs)
}

func (v *verifier) combine(s *rankState, step *Step) error {
	from, to, err := s.params.sizes(step.Stage)
	if err != nil {
		return err
	}
	if step.Bytes%from != 0 {
		return fmt.Errorf("cuts elements of %d bytes", from)
	}
	bytes := step.Bytes / from * to
	places := append([]Ref{step.Dst}, step.Also...)
	destinations, err := v.destinations(s, places, bytes)
	if err != nil {
		return err
	}
	result, err := v.combined(s, step, func(src *region, ref Ref) error {
		k := int(src.mark) + len(places) - v.marks - 1
		if k < 0 {
			return nil // it is no destination
		}
		return overlap(destinations[k], src, places[k].Off, bytes, ref.Off, step.Bytes)
	})
	if err != nil {
		return err
	}
	if result.off%from != 0 || step.Dst.Off%to != 0 {
		return fmt.Errorf("cuts elements of %d bytes", from)
	}
	result.off = result.off / from * to
	for i, dst := range destinations {
		if err := v.write(s, dst, places[i].Off, bytes, []segment{{0, bytes, result}}); err != nil {
			return err
		}
	}
	return nil
}

// combined reads the sources of a Combine, and returns what comes of them. It asks of each whether
// it may be read.
func (v *verifier) combined(s *rankState, step *Step, ask func(*region, Ref) error) (value, error) {
	if s.params.AnyOrder {
		return v.inAnyOrder(s, step, ask)
	}
	first, last, err := v.inOrder(s, step, ask)
	if err != nil {
		return value{}, err
	}
	return s.params.subtree(step, first, last)
}

// sizes are those of an element that a Combine reads, and of one that it writes.
func (p *Params) sizes(stage Stage) (from, to int64, err error) {
	switch {
	case stage > Last:
		return 0, 0, errors.New("there is no such stage")
	case stage != Whole && !p.staged():
		return 0, 0, errors.New("there are no stages")
	}
	from, to = p.ElemSize, p.ElemSize
	if stage == Middle || stage == Last {
		from = p.PartialSize
	}
	if stage == First || stage == Middle {
		to = p.PartialSize
	}
	return from, to, nil
}

// destinations finds the memory of all places to which a Combine writes, each in another piece, and
// marks them with the last numbers.
func (v *verifier) destinations(s *rankState, places []Ref, bytes int64) ([]*region, error) {
	found, before := make([]*region, len(places)), v.marks
	for i, ref := range places {
		allowed := (ref.Space == Inbox || ref.Space == PeerOut) && s.params.Memory ||
			i == 0 && (ref.Space == Out || ref.Space == Scratch)
		if !allowed {
			return nil, fmt.Errorf("writes to %v", ref)
		}
		m, err := v.locate(s, ref, bytes)
		if err == nil && ref.Space == Inbox {
			err = v.notShared(s, ref)
		}
		switch {
		case err != nil:
			return nil, err
		case int(m.mark) > before:
			return nil, fmt.Errorf("writes to %v, and once more to the same memory", ref)
		}
		v.marks++
		found[i], m.mark = m, int32(v.marks)
	}
	return found, nil
}

// inOrder reads the sources of a Combine, each of which must go on with the ranks where the one
// before it ends, and returns the first and the last. All are over as many ranks, but the last may
// end with the last rank before. It asks of each whether it may be read.
func (v *verifier) inOrder(s *rankState, step *Step, ask func(*region, Ref) error) (
	first, last value, err error) {
	for i, ref := range step.Src {
		var src *region
		if v.segs, src, err = v.read(s, ref, step.Bytes, v.segs[:0]); err != nil {
			return first, last, err
		}
		if err := ask(src, ref); err != nil {
			return first, last, err
		}
		last = v.segs[0].val
		if i == 0 {
			first = last
		}
		want := first
		want.rank += int32(i * first.over())
		if last.over() < first.over() && last.end() == len(v.states) {
			want.ranks = last.ranks
		}
		if s.params.staged() && (last.ranks > 0) != (step.Stage == Middle || step.Stage == Last) {
			return first, last, fmt.Errorf("source %d is %v, which is not for this stage", i, last)
		}
		// Contents that are one run of one input are one segment.
		if last != want || last.reduced || len(v.segs) > 1 {
			return first, last, fmt.Errorf("source %d must be %v; in %d runs, it begins with %v",
				i, want, len(v.segs), last)
		}
	}
	return first, last, nil
}

// subtree is what comes of the sources of a Combine in order, of which the first and the last are
// given. It must be a subtree of the canonical order: the inputs of an aligned block of 2^j ranks,
// cut off at the last rank. So the blocks that the sources are over must make up such a block. In
// stages it is the whole if and only if it is their last, or their only one.
func (p *Params) subtree(step *Step, first, last value) (value, error) {
	sources, size := len(step.Src), p.Size
	each, block := first.over(), first.over()
	for block < sources*each {
		block *= 2
	}
	lo, hi := int(first.rank), last.end()
	whole := lo == 0 && hi == size
	alone := sources == 1 && !whole && step.Stage != First
	if each&(each-1) != 0 || lo%block != 0 || hi != min(lo+block, size) || alone {
		return value{}, fmt.Errorf("combines %d inputs, from %v on, to rank %d of %d: which is no "+
			"aligned block of the canonical order", sources, first, hi-1, size)
	}
	if p.staged() && whole != (step.Stage == Whole || step.Stage == Last) {
		return value{}, fmt.Errorf("combines ranks %d to %d of %d, which is not for this stage", lo,
			hi-1, size)
	}
	if whole {
		return value{reduced: true, block: first.block, off: first.off}, nil
	}
	first.ranks = int32(hi - lo)
	return first, nil
}

// overlap refuses a source that is overwritten while it is read, unless by what is as long, in its
// very place.
func overlap(dst, src *region, dstOff, dstBytes, srcOff, srcBytes int64) error {
	same := dstOff == srcOff && dstBytes == srcBytes
	if dst == src && !same && dstOff < srcOff+srcBytes && srcOff < dstOff+dstBytes {
		return errors.New("source and destination overlap")
	}
	return nil
}

// readSource is read of a step's only source.
func (v *verifier) readSource(s *rankState, step *Step, to []segment) ([]segment, *region, error) {
	if len(step.Src) != 1 {
		return to, nil, fmt.Errorf("has %d sources", len(step.Src))
	}
	return v.read(s, step.Src[0], step.Bytes, to)
}

// read appends the contents of a place to segments, and tells the memory that they are in.
func (v *verifier) read(s *rankState, ref Ref, bytes int64, to []segment) (
	[]segment, *region, error) {
	m, err := v.locate(s, ref, bytes)
	if err != nil {
		return to, nil, err
	}
	if to, err = m.read(ref.Off, bytes, to); err != nil {
		return to, nil, err
	}
	return to, m, v.touch(s, m, ref.Off, bytes, false)
}

func (v *verifier) destination(s *rankState, step *Step) (*region, error) {
	answers := step.Dst.Space == Inbox && step.Op == Copy && s.params.Memory
	if o := step.Dst.Space; !answers && o != Out && o != Scratch && o != PeerOut {
		return nil, fmt.Errorf("writes to %v", o)
	}
	m, err := v.locate(s, step.Dst, step.Bytes)
	if err == nil && answers {
		err = v.notShared(s, step.Dst)
	}
	return m, err
}

// notShared refuses to write to a message in the inbox that other ranks read too.
func (v *verifier) notShared(s *rankState, ref Ref) error {
	if v.in(s.rank, ref.Peer).of.fate(ref.Block) == shared {
		return fmt.Errorf("writes to %v, which others read", ref)
	}
	return nil
}

// locate finds the memory of a place, and refuses one that the rank does not have.
func (v *verifier) locate(s *rankState, ref Ref, bytes int64) (*region, error) {
	var m *region
	switch {
	case ref.Space == In && ref.Block >= 0 && int(ref.Block) < len(s.in):
		m = s.in[ref.Block]
	case ref.Space == Out && ref.Block >= 0 && int(ref.Block) < len(s.out):
		m = s.out[ref.Block]
	case ref.Space == Scratch && ref.Block == 0:
		m = s.scratch
	case ref.Space == Inbox && v.isPeer(s.rank, ref.Peer):
		g := v.in(s.rank, ref.Peer)
		if ref.Block < g.released || ref.Block >= g.waited {
			return nil, fmt.Errorf("%v is read before its wait or after its release", ref)
		}
		m = &g.of.at(ref.Block).data
	case ref.Space == Outbox && v.isPeer(s.rank, ref.Peer):
		g := v.out(s.rank, ref.Peer)
		if g.of.fate(ref.Block) != reclaimed || int(g.put-ref.Block) > s.params.Slots {
			return nil, fmt.Errorf(
				"%v is read before it is reclaimed or when its slot is another's", ref)
		}
		m = &g.of.at(ref.Block).data
	case ref.Space.exposed() && v.isPeer(s.rank, ref.Peer) && ref.Block == 0:
		if m = v.in(s.rank, ref.Peer).of.exposure.use(ref, bytes); m == nil {
			return nil, fmt.Errorf(
				"%v and %d bytes on is used before its access, or is not exposed", ref, bytes)
		}
	default:
		return nil, fmt.Errorf("this rank has no %v", ref)
	}
	if ref.Off < 0 || ref.Off > m.bytes-bytes {
		return nil, fmt.Errorf("%v and %d bytes on is out of bounds: there are %d",
			ref, bytes, m.bytes)
	}
	return m, nil
}
