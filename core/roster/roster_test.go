package roster

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/tune"
)

// at is the address of a process, which the letters name, on a host: "a1" is process 1 of host a.
func at(name string) address.Address {
	return address.Address{Process: address.ProcessID{name[0], name[1]}, PID: int(name[1] - '0'),
		Host: name[:1], Name: "node-" + name[:1], Unix: "@" + name,
		TCP: []string{"10.0.0.1:" + name[1:]}}
}

// join makes the peers of a rank, whose addresses stand in a text such as "a1 a2 b1".
func join(t *testing.T, text string, rank int, forced string) (Peers, error) {
	t.Helper()
	var addresses []address.Address
	for name := range strings.FieldsSeq(text) {
		addresses = append(addresses, at(name))
	}
	own, shared, hostOf, err := address.EncodeAll(addresses)
	if err != nil || len(shared) > len(own) {
		t.Fatal(err)
	}
	return Join(addresses, hostOf, rank, forced)
}

func TestJoin(t *testing.T) {
	for _, test := range []struct {
		of, forced string
		kinds      []string // that each rank finds
		problem    string   // or of each the error
	}{
		{"a1", "", []string{"self"}, ""},
		{"a1 a2", "", []string{"self shm", "shm self"}, ""},
		{"a1 a1", "", []string{"self mem", "mem self"}, ""},
		{"a1 b1", "", []string{"self tcp", "tcp self"}, ""},
		{"a1 a2", "tcp", []string{"self tcp", "tcp self"}, ""},
		// threads of one process, beside another of its host
		{"a1 a2 a1", "", []string{"self shm mem", "shm self shm", "mem shm self"}, ""},
		{"a1 a1 a2 b1 b2", "", []string{"self mem shm tcp tcp", "mem self shm tcp tcp",
			"shm shm self tcp tcp", "tcp tcp tcp self shm", "tcp tcp tcp shm self"}, ""},
		{"a1 b1", "shm", nil, "ranks 0 and 1 cannot be joined: "},
		{"a1 b1", "pigeons", nil, "ranks 0 and 1 cannot be joined: "},
		{"a1 a1", "tcp", nil, "ranks 0 and 1 cannot be joined: "},
	} {
		t.Run(test.of+"/"+test.forced, func(t *testing.T) {
			for rank := range len(strings.Fields(test.of)) {
				peers, err := join(t, test.of, rank, test.forced)
				if test.problem != "" {
					if err == nil || !strings.HasPrefix(err.Error(), test.problem) {
						t.Errorf("rank %d: %v, want %q", rank, err, test.problem)
					}
					continue
				}
				if err != nil {
					t.Fatalf("rank %d: %v", rank, err)
				}
				if got := strings.Join(peers.Kinds(), " "); got != test.kinds[rank] {
					t.Errorf("rank %d: %q, want %q", rank, got, test.kinds[rank])
				}
			}
		})
	}
}

// What is asked of the table of peers.
func TestPeers(t *testing.T) {
	for _, test := range []struct {
		of      string
		shares  bool
		sharing []int // of rank 0
		ports   []bool
		hosts   string
	}{
		{"a1", false, nil, []bool{false}, "a"},
		{"a1 a2", true, nil, []bool{false, false}, "aa"},
		{"a1 a1", true, nil, []bool{false, false}, "aa"},
		{"a1 b1", false, []int{0}, []bool{false, true}, "ab"},
		{"a1 b1 a2", true, []int{0, 2}, []bool{false, true, false}, "aba"},
	} {
		t.Run(test.of, func(t *testing.T) {
			peers, err := join(t, test.of, 0, "")
			if err != nil {
				t.Fatal(err)
			}
			r := New("g", 0, nil, peers)
			if got := peers.SharesMemory(); got != test.shares {
				t.Errorf("shares memory: %v", got)
			}
			if got := r.Sharing(); !slices.Equal(got, test.sharing) {
				t.Errorf("sharing: %v, want %v", got, test.sharing)
			}
			if got := peers.Ports(); !slices.Equal(got, test.ports) {
				t.Errorf("ports: %v, want %v", got, test.ports)
			}
			if got := strings.Join(peers.Hosts(), ""); got != test.hosts {
				t.Errorf("hosts: %q, want %q", got, test.hosts)
			}
			if peers.Has("verbs") || peers.Has("tcp") != slices.Contains(test.ports, true) {
				t.Errorf("it has kinds that it has not: %v", peers.Kinds())
			}
			if again := peers.Addresses(); len(again) != len(peers) || again[0].PID != 1 {
				t.Errorf("addresses: %+v", again)
			}
		})
	}
}

