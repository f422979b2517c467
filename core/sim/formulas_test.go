package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/tune"
)

// ends are when ranks have ended, in picoseconds.
func ends(s *simulation) (all []int64) {
	for r := range s.ranks {
		all = append(all, s.ranks[r].now)
	}
	return all
}

// Where nothing is shared times are sums: of a barrier by rounds, and of messages that a root sends
// one after the other.
func TestFormulas(t *testing.T) {
	for rounds := 1; rounds <= 6; rounds++ {
		n := 1 << rounds
		for _, perHost := range []int{n, 1} {
			s, r := group(t, tune.Question{Collective: "barrier", Ranks: n, PerHost: perHost, CPUs: n},
				"star:25g", "")
			k := s.Costs.Links.Memory
			if perHost == 1 {
				k = s.Costs.Between
			}
			want := micros(int64(rounds) * (k.Latency + 2*k.Overhead))
			if r.First != want || r.Last != want {
				t.Errorf("a barrier of %d ranks: %v to %v us, want %v", n, r.First, r.Last, want)
			}
		}
	}
	const n, block = 8, 64
	s, _ := group(t, tune.Question{Collective: "scatter", Ranks: n, PerHost: n, CPUs: n,
		Bytes: n * block}, "", "scatter:flat")
	k := s.Costs.Links.Memory
	end := k.Overhead + block*k.Gap/2 // of a message: the bytes cost as much at the other one
	for rank, got := range ends(s)[1:] {
		if want := int64(rank+1)*end + k.Latency + end; got != want {
			t.Errorf("scatter: rank %d ends at %d ps, want %d", rank+1, got, want)
		}
	}
	// As much as each link has to carry, and what comes before its first byte and after its last.
	const bytes, hosts = 1 << 20, 2
	s, r := group(t, tune.Question{Collective: "allgather", Ranks: hosts, PerHost: 1, CPUs: 1,
		Bytes: hosts * bytes}, "star:1g", "allgather:linear")
	wire := int64(bytes * 8000)
	chunk := wire / int64(r.Counts[0].Messages/hosts)
	if last := ends(s)[1]; last < wire || last > wire+chunk {
		t.Errorf("allgather: %d ps, want %d and less than a message of %d more", last, wire, chunk)
	}
}

// maxPlus runs ranks in any order, without events, which is right where each link has one user, and
// each rank a CPU: what a rank waits for has a time of its own.
func maxPlus(t *testing.T, s *simulation) []int64 {
	t.Helper()
	type pair struct {
		arrivals         []int64 // by message
		waited, released int
		known            []int64 // by message: when the sender knows that it was released
		exposed          []int64
		free             int64 // when the link is
	}
	pairs := make([]pair, len(s.rings))
	now, next := make([]int64, len(s.ranks)), make([]int, len(s.ranks))
	can := func(r int32, p *step) bool { // what p waits for has a time
		g := &pairs[max(p.ring, 0)]
		slot := func(ring int32) bool {
			g := &pairs[ring]
			m := len(g.arrivals) - s.Slots
			if m >= 0 && m < len(g.known) {
				now[r] = max(now[r], g.known[m])
			}
			return m < len(g.known)
		}
		ready := true
		switch p.op {
		case plan.Put, plan.Offer, plan.PutToAll:
			s.sends(r, p, func(ring int32) { ready = ready && slot(ring) })
		case plan.Wait:
			if ready = g.waited < len(g.arrivals); ready {
				now[r] = max(now[r], g.arrivals[g.waited])
			}
		case plan.Reclaim:
			if ready = int(p.number) < len(g.known); ready {
				now[r] = max(now[r], g.known[p.number])
			}
		case plan.Access:
			if ready = len(g.exposed) > 0; ready {
				now[r] = max(now[r], g.exposed[0])
			}
		}
		return ready
	}
	do := func(r int32, p *step) {
		now[r] += s.cost(r, p).sum()
		g := &pairs[max(p.ring, 0)]
		switch p.op {
		case plan.Wait:
			g.waited++
		case plan.Expose:
			g.exposed = append(g.exposed, now[r]+s.latency(r, p.peer))
		case plan.Release:
			if g.released++; !s.rings[p.ring].port || g.released%2 == 0 {
				for len(g.known) < g.released {
					g.known = append(g.known, now[r]+s.latency(r, p.peer))
				}
			}
		}
		s.sends(r, p, func(ring int32) {
			g, to := &pairs[ring], s.rings[ring].receiver
			at := now[r]
			if s.far(r, to) { // it has the links of both hosts for itself
				at = max(at, g.free) + p.bytes*s.Net.links[0].gap
				g.free = at
			}
			g.arrivals = append(g.arrivals, at+s.latency(r, to))
		})
	}
	for progress := true; progress; {
		progress = false
		for r := range s.ranks {
			for next[r] < len(s.ranks[r].steps) && can(int32(r), &s.ranks[r].steps[next[r]]) {
				do(int32(r), &s.ranks[r].steps[next[r]])
				next[r]++
				progress = true
			}
		}
	}
	for r := range next {
		if next[r] < len(s.ranks[r].steps) {
			t.Fatalf("rank %d waits before step %d", r, next[r])
		}
	}
	return now
}

