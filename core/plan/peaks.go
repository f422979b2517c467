package plan

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Peaks is the most that a rank has under way at once, however fast or slow each rank and each
// message is.
//
// For its receiver a message is under way from when it may have been put until it is released. For
// its sender it is so until the sender has heard of the release. Messages of zero bytes do not
// count: they hold nothing, and there is always a last one of which nobody hears.
type Peaks struct {
	Pairs    int   // peers with messages under way to them or from them
	Incast   int   // peers with messages under way from them
	Sent     int64 // bytes that the rank has put
	Received int64 // bytes put to it
	Staging  int64 // both at once, without long messages, which go straight to their places
}

// PeaksOf proves plans, as Verify does, and returns the peaks of each rank. Direct plans have none:
// they pass no data in messages.
func PeaksOf(plans []*Plan, params []Params) ([]Peaks, error) {
	v, err := prove(plans, params, false, true)
	if err != nil {
		return nil, err
	}
	all := make([]Peaks, len(plans))
	for r := range all {
		all[r], _ = v.peaks(r)
	}
	return all, nil
}

// way is when a message was under way, in steps of its two ranks.
type way struct {
	bytes    int64
	early    int32 // as many steps had its receiver done when it was put, as the sender knew
	put      int32 // the sender's step
	released int32 // the receiver's
	known    int32 // the sender's, in which it learned of that; never: forever
}

const forever = math.MaxInt32

// checkWindow refuses more under way than a rank's schedule allows.
func (v *verifier) checkWindow(r int) error {
	q := v.states[r].params
	if q == nil || q.window() == 0 {
		return nil
	}
	k := q.window()
	p, within := v.peaks(r)
	switch most := int64(k) * q.Chunk; {
	case !within:
		return errors.New("messages may be under way before the beginning or after the end")
	case p.Pairs > k:
		return fmt.Errorf(
			"messages to or from %d peers may be under way at once, of a window of %d", p.Pairs, k)
	case p.Sent > most || p.Received > most:
		return fmt.Errorf("%d bytes to peers and %d from them may be under way at once, "+
			"in a window of %d and chunks of %d", p.Sent, p.Received, k, q.Chunk)
	}
	return nil
}

// window is how many peers the plan may exchange with at once by its schedule; 0: any number.
func (p *Params) window() int {
	if p.Collective != AllToAll {
		return 0
	}
	return p.Schedule.Window()
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
	pairs, incast, staging := make(tally, steps+2), make(tally, steps+2), make(tally, steps+2)
	sent, received := make(tally, steps+2), make(tally, steps+2)
	var to, from []stretch
	within = true
	staged := func(bytes int64) int64 {
		if bytes > v.states[r].params.Chunk { // a long message goes straight to its place
			return 0
		}
		return bytes
	}
	for _, peer := range v.ranks[r].peers {
		to, from = to[:0], from[:0]
		for _, w := range v.out(r, peer).of.ways {
			if w.bytes > 0 {
				within = within && w.known < forever
				s := stretch{w.put, min(w.known, steps) + 1}
				to = append(to, s)
				sent.add(s, w.bytes)
				staging.add(s, staged(w.bytes))
			}
		}
		for _, w := range v.in(r, peer).of.ways {
			if w.bytes > 0 {
				within = within && w.early > 0
				s := stretch{w.early, w.released + 1}
				from = append(from, s)
				received.add(s, w.bytes)
				staging.add(s, staged(w.bytes))
			}
		}
		incast.addOnce(from)
		to = append(to, from...)
		pairs.addOnce(to)
	}
	return Peaks{
		Pairs: int(pairs.peak()), Incast: int(incast.peak()),
		Sent: sent.peak(), Received: received.peak(), Staging: staging.peak(),
	}, within
}
