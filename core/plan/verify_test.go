package plan

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func clone(plans []*Plan) []*Plan {
	c := make([]*Plan, len(plans))
	for r, p := range plans {
		q := *p
		q.Steps = slices.Clone(p.Steps)
		for i := range q.Steps {
			q.Steps[i].Src = slices.Clone(q.Steps[i].Src)
			q.Steps[i].Also = slices.Clone(q.Steps[i].Also)
		}
		c[r] = &q
	}
	return c
}

// mutationJobs is one job an algorithm, each of several rounds.
func mutationJobs() []job {
	big := Thresholds{PipelineMin: 64 << 10}
	got := Thresholds{GetMin: 100}
	cast := Thresholds{MulticastMin: 100}
	swapped := Thresholds{SwapMin: 100}
	return []job{
		{Params{Collective: AllReduce, Algorithm: OneShot, Thresholds: big}, []int64{100, 3}},
		{Params{Collective: AllReduce}, []int64{300}},
		{Params{Collective: AllReduce, Memory: true}, []int64{300}},
		{Params{Collective: Reduce, Algorithm: Flat, Root: 1, Thresholds: big}, []int64{50}},
		{Params{Collective: Reduce, Root: 1}, []int64{300}},
		{Params{Collective: Reduce, Root: 1, Memory: true}, []int64{300}},
		{Params{Collective: Broadcast, Algorithm: Flat, Root: 1, Thresholds: big}, []int64{50}},
		{Params{Collective: Broadcast, Root: 1}, []int64{300}},
		{Params{Collective: Broadcast, Root: 1, Memory: true, Thresholds: cast}, []int64{300}},
		{Params{Collective: AllGather}, []int64{50, 20, 33}},
		// of each kind
		{Params{Collective: AllGather, Memory: true, Thresholds: cast}, []int64{50, 20, 33}},
		{Params{Collective: ReduceScatter}, []int64{50, 20, 33}},
		{Params{Collective: AllGather, Memory: true, Thresholds: swapped}, []int64{50, 50, 33}},
		{Params{Collective: ReduceScatter, Size: 2, Memory: true, Thresholds: swapped}, []int64{70, 70}},
		{Params{Collective: AllToAll, Memory: true, Thresholds: swapped}, []int64{50, 70, 33}},
		{Params{Collective: Gather, Root: 2}, []int64{50, 20, 33}},
		{Params{Collective: Scatter, Root: 2}, []int64{50, 20, 33}},
		{Params{Collective: AllToAll}, []int64{50, 20, 33}},
		{Params{Collective: AllToAll, Schedule: Sequential}, []int64{50, 20, 33}},
		{Params{Collective: AllToAll, Schedule: 2}, []int64{50, 20, 33}},
		{Params{Collective: Barrier}, nil},
		{Params{Collective: AllReduce, Chunk: 128, Memory: true, Algorithm: Direct}, []int64{300}},
		{Params{Collective: AllGather, Memory: true, Algorithm: Direct}, []int64{50, 20, 33}},
		{Params{Collective: ReduceScatter, Memory: true, Algorithm: Direct}, []int64{50, 20, 33}},
		{Params{Collective: AllToAll, Memory: true, Algorithm: Direct}, []int64{50, 20, 33}},
		{Params{Collective: Reduce, Root: 1, Chunk: 128, Memory: true, Algorithm: Direct}, []int64{300}},
		{Params{Collective: Broadcast, Root: 1, Chunk: 128, Memory: true, Algorithm: Direct},
			[]int64{300}},
		{Params{Collective: AllReduce, Size: 4, Radices: []int{2, 2}}, []int64{100}},
		{Params{Collective: AllReduce, Algorithm: RecursiveMultiplying, Size: 7, Radices: []int{4, 2}},
			[]int64{20}},
		{Params{Collective: AllReduce, Size: 3, Radices: []int{2, 2}}, []int64{100}},
		{Params{Collective: ReduceScatter, Size: 5, Radices: []int{2, 2, 2}}, []int64{20, 7, 0, 8, 10}},
		{Params{Collective: AllGather, Size: 5, Radices: []int{2, 2, 2}}, []int64{20, 7, 0, 8, 10}},
		{Params{Collective: Gather, Root: 2, Memory: true, Algorithm: Direct}, []int64{50, 20, 33}},
		{Params{Collective: Scatter, Root: 2, Memory: true, Algorithm: Direct}, []int64{50, 20, 33}},
		{Params{Collective: AllToAll, Memory: true, Thresholds: got}, []int64{50, 20, 33}},
		{Params{Collective: Scatter, Root: 2, Memory: true, Thresholds: got}, []int64{50, 20, 33}},
	}
}

