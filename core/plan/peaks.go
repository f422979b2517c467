package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Peaks is the most that a rank has under way at once, however fast or slow each rank and each message is.
//
// A message is under way from when it may have been put until its receiver releases it; for who has put it, until that is known here by what
// has been heard since. Messages of zero bytes do not count: they hold nothing, and there is always a last one of which nobody hears.
type Peaks struct {
	Pairs    int   // peers with messages under way to them or from them
	Incast   int   // peers with messages under way from them
	Sent     int64 // bytes that the rank has put
	Received int64 // bytes put to it
	Staging  int64 // both at once, without long messages, which go straight to their places
}

// PeaksOf proves plans, as Verify does, and returns the peaks of each rank. Direct plans have none: they pass no data in messages.
func PeaksOf(plans []*Plan, params []Params) ([]Peaks, error) {
	v, err := prove(plans, params, false)
	if err != nil {
		return nil, err
	}
	all := make([]Peaks, v.size)
	for r := range all {
		all[r], _ = v.peaks(r)
	}
	return all, nil
}

// checkWindow refuses more under way than a rank's schedule allows.
func (v *verifier) checkWindow(r int) error {
	q := v.ranks[r].params
	if q == nil || q.Collective != AllToAll || q.Schedule.Window() == 0 {
		return nil
	}
	k := q.Schedule.Window()
	p, within := v.peaks(r)
	switch most := int64(k) * q.Chunk; {
	case !within:
		return errors.New("messages may be under way before the beginning or after the end")
	case p.Pairs > k:
		return fmt.Errorf("messages to or from %d peers may be under way at once, of a window of %d", p.Pairs, k)
	case p.Sent > most || p.Received > most:
		return fmt.Errorf("%d bytes to peers and %d from them may be under way at once, in a window of %d and chunks of %d", p.Sent, p.Received, k, q.Chunk)
	}
	return nil
}

// stretch is some of a rank's steps: from one up to before another.
type stretch struct{ from, to int32 }

// tally counts what is there at each of a rank's steps, the last entry that it leaves behind.
type tally []int64

func (t tally) add(s stretch, n int64) {
	t[s.from] += n
	t[s.to] -= n
}

func (t tally) addOnce(stretches []stretch) {
	slices.SortFunc(stretches, func(a, b stretch) int { return cmp.Compare(a.from, b.from) })
	end := int32(0)
	for _, s := range stretches {
		if s.from = max(s.from, end); s.from < s.to {
			t.add(s, 1)
			end = s.to
		}
	}
}

func (t tally) peak() (most int64) {
	n := int64(0)
	for _, d := range t {
		n += d
		most = max(most, n)
	}
	return most
}

// peaks also tells whether all of a rank's messages are under way within its plan only.
func (v *verifier) peaks(r int) (p Peaks, within bool) {
	steps := int32(len(v.ranks[r].plan.Steps))
	counts := make([]tally, 5)
	for i := range counts {
		counts[i] = make(tally, steps+2)
	}
	pairs, incast, sent, received, staging := counts[0], counts[1], counts[2], counts[3], counts[4]
	within = true
	staged := func(bytes int64) int64 {
		if bytes > v.ranks[r].params.Chunk { // a long message goes straight to its place
			return 0
		}
		return bytes
	}
	for peer := range v.size {
		var to, from []stretch
		for _, m := range v.ring(r, peer).left {
			if m.data.bytes > 0 {
				within = within && m.way.known < forever
				s := stretch{m.way.put, min(m.way.known, steps) + 1}
				to = append(to, s)
				sent.add(s, m.data.bytes)
				staging.add(s, staged(m.data.bytes))
			}
		}
		for _, m := range v.ring(peer, r).left {
			if m.data.bytes > 0 {
				within = within && m.way.early > 0
				s := stretch{m.way.early, m.way.released + 1}
				from = append(from, s)
				received.add(s, m.data.bytes)
				staging.add(s, staged(m.data.bytes))
			}
		}
		incast.addOnce(from)
		pairs.addOnce(append(to, from...))
	}
	return Peaks{Pairs: int(pairs.peak()), Incast: int(incast.peak()), Sent: sent.peak(), Received: received.peak(), Staging: staging.peak()}, within
}