// Events give the times that they must where their order does not count: between two hosts, and on
// one that has a CPU for each rank.
func TestEventsAreLikeMaxPlus(t *testing.T) {
	tried := 0
	for c := plan.AllReduce; c <= plan.Barrier; c++ {
		for _, a := range plan.Algorithms(c) {
			for _, group := range [][2]int{{2, 1}, {2, 2}, {5, 5}, {8, 8}, {12, 12}} {
				for _, bytes := range []uint64{4, 40 << 10, 12 << 20} {
					q := tune.Question{Collective: c.String(), Ranks: group[0], PerHost: group[1],
						CPUs: group[1], Bytes: bytes}
					name := fmt.Sprintf("%v:%v", c, a)
					if _, err := tune.NewGroup("simulate", q, tune.Options{Algorithms: name}); err != nil {
						continue // it does not fit the group
					}
					s, _ := groupWith(t, q, "star:1g", name, func(*Config) {})
					again, err := newSimulation(config(t, q, "star:1g", name))
					if err != nil {
						t.Fatal(err)
					}
					if want, got := maxPlus(t, again), ends(s); !slices.Equal(got, want) {
						t.Errorf("%s, %d ranks, %d bytes: %v, want %v", name, group[0], bytes, got, want)
					}
					tried++
				}
			}
		}
	}
	if tried < 200 {
		t.Errorf("only %d were tried", tried)
	}
}

// Of messages that come to a link at one time that of the lowest rank is first.
func TestTiesAreByRank(t *testing.T) {
	const hosts, bytes = 6, 4 << 10
	s, _ := group(t, tune.Question{Collective: "gather", Ranks: hosts, PerHost: 1, CPUs: 1,
		Bytes: hosts * bytes}, "star:1g", "gather:flat")
	for rank := int32(1); rank < hosts; rank++ {
		ring := &s.rings[s.ranks[rank].ringTo(0)]
		if got, want := ring.at(0).crossing.queued, int64(rank-1)*bytes*8000; got != want {
			t.Errorf("the message of rank %d waits %d ps, want %d", rank, got, want)
		}
	}
}