func (j job) with(size int) job {
	j.Size, j.ElemSize, j.Chunk, j.Slots = size, 4, cmp.Or(j.Chunk, 64), 4
	return j
}

// each calls f for every step of every rank, with a copy of the plans that f may break.
func each(plans []*Plan, f func(broken []*Plan, rank, step int)) {
	for r, p := range plans {
		for i := range p.Steps {
			f(clone(plans), r, i)
		}
	}
}

func mustReject(t *testing.T, j job, plans []*Plan, params []Params, r, i int, what string) {
	t.Helper()
	if Verify(plans, params, false) == nil {
		t.Errorf("%v: accepted with %s at rank %d step %d\n%v", j, what, r, i, plans[r])
	}
}

// TestMutations breaks plans in every place, each time in one, which the verifier must see.
func TestMutations(t *testing.T) {
	for _, j := range mutationJobs() {
		j := j.with(cmp.Or(j.Size, 3))
		plans, params := j.build(t)
		if err := Verify(clone(plans), params, false); err != nil {
			t.Fatal(err)
		}
		try := func(what string, change func(p *Plan, i int) bool) {
			each(plans, func(broken []*Plan, r, i int) {
				if change(broken[r], i) {
					mustReject(t, j, broken, params, r, i, what)
				}
			})
		}
		try("a dropped step", func(p *Plan, i int) bool {
			p.Steps = slices.Delete(p.Steps, i, i+1)
			return true
		})
		try("a doubled put, wait or release", func(p *Plan, i int) bool {
			p.Steps = slices.Insert(p.Steps, i, p.Steps[i])
			op := p.Steps[i].Op
			return op == Put || op == Wait || op == Release || op == Offer || op == PutToAll
		})
		try("another kind of message", func(p *Plan, i int) bool {
			p.Steps[i].Multicast = !p.Steps[i].Multicast
			return p.Steps[i].Op == Wait
		})
		try("other bytes", func(p *Plan, i int) bool {
			p.Steps[i].Bytes -= 4
			return p.Steps[i].Op != Release
		})
		try("another total", func(p *Plan, i int) bool {
			p.Steps[i].Total++
			return p.Steps[i].Op == Put || p.Steps[i].Op == Wait || p.Steps[i].Op == Offer
		})
		try("a shifted source", func(p *Plan, i int) bool {
			for k := range p.Steps[i].Src {
				p.Steps[i].Src[k].Off += 4
			}
			return len(p.Steps[i].Src) > 0
		})
		try("a shifted destination", func(p *Plan, i int) bool {
			p.Steps[i].Dst.Off += 4
			return p.Steps[i].Dst.Space == Out
		})
		try("another peer", func(p *Plan, i int) bool {
			s := &p.Steps[i]
			if s.Peer = (s.Peer + 1) % int32(p.Size); int(s.Peer) == p.Rank {
				s.Peer = (s.Peer + 1) % int32(p.Size)
			}
			return p.Size > 2 && (s.Op == Put || s.Op == Wait || s.Op == Release || s.Op == Reclaim ||
				s.Op == Offer || s.Op == Get)
		})
		try("swapped messages", func(p *Plan, i int) bool {
			s := &p.Steps[i]
			for k := i + 1; k < len(p.Steps) && s.Op == Put && s.Bytes > 0; k++ {
				if q := &p.Steps[k]; q.Op == Put && q.Peer == s.Peer && q.Bytes > 0 && q.Src[0] != s.Src[0] {
					s.Src, q.Src = q.Src, s.Src
					s.Bytes, q.Bytes = q.Bytes, s.Bytes
					return true
				}
			}
			return false
		})
		combine := func(what string, change func(s *Step)) {
			try(what, func(p *Plan, i int) bool {
				if p.Steps[i].Op != Combine {
					return false
				}
				change(&p.Steps[i])
				return true
			})
		}
		combine("a wrong order", func(s *Step) { s.Src[0], s.Src[1] = s.Src[1], s.Src[0] })
		combine("a doubled rank", func(s *Step) { s.Src[len(s.Src)-1] = s.Src[len(s.Src)-2] })
		combine("a missing rank", func(s *Step) { s.Src = s.Src[:len(s.Src)-1] })
		combine("a rank too many", func(s *Step) { s.Src = append(s.Src, s.Src[0]) })
		try("a read after release", func(p *Plan, i int) bool {
			s := p.Steps[i]
			if s.Op != Release || i == 0 || len(p.Steps[i-1].Src) == 0 || p.Steps[i-1].Op == Put {
				return false
			}
			p.Steps[i-1], p.Steps[i] = s, p.Steps[i-1]
			return true
		})
		try("a read before wait", func(p *Plan, i int) bool {
			if i+1 == len(p.Steps) || p.Steps[i].Op != Wait || p.Steps[i].Bytes == 0 {
				return false
			}
			for k := i + 1; k < len(p.Steps); k++ {
				if len(p.Steps[k].Src) > 0 && p.Steps[k].Op != Put {
					w := p.Steps[i]
					p.Steps = slices.Insert(p.Steps, k+1, w)
					p.Steps = slices.Delete(p.Steps, i, i+1)
					return true
				}
			}
			return false
		})
		try("a write to an input", func(p *Plan, i int) bool {
			p.Steps[i].Dst.Space = In
			return p.Steps[i].Op == Copy || p.Steps[i].Op == Combine
		})
		try("no source", func(p *Plan, i int) bool {
			had := len(p.Steps[i].Src) > 0
			p.Steps[i].Src = nil
			return had
		})
		for _, ref := range []Ref{{}, {Space: In, Block: 99}, {Space: Out, Block: -1},
			{Space: Scratch, Block: 1},
			{Space: Inbox, Peer: 99}, {Space: Inbox, Peer: 1, Block: 1 << 20}, {Space: In, Off: -4},
			{Space: Out, Off: 1 << 40}, {Space: 77}} {
			try("a source that is not there", func(p *Plan, i int) bool {
				if len(p.Steps[i].Src) == 0 {
					return false
				}
				p.Steps[i].Src[0] = ref
				return true
			})
			try("a destination that is not there", func(p *Plan, i int) bool {
				p.Steps[i].Dst = ref
				return p.Steps[i].Op == Copy || p.Steps[i].Op == Combine
			})
		}
		for _, peer := range []int32{-1, int32(j.Size)} {
			try("no such peer", func(p *Plan, i int) bool {
				p.Steps[i].Peer = peer
				return p.Steps[i].Op == Put || p.Steps[i].Op == Wait || p.Steps[i].Op == Release
			})
		}
		try("no such op", func(p *Plan, i int) bool { p.Steps[i].Op = 99; return true })
		also := func(what string, change func(s *Step)) {
			try(what, func(p *Plan, i int) bool {
				if len(p.Steps[i].Also) == 0 {
					return false
				}
				change(&p.Steps[i])
				return true
			})
		}
		also("a destination too few", func(s *Step) { s.Also = s.Also[1:] })
		also("a destination twice", func(s *Step) { s.Also[0] = s.Dst })
		also("a shifted further destination", func(s *Step) { s.Also[0].Off += 4 })
		also("a further destination in the input", func(s *Step) { s.Also[0] = Ref{Space: In} })
		try("another message reclaimed", func(p *Plan, i int) bool {
			if p.Steps[i].Op != Reclaim {
				return false
			}
			p.Steps[i].Src[0].Block++
			return true
		})
		try("a slot that is another's by then", func(p *Plan, i int) bool {
			// The copy of what was reclaimed is put off to the end.
			s := p.Steps[i]
			if s.Op != Copy || s.Src[0].Space != Outbox || i+2*j.Slots > len(p.Steps) {
				return false
			}
			puts := 0
			for _, q := range p.Steps[i:] {
				if q.Op == Put && q.Peer == s.Src[0].Peer {
					puts++
				}
			}
			p.Steps = append(slices.Delete(p.Steps, i, i+1), s)
			return puts >= j.Slots
		})
	}
}

