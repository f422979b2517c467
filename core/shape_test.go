package core

import (
	"maps"
	"slices"
	"testing"
	"unsafe"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/transport"
)

// Staging memory, inboxes and scratch of both lanes, mailboxes and eager sends that nobody has asked for, stays within
// what windowBudget, mailBudget and eagerBudget make together.
func TestStagingIsBounded(t *testing.T) {
	const promised = 17 << 20
	for size := 2; size <= 256; size++ {
		for _, at := range []site{{memory: true}, {ports: true, memory: true}, {ports: true}, {memory: true, crowded: true}} {
			s := newShape(size, at)
			if s.chunk == smallestChunk {
				continue // so many ranks that the smallest chunks need more
			}
			scratch := s.chunk
			perPeer := int64(s.slots) * s.chunk
			if at.memory {
				perPeer = lanes*perPeer + exec.MailboxFor(s.letter) + s.letter // in shuttles
			}
			_, eager := bufferClass(eagerBudget/8 + 1) // of eight sends
			stage := int64(0)                          // of collectives
			if at.memory && !at.ports && size > 2 {
				stage = int64(s.slots) * s.chunk
			}
			if held := int64(size-1)*perPeer + stage + scratch + int64(8*eager); held > promised {
				t.Errorf("%d ranks, %+v: %d bytes", size, at, held)
			}
		}
	}
}

// The plans of the shapes that are used, with the segments that they are cut into, are proved.
func TestShapesArePlanned(t *testing.T) {
	if testing.Short() {
		t.Skip("has no goroutines, for a sanitizer to watch, and long proofs")
	}
	for _, size := range []int{2, 3, 4, 8} {
		for _, at := range []site{{memory: true}, {ports: true, memory: true}, {ports: true}, {memory: true, crowded: true}, {ports: true, crowded: true}} {
			s := newShape(size, at)
			s.gets = s.memory
			if at.ports && !at.memory {
				s.ports = slices.Repeat([]bool{true}, size)
			}
			for _, n := range []uint64{0, 1, 70_000, 1 << 20, 40 << 20} {
				for c := plan.AllReduce; c < plan.Barrier; c++ {
					verifyShape(t, s, c, size, n)
				}
				for _, s.schedule = range []plan.Schedule{plan.Sequential, 3} {
					verifyShape(t, s, plan.AllToAll, size, n)
				}
				for s.group = 2; at.ports && s.group < size && size%s.group == 0; s.group *= 2 {
					for c := plan.AllReduce; c < plan.Barrier; c++ {
						if c.HasGroups() {
							verifyShape(t, s, c, size, n)
						}
					}
				}
				s.group = 0
			}
		}
	}
}

func verifyShape(t *testing.T, s shape, c plan.Collective, size int, n uint64) {
	t.Helper()
	var segments [][]segment
	for rank := range size {
		op := Operation{Collective: c, DType: reduce.Float32, InCounts: []uint64{n}, OutCounts: []uint64{n}}
		all := make([]uint64, size)
		for i := range all {
			all[i] = n
		}
		switch c {
		case plan.AllGather, plan.Gather:
			op.OutCounts = all
		case plan.ReduceScatter, plan.Scatter:
			op.InCounts = all
		case plan.AllToAll:
			op.InCounts, op.OutCounts = all, all
		}
		segments = append(segments, s.segments(&op, rank, size))
	}
	for i := range segments[0] {
		plans, params := make([]*plan.Plan, size), make([]plan.Params, size)
		for rank := range size {
			params[rank] = segments[rank][i].params
			p, err := plan.Build(params[rank])
			if err != nil {
				t.Fatal(err)
			}
			plans[rank] = p
		}
		if err := plan.Verify(plans, params, false); err != nil {
			t.Fatalf("%v, %d ranks, %d elements, segment %d: %v", c, size, n, i, err)
		}
	}
}

func TestStreams(t *testing.T) {
	large := []uint64{streamed}
	one, other := []unsafe.Pointer{unsafe.Pointer(new(int32))}, []unsafe.Pointer{unsafe.Pointer(new(int32))}
	for _, c := range []struct {
		name          string
		op            Operation
		free, crowded exec.Streams
	}{
		{"allgather", Operation{Collective: plan.AllGather, OutCounts: []uint64{streamed / 2, streamed / 2}}, exec.StreamAll, exec.StreamAll},
		{"small", Operation{Collective: plan.AllGather, OutCounts: []uint64{streamed / 2, streamed/2 - 1}}, exec.StreamNone, exec.StreamNone},
		{"broadcast", Operation{Collective: plan.Broadcast, OutCounts: large}, exec.StreamOwn, exec.StreamAll},
		{"scatter", Operation{Collective: plan.Scatter, OutCounts: large}, exec.StreamOwn, exec.StreamAll},
		{"in place", Operation{Collective: plan.AllReduce, In: one, Out: one, OutCounts: large}, exec.StreamNone, exec.StreamNone},
		{"out of place", Operation{Collective: plan.AllReduce, In: one, Out: other, OutCounts: large}, exec.StreamAll, exec.StreamAll},
	} {
		c.op.DType = reduce.Int8
		for _, crowded := range []bool{false, true} {
			want := c.free
			if crowded {
				want = c.crowded
			}
			if got := newShape(4, site{memory: true, crowded: crowded}).streams(&c.op); got != want {
				t.Errorf("%s, crowded %v: %d, want %d", c.name, crowded, got, want)
			}
		}
	}
}

const streamed = 16 << 20

func TestCrowdedHosts(t *testing.T) {
	at := func(host string, cpus int) transport.Address { return transport.Address{Host: host, CPUs: cpus} }
	for _, c := range []struct {
		addresses []transport.Address
		want      map[string]bool
	}{
		{[]transport.Address{at("a", 2), at("a", 2)}, map[string]bool{}},
		{[]transport.Address{at("a", 2), at("a", 1)}, map[string]bool{"a": true}}, // one has a quota of its own
		{[]transport.Address{at("a", 2), at("b", 1), at("a", 2), at("b", 1)}, map[string]bool{"b": true}},
	} {
		if got := crowdedHosts(c.addresses); !maps.Equal(got, c.want) {
			t.Errorf("%v: %v", c.addresses, got)
		}
	}
}

func TestGroupsOf(t *testing.T) {
	for hosts, want := range map[string]int{"ab": 0, "aabb": 2, "abab": 0, "aaaabbbb": 4, "aaabbb": 0, "aabbcc": 2, "aaaaaabbbbbb": 2, "aaaabb": 2, "aaab": 0,
		"aaaaaaaabbbb": 4, "aabba": 0, "aaaabbbbcccc": 4} {
		var addresses []transport.Address
		for _, host := range hosts {
			addresses = append(addresses, transport.Address{Host: string(host)})
		}
		if got := groupsOf(addresses); got != want {
			t.Errorf("%s: %d, not %d", hosts, got, want)
		}
	}
}

func TestBufferClasses(t *testing.T) {
	for n := uint64(0); n <= eagerBudget; n += 1 + n/64 {
		class, length := bufferClass(n)
		if length < n || length > max(n+n/8, 1) || class >= len(buffers{}) {
			t.Fatalf("%d bytes: class %d, %d bytes", n, class, length)
		}
		if same, as := bufferClass(length); same != class || as != length {
			t.Fatalf("%d bytes: class %d, but %d of the same length, %d", n, class, same, length)
		}
	}
}
