package plan

import (
	"errors"
	"fmt"
	"slices"
)

// FeedGrain is the least number of bytes in which a feed counts; see Feed.
const FeedGrain = 512 << 10

// Feed returns the plan for a rank whose inputs come, and whose outputs are taken, piece by piece
// while it runs. It has two more kinds of steps, and the same messages:
//
//   - Need waits until some bytes of an input are there. It comes before the first step that reads
//     any of them; and before the first that writes there, or may have a peer write there, where an
//     output may be the same memory: what comes later would be written over it.
//   - Final tells that nothing writes to some bytes of an output any more.
//
// A block counts in sixteenths, but in no less than `grain` bytes and no more than 16 times that,
// so that a plan has few such steps. Apart tells that inputs and outputs share no memory. The plan
// must not be direct: there peers read and write blocks as they like.
func (p *Plan) Feed(q *Params, apart bool, grain int64) *Plan {
	f := feeder{params: q, apart: apart, grain: grain}
	f.space, f.in = q.source()
	f.out = q.target()
	f.layOut(p)
	fed := *p
	fed.Fed = true
	fed.Steps = make([]Step, 0, len(p.Steps)+len(p.Steps)/4)
	for i := 0; i < len(p.Steps); {
		next := p.undivided(i)
		for k := i; k < next; k++ {
			fed.Steps = f.needs(&p.Steps[k], fed.Steps)
		}
		fed.Steps = append(fed.Steps, p.Steps[i:next]...)
		fed.Steps = f.finals(next, fed.Steps)
		i = next
	}
	for i, n := range f.in { // what no step uses comes before the end, too
		fed.Steps = f.need(i, 0, n, fed.Steps)
	}
	fed.Steps = f.finals(0, fed.Steps) // what no step writes to
	return &fed
}

// undivided is the step after those, from step i on, that must follow one another: see Post.
func (p *Plan) undivided(i int) int {
	if p.Takes(i) {
		return i + 3
	}
	return i + 1
}

// feeder makes the steps of a feed.
type feeder struct {
	params  *Params
	apart   bool
	grain   int64
	space   Space // of inputs
	in, out []int64
	needed  [][]bool       // by input block and piece
	over    [][]blockPiece // by step, what nothing writes to after it
}

// blockPiece is a piece of a block, by number.
type blockPiece struct {
	block int
	piece int64
}

// source is the space of this rank's inputs, and their lengths; None: it has none.
func (q *Params) source() (Space, []int64) {
	root := q.Rank == q.Root
	switch q.Collective {
	case Barrier, Recv:
		return None, nil
	case Broadcast:
		if root {
			return Out, q.OutBytes
		}
		return None, nil
	case Scatter:
		if !root {
			return None, nil
		}
	}
	return In, q.InBytes
}

// target is the lengths of the blocks that this rank gets.
func (q *Params) target() []int64 {
	root := q.Rank == q.Root
	switch c := q.Collective; {
	case c == Barrier || c == Send || c == Broadcast && root,
		(c == Reduce || c == Gather) && !root:
		return nil
	}
	return q.OutBytes
}

// shares tells whether an input and an output block may be the same memory: see "In place".
func (q *Params) shares(in, out int) bool {
	root := q.Rank == q.Root
	switch q.Collective {
	case AllReduce:
		return in == out
	case Reduce:
		return root
	case AllGather:
		return out == q.Rank
	case Gather:
		return root && out == q.Rank
	case ReduceScatter:
		return in == q.Rank
	case Scatter:
		return root && in == q.Rank
	}
	return false
}

// piece is in how many bytes a block of a length counts.
func (f *feeder) piece(bytes int64) int64 {
	return min(max((bytes/16+63)/64*64, f.grain), 16*f.grain)
}

// pieces is how many pieces a block of a length has.
func (f *feeder) pieces(bytes int64) int64 { return (bytes + f.piece(bytes) - 1) / f.piece(bytes) }

// layOut finds when outputs are final.
func (f *feeder) layOut(p *Plan) {
	for _, n := range f.in {
		f.needed = append(f.needed, make([]bool, f.pieces(n)))
	}
	over := make([][]int, len(f.out)) // by output block and piece, the step after its last use
	for i, n := range f.out {
		over[i] = make([]int, f.pieces(n))
	}
	for i := 0; i < len(p.Steps); {
		next := p.undivided(i)
		for k := i; k < next; k++ {
			dst, n, ok := f.params.writes(&p.Steps[k])
			if !ok || n == 0 || int(dst.Block) >= len(f.out) {
				continue
			}
			piece := f.piece(f.out[dst.Block])
			for at := dst.Off / piece; at*piece < dst.Off+n; at++ {
				over[dst.Block][at] = next
			}
		}
		i = next
	}
	f.over = make([][]blockPiece, len(p.Steps)+1)
	for i, steps := range over {
		for k, step := range steps {
			f.over[step] = append(f.over[step], blockPiece{i, int64(k)})
		}
	}
}