// TestSchedules runs plans whose steps have changed places in random schedules, with all slots and
// with releases that become known late: what the verifier accepts must come out right in each, with
// no more under way than it has found.
func TestSchedules(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, j := range mutationJobs() {
		j := j.with(cmp.Or(j.Size, 4))
		if len(j.counts) == 3 {
			j.counts = append(j.counts, 41)
		}
		plans, params := j.build(t)
		accepted := 0
		for i := range 100 {
			broken := clone(plans)
			for range i % 4 {
				p := broken[rnd.IntN(j.Size)]
				k := rnd.IntN(len(p.Steps) - 1)
				p.Steps[k], p.Steps[k+1] = p.Steps[k+1], p.Steps[k]
			}
			if execute(t, j, broken, params, rnd) {
				accepted++
			}
		}
		if accepted < 25 || accepted == 100 {
			t.Errorf("%v: accepted %d of 100", j, accepted)
		}
	}
}

// execute runs plans if the verifier accepts them, and tells whether it does.
func execute(t *testing.T, j job, plans []*Plan, params []Params, rnd *rand.Rand) bool {
	t.Helper()
	peaks, err := PeaksOf(plans, params)
	if err != nil {
		return false
	}
	for range 3 {
		if fault := newExecutor(plans, params, rnd).run(peaks); fault != "" {
			t.Fatalf("%v: %s", j, fault)
		}
	}
	return true
}

