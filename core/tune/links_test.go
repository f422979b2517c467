package tune

import (
	"strings"
	"testing"

	"github.com/goccl/goccl/core/plan"
)

func TestSetLinks(t *testing.T) {
	for text, problem := range map[string]string{
		"":                                "",
		"memory=1:2:3":                    "",
		"tcp=15000:4000:320,verbs=0:0:0":  "",
		"loopback=10000000:10000000:9999": "",
		"shm=1:2:3":                       `"shm=1:2:3", allowed are memory, loopback, tcp and verbs`,
		"tcp=1:2":                         `"tcp=1:2", allowed are`,
		"tcp=1:2:3:4":                     `"tcp=1:2:3:4", allowed are`,
		"tcp":                             `"tcp", allowed are`,
		"tcp=1:2:3,":                      `"", allowed are`,
		"tcp=-1:2:3":                      `"tcp=-1:2:3", latency and overhead must be 0 to 10000000`,
		"tcp=10000001:2:3":                "must be 0 to 10000000 nanoseconds",
		"tcp=1:2:100001":                  "the gap 0 to 100000 picoseconds a byte",
		"tcp=1:2:0.5":                     "the gap 0 to",
	} {
		err := new(Links).Set(text)
		if (err == nil) != (problem == "") || err != nil && !strings.Contains(err.Error(), problem) {
			t.Errorf("%q: %v, want %q", text, err, problem)
		}
	}
	links := defaultLinks
	if err := links.Set("memory=1:2:3,verbs=4:5:6"); err != nil {
		t.Fatal(err)
	}
	want := defaultLinks
	want.Memory, want.Verbs = Link{1_000, 2_000, 3}, Link{4_000, 5_000, 6}
	if links != want {
		t.Errorf("%+v, want %+v", links, want)
	}
}

// Radices and algorithms follow what the links cost: what joins hosts, and what is set.
func TestChoicesFollowLinks(t *testing.T) {
	hosts := func(rdma bool) Topology {
		return Topology{Size: 16, Ports: true, MultiHost: true, RDMA: rdma}
	}
	choose := func(at Topology, links string, bytes uint64) plan.Algorithm {
		t.Helper()
		at.Sharing = 1
		s, err := New(at, 0, Options{LongMost: longMost, Links: links, Ports: make([]bool, at.Size)})
		if err != nil {
			t.Fatal(err)
		}
		op := operation(plan.AllReduce, at.Size, bytes/4)
		return s.Choose(&op)
	}
	for _, c := range []struct {
		at    Topology
		links string
		bytes uint64
		want  plan.Algorithm
	}{
		{hosts(false), "", 4, plan.RecursiveMultiplying},
		{hosts(true), "", 4, plan.RecursiveMultiplying},
		{hosts(false), "tcp=1000000:1:1", 4, plan.OneShot}, // what is far takes long
		{hosts(false), "verbs=1000000:1:1", 4, plan.RecursiveMultiplying},
		{hosts(true), "verbs=1000000:1:1", 4, plan.OneShot},
		{hosts(true), "tcp=1000000:1:1", 4, plan.RecursiveMultiplying},
		{hosts(false), "", 256 << 10, plan.Hierarchical}, // messages cost more than by RDMA
		{hosts(true), "", 4 << 20, plan.TwoShot},
		{hosts(false), "", 4 << 20, plan.TwoShot},
		{hosts(false), "tcp=15000:100000:320", 4 << 20, plan.Hierarchical},
	} {
		if got := choose(c.at, c.links, c.bytes); got != c.want {
			t.Errorf("RDMA %v, %q, %d bytes: %v, want %v", c.at.RDMA, c.links, c.bytes, got, c.want)
		}
	}
	if _, err := New(hosts(false), 0, Options{Links: "net=1"}); err == nil {
		t.Error("a kind of links that is none is let through")
	}
}

// No estimate overflows, whatever is set, where many ranks move much.
func TestEstimatesDoNotOverflow(t *testing.T) {
	const slow = "memory=10000000:10000000:100000,tcp=10000000:10000000:100000"
	for _, at := range []Topology{{Memory: true}, {Ports: true, MultiHost: true},
		{Ports: true, Memory: true, MultiHost: true, Group: 1024}} {
		at.Size, at.Sharing = 65535, max(at.Group, 1)
		for _, links := range []string{"", slow} {
			s, err := New(at, 0, Options{Links: links, LongMost: longMost, Ports: make([]bool, at.Size)})
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range []plan.Collective{plan.AllReduce, plan.Reduce, plan.AllGather, plan.Gather} {
				for _, n := range []uint64{1, 1 << 30} {
					op := operation(c, at.Size, n)
					for _, e := range s.estimates(&op, s.byThresholds(&op)) {
						if e.cost <= 0 {
							t.Errorf("%+v, %v of %d elements by %v: %d", at, c, n, e.algorithm, e.cost)
						}
					}
				}
			}
		}
	}
}

// RDMA joins hosts whose ranks are all in one kind of network.
func TestSurveyFindsRDMA(t *testing.T) {
	for fabrics, want := range map[string]bool{"ee": true, "ei": false, "e ": false, "  ": false} {
		var places []Place
		for i, f := range fabrics {
			places = append(places, Place{Host: string(rune('a' + i)),
				Fabric: strings.TrimSpace(string(f))})
		}
		if got := Survey(places).RDMA; got != want {
			t.Errorf("%q: %v, want %v", fabrics, got, want)
		}
		places[1].Host = places[0].Host
		if Survey(places).RDMA {
			t.Errorf("%q: RDMA joins ranks of one host", fabrics)
		}
	}
}

// Two ranks are joined by what joins the smallest block that has both.
func TestLinkBetween(t *testing.T) {
	// Two hosts of four ranks, of two domains each; numbered in order, and by turns.
	at := func(host, domain int) Place {
		name := string(rune('a' + host))
		return Place{Host: name, CPUs: 4, Domain: domain + 1, Memory: name, Fabric: "e"}
	}
	for _, turns := range []bool{false, true} {
		var places []Place
		for i := range 8 {
			p := at(i/4, i/2%2)
			if turns {
				p = at(i%2, i/2/2)
			}
			places = append(places, p)
		}
		topology := Survey(places)
		topology.links = defaultLinks
		for a, p := range places {
			for b, q := range places {
				want := topology.linkAt(8)
				switch {
				case a == b:
					continue
				case p.Host == q.Host && p.Domain == q.Domain:
					want = domainLink
				case p.Host == q.Host:
					want = defaultLinks.Memory
				}
				if turns && p.Host != q.Host { // the hosts' ranks share what joins them to others
					want.Gap = defaultLinks.Verbs.Gap * 4
				}
				if got := topology.LinkBetween(a, b); got != want {
					t.Errorf("by turns %v, ranks %d and %d: %+v, want %+v", turns, a, b, got, want)
				}
			}
		}
	}
}
