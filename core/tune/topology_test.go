package tune

import (
	"maps"
	"reflect"
	"strings"
	"testing"
)

func TestOversubscribed(t *testing.T) {
	bound := func(host string, cpus, set int) Place {
		return Place{Host: host, CPUs: cpus, CPUSet: set}
	}
	at := func(host string, cpus int) Place { return bound(host, cpus, 0) }
	for _, c := range []struct {
		places []Place
		want   map[string]bool
	}{
		{[]Place{at("a", 2), at("a", 2)}, map[string]bool{}},
		{[]Place{at("a", 2), at("a", 1)}, map[string]bool{"a": true}}, // one has a quota of its own
		{[]Place{at("a", 2), at("b", 1), at("a", 2), at("b", 1)}, map[string]bool{"b": true}},
		{[]Place{bound("a", 1, 1), bound("a", 1, 2)}, map[string]bool{}}, // each to a CPU of its own
		{[]Place{bound("a", 2, 1), bound("a", 2, 1), bound("a", 2, 2)}, map[string]bool{}},
		{[]Place{bound("a", 1, 1), bound("a", 1, 2), bound("a", 1, 2)}, map[string]bool{"a": true}},
		{[]Place{bound("a", 1, 1), bound("b", 1, 1)}, map[string]bool{}},
		{[]Place{bound("a", 1, 1), at("a", 8)}, map[string]bool{"a": true}}, // it may be the same CPU
	} {
		if got := Oversubscribed(c.places); !maps.Equal(got, c.want) {
			t.Errorf("%v: %v", c.places, got)
		}
	}
}

// Each letter is the host of a rank with two CPUs. Ranks of a host in lower case share memory.
func TestSurvey(t *testing.T) {
	for hosts, want := range map[string]Topology{
		"a":    {Memory: true},
		"aa":   {Memory: true},
		"aaa":  {Memory: true, Oversubscribed: true},
		"A":    {Memory: true},
		"AA":   {Ports: true},
		"AAA":  {Ports: true, Oversubscribed: true},
		"ab":   {Ports: true, MultiHost: true},
		"aAb":  {Ports: true, MultiHost: true},
		"aab":  {Ports: true, Memory: true, MultiHost: true, Group: 2},
		"aabb": {Ports: true, Memory: true, MultiHost: true, Group: 2},
		"AABB": {Ports: true, MultiHost: true, Group: 2},
		"abab": {Ports: true, Memory: true, MultiHost: true, Order: []int{0, 2, 1, 3},
			OrderGroup: 2},
		"abcbca": {Ports: true, Memory: true, MultiHost: true, Order: []int{0, 5, 1, 3, 2, 4},
			OrderGroup: 2},
		"aaaabbbb":     {Ports: true, Memory: true, MultiHost: true, Oversubscribed: true, Group: 4},
		"aaabbb":       {Ports: true, Memory: true, MultiHost: true, Oversubscribed: true},
		"aabbcc":       {Ports: true, Memory: true, MultiHost: true, Group: 2},
		"aaaaaabbbbbb": {Ports: true, Memory: true, MultiHost: true, Oversubscribed: true, Group: 2},
		"aaaabb":       {Ports: true, Memory: true, MultiHost: true, Oversubscribed: true, Group: 4},
		"aaab":         {Ports: true, Memory: true, MultiHost: true, Oversubscribed: true},
		"aabba":        {Ports: true, Memory: true, MultiHost: true, Oversubscribed: true, Group: 2},
	} {
		var places []Place
		for _, host := range hosts {
			p := Place{Host: string(host), CPUs: 2}
			if host >= 'a' {
				p.Memory = p.Host
			}
			places = append(places, p)
		}
		want.Size, want.Sharing = len(hosts), 1
		for host := 'a'; host <= 'z'; host++ {
			want.Sharing = max(want.Sharing, strings.Count(hosts, string(host)))
		}
		want.PerHost = map[string]int{"a": 1, "aa": 2, "aaa": 3, "A": 1, "AA": 2, "AAA": 3, "ab": 1,
			"aabb": 2, "AABB": 2, "aaaabbbb": 4, "aaabbb": 3, "aabbcc": 2, "aaaaaabbbbbb": 6,
			"aAb": 1}[hosts] // else ranks are not in order, or hosts have not as many each
		if got := Survey(places); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", hosts, got, want)
		}
	}
	for hosts, want := range map[string]int{"abab": 2, "aabb": 0, "abcabcabcabc": 4, "aabbaabb": 4,
		"ab": 0, "abaa": 0, "aaaa": 0} {
		var places []Place
		for _, host := range hosts {
			places = append(places, Place{Host: string(host)})
		}
		if got := Survey(places); got.OrderGroup != want || (got.Order != nil) != (want > 0) {
			t.Errorf("%s: %d in succession by %v, want %d", hosts, got.OrderGroup, got.Order, want)
		}
	}
	for at, want := range map[string]Topology{ // of hosts and domains
		"a1 a1 a2 a2":                   {Domain: 2},
		"a1 a1 a1 a1":                   {}, // the host is one
		"a0 a0 a0 a0":                   {}, // nothing is known
		"a0 a0 a1 a1":                   {}, // of two it is not
		"a1 a1 a2 a3":                   {},
		"a1 a1 a1 a1 a2 a2 a2 a2 a3 a3": {Domain: 4},
		"a1 a2 a1 a2":                   {Order: []int{0, 2, 1, 3}, OrderDomain: 2},
		"a1 a1 b1 b1":                   {Group: 2},
		"a1 b1 a2 b2":                   {Order: []int{0, 2, 1, 3}, OrderGroup: 2},
		"a1 a1 a2 a2 b1 b1 b2 b2":       {Group: 4, Domain: 2},
		"a1 a2 a1 a2 b1 b2 b1 b2": {Group: 4, Order: []int{0, 2, 1, 3, 4, 6, 5, 7}, OrderGroup: 4,
			OrderDomain: 2},
		"a1 b2 a1 b2 a2 b1 a2 b1": {Order: []int{0, 2, 4, 6, 1, 3, 5, 7}, OrderGroup: 4,
			OrderDomain: 2},
	} {
		var places []Place
		for rank := range strings.FieldsSeq(at) {
			places = append(places, Place{Host: rank[:1], Domain: int(rank[1] - '0')})
		}
		got := Survey(places)
		got = Topology{Group: got.Group, Domain: got.Domain, Order: got.Order,
			OrderGroup: got.OrderGroup, OrderDomain: got.OrderDomain}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", at, got, want)
		}
	}
}