// A link carries what has come to it while what entered the network before is still on its way.
func TestIdleLinksAreUsed(t *testing.T) {
	c := config(t, tune.Question{Collective: "barrier", Ranks: 3, PerHost: 1, CPUs: 1}, "star:1g", "")
	const long, short = 1 << 20, 1 << 10
	steps := [][]plan.Step{
		{{Op: plan.Put, Peer: 2, Bytes: long}, {Op: plan.Put, Peer: 1, Bytes: short}},
		{{Op: plan.Wait, Peer: 2, Bytes: short}, {Op: plan.Wait, Peer: 0, Bytes: short}},
		{{Op: plan.Copy, Bytes: 4 * long}, {Op: plan.Put, Peer: 1, Bytes: short},
			{Op: plan.Wait, Peer: 0, Bytes: long}},
	}
	steps[2][0].Src = []plan.Ref{{Block: 1}} // it takes longer than rank 0 needs for both
	c.Plans = func(rank int) ([]*plan.Plan, error) {
		return []*plan.Plan{{Rank: rank, Size: 3, Steps: steps[rank]}}, nil
	}
	s, err := newSimulation(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.run(); err != nil {
		t.Fatal(err)
	}
	between := func(from, to int32) message { return *s.rings[s.ranks[from].ringTo(to)].at(0) }
	early, late := between(0, 1), between(2, 1)
	if early.sent >= late.sent || early.crossing.arrival <= late.crossing.arrival ||
		late.crossing.queued != 0 || early.crossing.queued <= long*8000/2 {
		t.Errorf("from rank 0 %+v, from rank 2 %+v", early, late)
	}
}

// What is alone has nothing to send.
func TestOneRank(t *testing.T) {
	for c := plan.AllReduce; c <= plan.Barrier; c++ {
		_, r := group(t, tune.Question{Collective: c.String(), Ranks: 1, PerHost: 1, CPUs: 1,
			Bytes: 1 << 20}, "", "")
		if r.Counts != nil || r.First != r.Last || r.Hops != 0 {
			t.Errorf("%v: %+v", c, r)
		}
	}
}

// Plans that are wrong are told of.
func TestPlansThatDoNotFit(t *testing.T) {
	for want, steps := range map[string][2][]plan.Step{
		"deadlock: rank 0 waits before step 0 of 1": {{{Op: plan.Wait, Peer: 1}}, nil},
		"deadlock: rank 1 waits before step 1 of 2": {{{Op: plan.Put, Peer: 1}},
			{{Op: plan.Wait, Peer: 0}, {Op: plan.Access, Peer: 0}}},
		"rank 0, step 0: there is no peer 2": {{{Op: plan.Wait, Peer: 2}}, nil},
	} {
		c := config(t, tune.Question{Collective: "barrier", Ranks: 2, PerHost: 2, CPUs: 2}, "", "")
		c.Plans = func(rank int) ([]*plan.Plan, error) {
			return []*plan.Plan{{Rank: rank, Size: 2, Steps: steps[rank]}}, nil
		}
		if _, err := Run(c); err == nil || err.Error() != want {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// What takes longer than can be told is refused, not wrapped around.
func TestTooLong(t *testing.T) {
	c := config(t, tune.Question{Collective: "broadcast", Ranks: 3, PerHost: 1, CPUs: 1,
		Bytes: 64 << 20}, "star:1m", "broadcast:flat")
	for i := range c.Net.links {
		c.Net.links[i].gap = 1 << 36
	}
	if _, err := Run(c); err == nil || !strings.Contains(err.Error(), "it takes more than 53 days") {
		t.Error(err)
	}
}

// A few results are known, so that a change of the model is seen.
func TestGolden(t *testing.T) {
	for _, c := range []struct {
		q    tune.Question
		net  string
		want string
	}{
		{tune.Question{Collective: "allreduce", Ranks: 16, PerHost: 4, CPUs: 4, Bytes: 1 << 20},
			"fat-tree:25g,leaf=2,taper=2",
			"783.706 796.581 829.599, 2, queue 528.185, copying 143.36, " +
				"reducing 58.982, overhead 46.1, latency 30, wire 22.972"},
		{tune.Question{Collective: "allreduce", Ranks: 16, PerHost: 8, CPUs: 3, Bytes: 4 << 10},
			"star:25g",
			"40.484 50.645 59.495, 2, turns 28.139, latency 15.25, overhead 9.4, " +
				"copying 2.458, reducing 2.048, wire 1.311, queue 0.89"},
		{tune.Question{Collective: "alltoall", Ranks: 32, PerHost: 8, CPUs: 8, Bytes: 1 << 20},
			"rail:4x25g",
			"1500.881 1829.472 2044.458, 1, queue 1804.403, copying 113.869, " +
				"overhead 100.7, latency 15, wire 10.486"},
		{tune.Question{Collective: "broadcast", Ranks: 33, PerHost: 4, CPUs: 4, Bytes: 4 << 20,
			RDMA: true}, "star:200g",
			"482.832 552.903 596.45, 3, copying 306.701, queue 253.357, overhead 24.1, " +
				"wire 6.292, latency 6"},
	} {
		_, r := group(t, c.q, c.net, "")
		got := fmt.Sprintf("%v %v %v, %d", r.First, r.Median, r.Last, r.Hops)
		for _, p := range r.Path {
			got += fmt.Sprintf(", %s %v", p.Cause, p.Micros)
		}
		if got != c.want {
			t.Errorf("%s of %d ranks over %s:\n%s\nwant\n%s", c.q.Collective, c.q.Ranks, c.net, got, c.want)
		}
	}
}
