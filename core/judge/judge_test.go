package judge

import (
	"slices"
	"testing"
	"time"
)

const reduce, barrier = "allreduce(float32, 8 elements, SUM)", "barrier"

// in is a rank that is in a collective, and waits for a peer.
func in(rank int, sequence uint64, what string, long time.Duration, peer int) Rank {
	return Rank{Rank: rank, Call: Call{Sequence: sequence, What: what, For: long, Peer: peer}}
}

// after is a rank that is in none.
func after(rank int, sequence uint64, what string) Rank {
	return Rank{Rank: rank, Call: Call{Sequence: sequence, What: what, Ended: true, Peer: -1,
		For: time.Minute}}
}

// with is a rank that has called no collective, and has a message under way.
func with(rank int, long time.Duration, m Message) Rank {
	m.For = long
	return Rank{Rank: rank, Messages: []Message{m}, UnderWay: 1}
}

func TestGroup(t *testing.T) {
	long := 72*time.Second + 340*time.Millisecond
	late := in(1, 7, reduce, long, -1)
	late.Call.Input = true
	dead := after(0, 9, reduce)
	dead.Failed = "rank 2 has ended"
	for _, c := range []struct {
		name  string
		ranks []Rank
		kind  Kind
		about []int
		text  string
	}{
		{"idle", []Rank{after(0, 3, reduce), after(1, 3, reduce)}, Well, nil,
			"all is well: all at #3"},
		{"under way", []Rank{in(0, 4, reduce, time.Millisecond, 1), after(1, 3, reduce)}, Well, nil,
			"all is well: from #3 to #4"},
		{"nothing called", []Rank{{Rank: 0}, {Rank: 1}}, Well, nil, "all is well: all at #0"},
		{"one behind", []Rank{in(0, 7, reduce, long, 2), in(1, 7, reduce, long, 2),
			after(2, 6, barrier)}, Behind, []int{2},
			"rank 2 has last called #6 barrier; ranks 0-1 wait, for 1m12.3s by now, in #7 " + reduce},
		{"none called", []Rank{in(0, 1, reduce, long, 1), {Rank: 1}, {Rank: 2}}, Behind, []int{1, 2},
			"ranks 1-2 have called no collective yet; rank 0 waits, for 1m12.3s by now, in #1 " +
				reduce},
		{"stopped", []Rank{in(0, 7, reduce, long, 1), {Rank: 1, State: Stopped}}, Held, []int{1},
			"rank 1 is stopped, by a signal or a debugger; rank 0 waits, for 1m12.3s by now, in #7 " +
				reduce},
		{"silent", []Rank{after(0, 7, reduce), {Rank: 1, State: Silent}}, Held, []int{1},
			"rank 1 does not answer"},
		{"gone", []Rank{in(0, 7, reduce, long, 1), {Rank: 1, State: Gone}, {Rank: 2, State: Stopped}},
			Ended, []int{1}, "rank 1 has ended; rank 0 waits, for 1m12.3s by now, in #7 " + reduce},
		{"mismatch", []Rank{in(0, 7, reduce, long, 1), in(1, 7, barrier, long, 0),
			in(2, 7, reduce, long, 1)}, Mismatch, []int{1},
			"mismatch at #7: ranks 0,2 have called " + reduce + ", but rank 1 has called barrier"},
		{"device", []Rank{in(0, 7, reduce, long, 1), late}, Device, []int{1},
			"the input of rank 1 has not come from its device for 1m12.3s, in #7 " + reduce +
				"; rank 0 waits, for 1m12.3s by now, in #7 " + reduce},
		{"failed", []Rank{dead, after(1, 9, reduce)}, Failed, []int{0},
			"the group has failed on rank 0: rank 2 has ended"},
		{"slow", []Rank{in(0, 7, reduce, long, 2), in(1, 7, reduce, 2*time.Second, 2),
			in(2, 7, reduce, long, 3), in(3, 7, reduce, long, -1)}, Slow, []int{2},
			"most wait for rank 2, which itself waits for rank 3; ranks 0-1,3 wait, for 1m12.3s " +
				"by now, in #7 " + reduce},
		{"not asked", []Rank{in(0, 7, reduce, long, 1), {Rank: 1, State: Unreachable}}, Slow, []int{1},
			"most wait for rank 1, which could not be asked; rank 0 waits, for 1m12.3s by now, in #7 " +
				reduce},
		{"receive alone", []Rank{{Rank: 0}, with(1, long, Message{Peer: 0, Tag: 3, Bytes: 4096})}, Alone,
			[]int{1}, "rank 1 waits, for 1m12.3s by now, in recv from rank 0, tag 3, 4096 bytes: " +
				"rank 0 has called no send for it"},
		{"send alone", []Rank{with(0, long, Message{Send: true, Peer: 1, Tag: 3}),
			with(1, long/2, Message{Peer: 0, Tag: 4})}, Alone, []int{0},
			"rank 0 waits, for 1m12.3s by now, in send to rank 1, tag 3, 0 bytes: rank 1 has called no " +
				"receive for it"},
		{"receive from any", []Rank{with(0, long, Message{Peer: -1}), {Rank: 1}}, Alone, []int{0},
			"rank 0 waits, for 1m12.3s by now, in recv from any rank, tag 0, 0 bytes: no rank has called " +
				"a send for it"},
		{"a pair", []Rank{with(0, long, Message{Send: true, Peer: 1}),
			with(1, long, Message{Peer: 0})}, Well, nil, "all is well: all at #0"},
		{"any and one", []Rank{with(0, long, Message{Send: true, Peer: 1}),
			with(1, long, Message{Peer: -1})}, Well, nil, "all is well: all at #0"},
		{"not for long", []Rank{{Rank: 0}, with(1, time.Millisecond, Message{Peer: 0})}, Well, nil,
			"all is well: all at #0"},
		{"more than is told", []Rank{{Rank: 0, UnderWay: 1}, with(1, long, Message{Peer: 0})}, Well, nil,
			"all is well: all at #0"},
		{"other side not asked", []Rank{{Rank: 0, State: Unreachable},
			with(1, long, Message{Peer: 0})}, Well, nil,
			"all is well: all at #0; rank 0 could not be asked"},
		{"a collective says more", []Rank{in(0, 7, reduce, long, 1),
			with(1, long, Message{Peer: 0})}, Behind, []int{1}, "rank 1 has called no collective yet; " +
			"rank 0 waits, for 1m12.3s by now, in #7 " + reduce},
		{"some asked", []Rank{after(0, 7, reduce), {Rank: 1, State: Unreachable}}, Well, nil,
			"all is well: all at #7; rank 1 could not be asked"},
		{"nobody", []Rank{{Rank: 1, State: Unreachable}}, Unknown, []int{1},
			"rank 1 could not be asked"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := Group(c.ranks)
			if v.Kind != c.kind || !slices.Equal(v.Ranks, c.about) || v.Text != c.text {
				t.Errorf("%q of %v: %q\nwant %q of %v: %q", v.Kind, v.Ranks, v.Text, c.kind, c.about, c.text)
			}
		})
	}
}