// writes is the output that a step writes to, and how many bytes of it.
func (q *Params) writes(s *Step) (dst Ref, bytes int64, ok bool) {
	switch s.Op {
	case Copy, Get, Combine:
		bytes = s.Bytes
		if from, to, err := q.sizes(s.Stage); err == nil {
			bytes = bytes / from * to
		}
		return s.Dst, bytes, s.Dst.Space == Out
	}
	return Ref{}, 0, false
}

// needs appends what must be there before a step.
func (f *feeder) needs(s *Step, to []Step) []Step {
	for _, ref := range s.Src {
		switch {
		case ref.Space != f.space || int(ref.Block) >= len(f.in):
		case s.Op == Offer:
			to = f.need(int(ref.Block), 0, f.in[ref.Block], to)
		default:
			to = f.need(int(ref.Block), ref.Off, s.Bytes, to)
		}
	}
	if dst, n, ok := f.params.writes(s); ok && !f.apart {
		for i := range f.in {
			if f.params.shares(i, int(dst.Block)) {
				to = f.need(i, dst.Off, n, to)
			}
		}
	}
	return to
}

// need appends Needs of bytes of a block, as far as there have been none.
func (f *feeder) need(block int, off, bytes int64, to []Step) []Step {
	n := f.in[block]
	piece, needed := f.piece(n), f.needed[block]
	for first := off / piece; first*piece < min(off+bytes, n); first++ {
		end := first
		for end*piece < min(off+bytes, n) && !needed[end] {
			needed[end] = true
			end++
		}
		if end == first {
			continue
		}
		to = append(to, Step{Op: Need, Bytes: min(end*piece, n) - first*piece,
			Src: []Ref{{Space: f.space, Block: int32(block), Off: first * piece}}})
		first = end
	}
	return to
}

// finals appends what is final once so many steps are done, and was not before.
func (f *feeder) finals(done int, to []Step) []Step {
	over := f.over[done]
	for i := 0; i < len(over); {
		first := over[i]
		end := first
		for ; i < len(over) && over[i] == end; i++ {
			end.piece++
		}
		n := f.out[first.block]
		off := first.piece * f.piece(n)
		to = append(to, Step{Op: Final, Bytes: min(end.piece*f.piece(n), n) - off,
			Dst: Ref{Space: Out, Block: int32(first.block), Off: off}})
	}
	return to
}

// extent is a run of bytes of a block.
type extent struct{ off, end int64 }

func (a extent) meets(b extent) bool { return a.off < b.end && b.off < a.end }

// within tells whether an extent is a part of one of others.
func (a extent) within(all []extent) bool {
	return slices.ContainsFunc(all, func(b extent) bool { return b.off <= a.off && a.end <= b.end })
}

// without is extents but for the bytes of another one.
func without(all []extent, gone extent) (left []extent) {
	for _, a := range all {
		for _, part := range []extent{{a.off, min(a.end, gone.off)}, {max(a.off, gone.end), a.end}} {
			if part.off < part.end {
				left = append(left, part)
			}
		}
	}
	return left
}

// need proves a Need: the bytes come now. In place they would be written over what is there.
func (v *verifier) need(s *rankState, step *Step) error {
	if len(step.Src) != 1 {
		return fmt.Errorf("has %d sources", len(step.Src))
	}
	space, _ := s.params.source()
	ref := step.Src[0]
	m, err := v.locate(s, ref, step.Bytes)
	comes := extent{ref.Off, ref.Off + step.Bytes}
	switch {
	case err != nil:
		return err
	case ref.Space != space || step.Bytes <= 0 || !comes.within(m.late):
		return errors.New("needs what does not come, or is there")
	}
	m.late = without(m.late, comes)
	m.write(comes.off, step.Bytes, []segment{{0, step.Bytes,
		value{rank: int32(s.rank), block: ref.Block, off: comes.off}}})
	return nil
}

// final proves a Final.
func (v *verifier) final(s *rankState, step *Step) error {
	m, err := v.locate(s, step.Dst, step.Bytes)
	over := extent{step.Dst.Off, step.Dst.Off + step.Bytes}
	switch {
	case err != nil:
		return err
	case step.Dst.Space != Out || step.Bytes <= 0 || !over.within(m.open):
		return errors.New("ends what is no output of a feed, or is final")
	}
	m.open = without(m.open, over)
	return nil
}

// write has a step write to memory of its rank, or of a peer that exposes it.
func (v *verifier) write(s *rankState, m *region, off, n int64, segs []segment) error {
	to := extent{off, off + n}
	switch {
	case slices.ContainsFunc(m.late, to.meets):
		return errors.New("writes to where an input is yet to come")
	case m.fed && !to.within(m.open):
		return errors.New("writes to what is final")
	}
	m.write(off, n, segs)
	return v.touch(s, m, off, n, true)
}

// checkFed refuses what has not come of a rank's inputs at the end, and outputs not yet final.
func (v *verifier) checkFed(s *rankState) error {
	for i, m := range slices.Concat(s.in, s.out) {
		if len(m.late) > 0 || len(m.open) > 0 {
			return fmt.Errorf("of block %d are yet to come %v, and not final %v", i, m.late, m.open)
		}
	}
	return nil
}
