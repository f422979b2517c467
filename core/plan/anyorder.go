package plan

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Where Params.AnyOrder is set, a partial sum may be over any ranks, in any order. The same set of
// ranks has the same number, so that equal partial sums have equal values. In a Custom collective,
// which promises nothing of its results, it is the list of what was combined that has a number.

// overSet is value.ranks of a partial sum over a set of ranks, whose number is value.rank.
const overSet = -1

// sets are sets of ranks, or lists of operands, by number.
type sets struct {
	numbers map[string]int32
	ranks   []set
}

// number is that of a set of ranks; made is the set if it is a new one.
func (s *sets) number(key []byte, made set) int32 {
	n, ok := s.numbers[string(key)]
	if !ok {
		if s.numbers == nil {
			s.numbers = map[string]int32{}
		}
		n = int32(len(s.ranks))
		s.numbers[string(key)] = n
		s.ranks = append(s.ranks, made)
	}
	return n
}

// inAnyOrder reads the sources of a Combine, and returns what comes of them. It asks of each
// whether it may be read.
func (v *verifier) inAnyOrder(s *rankState, step *Step, ask func(*region, Ref) error) (
	result value, err error) {
	var key []byte
	ranks := newSet(len(v.states))
	for i, ref := range step.Src {
		var src *region
		if v.segs, src, err = v.read(s, ref, step.Bytes, v.segs[:0]); err != nil {
			return result, err
		}
		if err := ask(src, ref); err != nil {
			return result, err
		}
		if s.params.Collective == Custom {
			if i == 0 {
				result.off = v.segs[0].val.off
			}
			for _, g := range v.segs {
				for _, n := range []int64{g.off, int64(g.val.rank), int64(g.val.ranks),
					int64(g.val.block), g.val.off - result.off} {
					key = binary.AppendVarint(key, n)
				}
			}
			key = binary.AppendVarint(key, -1)
			continue
		}
		got := v.segs[0].val
		if i == 0 {
			result.block, result.off = got.block, got.off
		}
		if got.reduced || len(v.segs) > 1 || got.block != result.block || got.off != result.off {
			return result, fmt.Errorf("source %d must be of byte %d of block %d; in %d runs, it "+
				"begins with %v", i, result.off, result.block, len(v.segs), got)
		}
		if s.params.staged() && (got.ranks != 0) != (step.Stage == Middle || step.Stage == Last) {
			return result, fmt.Errorf("source %d is %v, which is not for this stage", i, got)
		}
		if err := v.addRanks(ranks, got); err != nil {
			return result, fmt.Errorf("source %d: %w", i, err)
		}
	}
	if s.params.Collective == Custom {
		return value{rank: v.sets.number(key, nil), ranks: overSet, block: -1, off: result.off}, nil
	}
	return v.summed(s, step, ranks, result)
}

// addRanks adds those that a value is over to a set that has none of them.
func (v *verifier) addRanks(to set, of value) error {
	from := newSet(len(v.states))
	if of.ranks == overSet {
		from = v.sets.ranks[of.rank]
	} else {
		from.add(int(of.rank))
	}
	for i := range to {
		if to[i]&from[i] != 0 {
			return errors.New("has a rank's contribution that another source has, too")
		}
		to[i] |= from[i]
	}
	return nil
}

// summed is the value of a sum over some ranks.
func (v *verifier) summed(s *rankState, step *Step, ranks set, of value) (value, error) {
	count, key := 0, []byte(nil)
	for r := range v.states {
		if ranks.has(r) {
			count++
		}
	}
	for _, word := range ranks {
		key = binary.LittleEndian.AppendUint64(key, word)
	}
	whole := count == len(v.states)
	if s.params.staged() && whole != (step.Stage == Whole || step.Stage == Last) {
		return value{}, fmt.Errorf("combines %d of %d ranks, which is not for this stage", count,
			len(v.states))
	}
	if whole {
		return value{reduced: true, block: of.block, off: of.off}, nil
	}
	return value{rank: v.sets.number(key, ranks), ranks: overSet, block: of.block, off: of.off}, nil
}