func TestPlaces(t *testing.T) {
	a := at("a1")
	a.CPUs, a.Domain, a.Verbs = 4, 9, "ib"
	for forced, want := range map[string]tune.Place{
		"":    {Host: "a", CPUs: 4, Domain: 9, Memory: "a", Fabric: "ib"},
		"tcp": {Host: "a", CPUs: 4, Domain: 9},
	} {
		if got := Alone(a).Places(forced); !reflect.DeepEqual(got, []tune.Place{want}) {
			t.Errorf("%q: %+v, want %+v", forced, got, want)
		}
	}
}

// Global ranks are told of a part wherever they may differ from its own numbers.
func TestPart(t *testing.T) {
	for _, test := range []struct {
		global, ranks, want []int
	}{
		{nil, []int{0, 1, 2}, []int{0, 1, 2}},
		{nil, []int{2, 0}, []int{2, 0}},
		{[]int{7, 8, 9}, []int{2, 1}, []int{9, 8}},
	} {
		peers, err := join(t, "a1 a2 b3", 0, "")
		if err != nil {
			t.Fatal(err)
		}
		r := New("g", 0, test.global, peers)
		got, part := r.Part(test.ranks)
		if !slices.Equal(got, test.want) {
			t.Errorf("%v of %v: %v", test.ranks, test.global, got)
		}
		for i, rank := range test.ranks {
			if !reflect.DeepEqual(part[i], peers[rank]) {
				t.Errorf("%v of %v: member %d is %+v", test.ranks, test.global, i, part[i])
			}
		}
	}
	peers, _ := join(t, "a1 a2", 1, "")
	r := New("g", 1, []int{4, 5}, peers)
	if text := r.Members.Names(1); text != "rank 1 (global rank 5, pid 2)" || r.Members.Name != "g" {
		t.Errorf("the name is %q", text)
	}
}

func TestNewcomers(t *testing.T) {
	r := Roster{Peers: make(Peers, 3)}
	for joined := range 4 {
		r.Joined = make([]membership.Joiner, joined)
		for rank := range 3 {
			if got := r.IsNewcomer(rank); got != (rank >= 3-joined) {
				t.Errorf("%d have joined, rank %d is one of them: %v", joined, rank, got)
			}
		}
	}
}

// What ranks tell of how they read memory, and which of them measures it. A row is what a rank
// reads: "x-" is rank 1 that reads rank 0, "-" being itself.
func TestReads(t *testing.T) {
	for _, test := range []struct {
		reads             []string
		measures          []int
		slow              int // a rank that finds reads slow where it measures; -1: none
		singleCopy, cheap bool
	}{
		{[]string{"-"}, nil, -1, true, true},
		{[]string{"-x", "x-"}, []int{1}, -1, true, true},
		{[]string{"-x", "x-"}, []int{1}, 1, true, false},
		{[]string{"-x", "x-"}, []int{1}, 0, true, true}, // which does not measure
		{[]string{"-.", ".-"}, nil, 1, false, true},     // nobody reads
		{[]string{"-x", ".-"}, nil, 1, false, true},     // one does
		{[]string{"-.", "x-"}, []int{1}, 1, false, false},
		{[]string{"-x.", "x-.", "..-"}, []int{1}, -1, false, true}, // on two hosts
		{[]string{"-x..", "x-..", "..-x", "..x-"}, []int{1, 3}, 1, false, false},
		{[]string{"-xx", "x-x", "xx-"}, []int{2}, 1, true, true},
	} {
		t.Run(fmt.Sprint(test.reads, " slow ", test.slow), func(t *testing.T) {
			var all []Roster
			var measures []int
			for rank, row := range test.reads {
				peers := make(Peers, len(row))
				for peer := range peers {
					peers[peer].Readable = row[peer] == 'x'
				}
				r := New("", rank, nil, peers)
				if r.Measures() {
					measures = append(measures, rank)
				}
				all = append(all, r)
			}
			if !slices.Equal(measures, test.measures) {
				t.Errorf("ranks %v measure, want %v", measures, test.measures)
			}
			for _, reads := range []tune.Reads{tune.SlowReads, tune.FastReads, tune.CheapReads} {
				unanimous, want := ^Answers(0), reads
				if test.cheap {
					want = tune.CheapReads
				}
				for rank := range all {
					found := tune.CheapReads
					if all[rank].Measures() && rank == test.slow {
						found = reads
					}
					unanimous &= all[rank].Answers(found)
				}
				for rank := range all {
					r := all[rank]
					if r.Agree(unanimous); r.SingleCopy != test.singleCopy || r.Reads != want {
						t.Errorf("rank %d: single copy %v, reads %v, want %v and %v", rank, r.SingleCopy,
							r.Reads, test.singleCopy, want)
					}
				}
			}
		})
	}
}