func verifyError(t *testing.T, want string, plans []*Plan, params []Params, inPlace bool) {
	t.Helper()
	if err := Verify(plans, params, inPlace); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("want an error with %q, got %v", want, err)
	}
}

func TestDeadlock(t *testing.T) {
	// Everybody waits first.
	j := job{Params: Params{Collective: Barrier}}.with(4)
	plans, params := j.build(t)
	for _, p := range plans {
		p.Steps[0], p.Steps[1], p.Steps[2] = p.Steps[1], p.Steps[2], p.Steps[0]
	}
	verifyError(t, "deadlock: rank 0 in step 0 (wait 0 bytes from 3)", plans, params, false)

	// Plans for more slots than there are: the releases that may be unknown count.
	j = job{Params{Collective: AllReduce}, []int64{600}}.with(3)
	plans, params = j.build(t)
	for r := range params {
		params[r].Slots = 3
	}
	verifyError(t, "deadlock", plans, params, false)

	// One rank calls nothing.
	plans, params = j.build(t)
	plans[1].Steps = nil
	verifyError(t, "deadlock", plans, params, false)
}

func TestVerifyTells(t *testing.T) {
	// Splits that do not match.
	p := Params{Collective: AllToAll, Algorithm: Linear, Size: 2, ElemSize: 4, Chunk: 64, Slots: 2}
	p.InBytes, p.OutBytes = []int64{0, 128}, []int64{0, 0}
	q := p
	q.Rank, q.InBytes, q.OutBytes = 1, []int64{0, 0}, []int64{64, 0}
	a, err := Build(p)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Build(q)
	if err != nil {
		t.Fatal(err)
	}
	verifyError(t, "total 128; total 64 is waited for", []*Plan{a, b}, []Params{p, q}, false)

	// A plan that has overwritten in place what it still has to send.
	j := job{Params{Collective: AllReduce}, []int64{16}}.with(1)
	plans, params := j.build(t)
	plans[0].Steps = append(plans[0].Steps, plans[0].Steps[0])
	if err := Verify(plans, params, false); err != nil {
		t.Error(err)
	}
	verifyError(t, "source 0 must be", plans, params, true)

	// A copy onto part of itself.
	j = job{Params{Collective: AllGather}, []int64{16}}.with(1)
	plans, params = j.build(t)
	plans[0].Steps = append(plans[0].Steps,
		Step{Op: Copy, Bytes: 32, Dst: block(Out, 0).at(8), Src: []Ref{block(Out, 0)}})
	verifyError(t, "overlap", plans, params, false)

	// A split element, and a message too long.
	j = job{Params{Collective: AllReduce}, []int64{16}}.with(1)
	plans, params = j.build(t)
	half := plans[0].Steps[0]
	half.Bytes = 30
	plans[0].Steps = []Step{half}
	verifyError(t, "cuts elements", plans, params, false)
	j = job{Params{Collective: Broadcast, Algorithm: Flat}, []int64{64}}.with(2)
	plans, params = j.build(t)
	params[0].Chunk = 32
	verifyError(t, "at most 32 bytes", plans, params, false)

	// A root that does not wait for the others.
	plans, params = j.build(t)
	for _, p := range plans {
		p.Steps = slices.DeleteFunc(p.Steps, func(s Step) bool { return s.Bytes == 0 && s.Op != Release })
	}
	plans[0].Steps = plans[0].Steps[:4]
	verifyError(t, "has not heard from rank 1", plans, params, false)

	// What is shared can be combined, but nothing can be left in it.
	shared := job{Params{Collective: AllReduce, Memory: true,
		Thresholds: Thresholds{OneShotMax: 1 << 20}}, []int64{16}}.with(3)
	plans, params = shared.build(t)
	for _, p := range plans {
		share := Step{Op: PutToAll, Bytes: 64, Src: []Ref{block(In, 0)}}
		p.Steps = slices.Insert(slices.DeleteFunc(p.Steps,
			func(s Step) bool { return s.Op == Put }), 0, share)
		for i := range p.Steps {
			p.Steps[i].Multicast = p.Steps[i].Op == Wait
		}
	}
	if err := Verify(plans, params, false); err != nil {
		t.Error(err)
	}
	broken := clone(plans)
	broken[1].Steps = append(broken[1].Steps, Step{Op: Reclaim, Peer: 2,
		Src: []Ref{{Space: Outbox, Peer: 2}}})
	verifyError(t, "reclaims a message twice, or one that is multicast", broken, params, false)
	broken = clone(plans)
	for i := range broken[1].Steps {
		if s := &broken[1].Steps[i]; s.Op == Combine {
			s.Also = []Ref{{Space: Inbox, Peer: 2}}
		}
	}
	verifyError(t, "writes to inbox[2 #0]+0, which others read", broken, params, false)
	broken = clone(plans)
	for i := range broken[1].Steps {
		if s := &broken[1].Steps[i]; s.Op == Combine {
			s.Dst.Peer = 3 // an output belongs to no peer, so that means nothing
		}
	}
	if err := Verify(broken, params, false); err != nil {
		t.Error(err)
	}
	for r := range params {
		params[r].Memory = false
	}
	verifyError(t, "needs memory channels", plans, params, false)

	// Plans that do not belong together.
	plans, params = j.build(t)
	verifyError(t, "2 plans with 1", plans, params[:1], false)
	verifyError(t, "0 plans", nil, nil, false)
	verifyError(t, "plan 0 is of rank 1", []*Plan{plans[1], plans[0]}, params, false)
	plans[0].ScratchBytes = 65
	verifyError(t, "scratch", plans, params, false)
}

// TestRegion compares memory with a byte-by-byte model.
func TestRegion(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	const size = 40
	for range 200 {
		m := region{bytes: size}
		var model [size]*value
		for range 30 {
			off := rnd.Int64N(size)
			n := 1 + rnd.Int64N(size-off)
			val := value{rank: int32(rnd.IntN(2)), off: off + rnd.Int64N(2)}
			m.write(off, n, []segment{{0, n, val}})
			for i := range n {
				b := val.plus(i)
				model[off+i] = &b
			}
			for i := range m.segs[1:] {
				a, b := m.segs[i], m.segs[i+1]
				if a.end() > b.off || a.end() == b.off && a.val.plus(a.bytes) == b.val {
					t.Fatalf("not normal: %v", m.segs)
				}
			}
			for i := range int64(size) {
				got, err := m.read(i, 1, nil)
				if (err != nil) != (model[i] == nil) || err == nil &&
					(len(got) != 1 || got[0].val != *model[i]) {
					t.Fatalf("byte %d: %v, %v", i, got, err)
				}
			}
		}
	}
}
