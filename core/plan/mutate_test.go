package plan

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
)

// mutations each change something in a plan, at random.
var mutations = []func(rnd *rand.Rand, p *Plan, others []*Plan){
	func(rnd *rand.Rand, p *Plan, _ []*Plan) { // two steps change places
		i := rnd.IntN(len(p.Steps))
		k := min(len(p.Steps)-1, i+1+rnd.IntN(3))
		p.Steps[i], p.Steps[k] = p.Steps[k], p.Steps[i]
	},
	func(rnd *rand.Rand, p *Plan, _ []*Plan) { // a step moves to anywhere
		i := rnd.IntN(len(p.Steps))
		s := p.Steps[i]
		p.Steps = slices.Delete(p.Steps, i, i+1)
		p.Steps = slices.Insert(p.Steps, rnd.IntN(len(p.Steps)+1), s)
	},
	func(rnd *rand.Rand, p *Plan, _ []*Plan) { // some steps are left out
		i := rnd.IntN(len(p.Steps))
		p.Steps = slices.Delete(p.Steps, i, min(len(p.Steps), i+1+rnd.IntN(3)))
	},
	func(rnd *rand.Rand, p *Plan, others []*Plan) { // a step comes once more, or another rank's
		from := others[rnd.IntN(len(others))]
		if rnd.IntN(2) == 0 || len(from.Steps) == 0 {
			from = p
		}
		s := cloneStep(from.Steps[rnd.IntN(len(from.Steps))])
		p.Steps = slices.Insert(p.Steps, rnd.IntN(len(p.Steps)+1), s)
	},
	func(rnd *rand.Rand, p *Plan, _ []*Plan) { anyStep(rnd, p).Peer = anyPeer(rnd, p) },
	func(rnd *rand.Rand, p *Plan, _ []*Plan) { anyStep(rnd, p).Op = Op(rnd.IntN(12)) },
	func(rnd *rand.Rand, p *Plan, _ []*Plan) { anyStep(rnd, p).Stage = Stage(rnd.IntN(5)) },
	func(rnd *rand.Rand, p *Plan, _ []*Plan) {
		s := anyStep(rnd, p)
		s.Multicast = !s.Multicast
	},
	func(rnd *rand.Rand, p *Plan, _ []*Plan) {
		s := anyStep(rnd, p)
		s.Bytes = anyLength(rnd, s.Bytes)
	},
	func(rnd *rand.Rand, p *Plan, _ []*Plan) { anyStep(rnd, p).Total += int64(rnd.IntN(3) - 1) },
	func(rnd *rand.Rand, p *Plan, _ []*Plan) {
		s := anyStep(rnd, p)
		s.Dst = anyRef(rnd, p, s.Dst)
	},
	func(rnd *rand.Rand, p *Plan, _ []*Plan) {
		if s := anyStep(rnd, p); len(s.Src) > 0 {
			i := rnd.IntN(len(s.Src))
			s.Src[i] = anyRef(rnd, p, s.Src[i])
		}
	},
	func(rnd *rand.Rand, p *Plan, _ []*Plan) { // two sources change places
		if s := anyStep(rnd, p); len(s.Src) > 0 {
			i, k := rnd.IntN(len(s.Src)), rnd.IntN(len(s.Src))
			s.Src[i], s.Src[k] = s.Src[k], s.Src[i]
		}
	},
	func(rnd *rand.Rand, p *Plan, _ []*Plan) { // a source more or less
		s := anyStep(rnd, p)
		if len(s.Src) > 0 && rnd.IntN(2) == 0 {
			s.Src = s.Src[1:]
		} else {
			s.Src = append(s.Src, anyRef(rnd, p, s.Dst))
		}
	},
	func(rnd *rand.Rand, p *Plan, _ []*Plan) { // a further destination more or less
		s := anyStep(rnd, p)
		if len(s.Also) > 0 && rnd.IntN(2) == 0 {
			s.Also = s.Also[1:]
		} else {
			s.Also = append(s.Also, anyRef(rnd, p, s.Dst))
		}
	},
	func(rnd *rand.Rand, p *Plan, _ []*Plan) { p.ScratchBytes += int64(rnd.IntN(129) - 64) },
}

func cloneStep(s Step) Step {
	s.Src, s.Also = slices.Clone(s.Src), slices.Clone(s.Also)
	return s
}

func anyStep(rnd *rand.Rand, p *Plan) *Step { return &p.Steps[rnd.IntN(len(p.Steps))] }

func anyPeer(rnd *rand.Rand, p *Plan) int32 { return int32(rnd.IntN(p.Size+2) - 1) }

func anyLength(rnd *rand.Rand, n int64) int64 {
	return []int64{0, 4, 64, n - 4, n + 4, n / 2, -1, 1 << 62}[rnd.IntN(8)]
}

// anyRef is a place that differs from one in some respect, or that some other step uses.
func anyRef(rnd *rand.Rand, p *Plan, r Ref) Ref {
	switch rnd.IntN(6) {
	case 0:
		r.Space = Space(rnd.IntN(9))
	case 1:
		r.Peer = anyPeer(rnd, p)
	case 2:
		r.Block += int32(rnd.IntN(3) - 1)
	case 3:
		r.Off = anyLength(rnd, r.Off)
	case 4:
		r = anyStep(rnd, p).Dst
	default:
		if s := anyStep(rnd, p); len(s.Src) > 0 {
			r = s.Src[rnd.IntN(len(s.Src))]
		}
	}
	return r
}

// mutated is copies of plans with up to three mutations.
func mutated(rnd *rand.Rand, plans []*Plan) []*Plan {
	broken := clone(plans)
	for range 1 + rnd.IntN(3) {
		if p := broken[rnd.IntN(len(broken))]; len(p.Steps) > 1 {
			mutations[rnd.IntN(len(mutations))](rnd, p, broken)
		}
	}
	return broken
}

// TestRandomMutations changes plans at random. What the verifier does not refuse does no harm.
func TestRandomMutations(t *testing.T) {
	tokens := Thresholds{WindowMin: 1, Window: 1}
	jobs := append(mutationJobs(),
		job{Params{Collective: Send, Size: 2, Root: 1}, []int64{100}},
		job{Params{Collective: AllToAll, Long: 256, Thresholds: tokens}, []int64{99, 30, 17}}.inHosts(1),
		job{Params{Collective: Scatter, Algorithm: Windowed, Long: 256}, []int64{99, 30, 17}}.inHosts(1))
	for k, j := range jobs {
		rnd := rand.New(rand.NewPCG(uint64(k), 77))
		j := j.with(cmp.Or(j.Size, 3))
		plans, params := j.build(t)
		accepted, all := 0, 300
		for range all {
			if execute(t, j, mutated(rnd, plans), params, rnd) {
				accepted++
			}
		}
		if accepted < all/20 || accepted > all/2 {
			t.Errorf("%v: %d of %d accepted", j, accepted, all)
		}
	}
}
