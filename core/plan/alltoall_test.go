package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestPartners(t *testing.T) {
	for size := 1; size <= 33; size++ {
		rounds := size - 1 + size%2
		met := map[[2]int]int{}
		for round := range rounds {
			rest := 0
			for rank := range size {
				p := partner(rank, size, round)
				switch {
				case p < 0 || p >= size || partner(p, size, round) != rank:
					t.Fatalf("%d ranks, round %d: %d's partner is %d", size, round, rank, p)
				case p == rank:
					rest++
				default:
					met[[2]int{rank, p}]++
				}
			}
			if rest != size%2 {
				t.Errorf("%d ranks, round %d: %d rest", size, round, rest)
			}
		}
		if len(met) != size*(size-1) {
			t.Errorf("%d ranks: %d of %d pairs have met", size, len(met)/2, size*(size-1)/2)
		}
	}
}

// TestWindows proves all-to-all in windows, which Verify holds to what their schedule promises.
func TestWindows(t *testing.T) {
	const chunk = 192
	sizes := []int{64}
	for p := 1; p <= 33; p++ {
		sizes = append(sizes, p)
	}
	for _, k := range []Schedule{Sequential, 2, 3, 7, LastWindow, BySize} {
		t.Run(k.String(), func(t *testing.T) {
			t.Parallel()
			p := newProver(t)
			for _, size := range sizes {
				if testing.Short() && size > 9 && size != 16 && size != 33 {
					continue
				}
				counts, slots := []int64{0, 1, 47, 48, 49, 200}, []int{2, 3, 4}
				if size > 9 {
					counts, slots = []int64{0, 7, 110}, []int{2 + size%3}
				}
				for _, n := range counts {
					for _, layout := range layouts(AllToAll, size, n) {
						for _, s := range slots {
							j := job{Params{Collective: AllToAll, Schedule: k, Size: size, ElemSize: 4, Chunk: chunk,
								Slots: s, Ahead: s - 1,
								Thresholds: Thresholds{WindowMin: 100, Window: (size % 7) * (size % 2)}}, layout}
							p.verify(j)
							j.Long = 2*chunk + 64
							p.verify(j.inHosts(1 + size%3))
						}
					}
				}
			}
		})
	}
}

// TestScatterByTokens proves scatter where each message is asked for.
func TestScatterByTokens(t *testing.T) {
	t.Parallel()
	p := newProver(t)
	for size := 1; size <= 33; size++ {
		for _, n := range []int64{0, 24, 25, 48, 49, 200} {
			for _, counts := range layouts(Scatter, size, n) {
				for _, slots := range []int{2, 4} {
					j := job{Params{Collective: Scatter, Algorithm: Windowed, Size: size, Root: size / 2,
						ElemSize: 4,
						Chunk:    192, Slots: slots}, counts}
					p.verify(j)
					j.Long = 448
					p.verify(j.inHosts(1 + size%3))
				}
			}
		}
	}
}

// TestLong gives the verifier plans with long messages that are not proved to have a place.
func TestLong(t *testing.T) {
	const chunk, long = 64, 256
	j := job{Params: Params{Collective: AllToAll, Long: long,
		Thresholds: Thresholds{WindowMin: 1, Window: 1}},
		counts: []int64{300, 120, 70, 299}}.with(4).inHosts(1)
	longest := func(plans []*Plan) (most int64) {
		for _, p := range plans {
			for _, s := range p.Steps {
				most = max(most, s.Bytes*int64(1-min(s.Op, 1)))
			}
		}
		return most
	}
	plans, params := j.build(t)
	if err := Verify(plans, params, false); err != nil {
		t.Fatal(err)
	}
	if n := longest(plans); n <= chunk || n > long {
		t.Fatalf("the longest message has %d bytes", n)
	}
	tooLong := "a message has at most 64 bytes"
	for what, change := range map[string]func(){
		"longer than they may be": func() { params[2].Long = long - 64 },
		"where memory is shared":  func() { params[2].Ports = nil },
		"without a token": func() {
			for _, p := range plans {
				p.dropTokens(func(n, all int) bool { return n == 0 })
			}
		},
		"used before it is there": func() { // its place is no more free when the token is put
			for _, p := range plans {
				i := slices.IndexFunc(p.Steps, func(s Step) bool { return s.Op == Wait && s.Bytes > chunk })
				p.Steps = slices.Insert(p.Steps, i, Step{Op: Copy, Bytes: 4, Dst: p.Steps[i+1].Dst,
					Src: []Ref{block(In, p.Rank)}})
			}
		},
	} {
		plans, params = j.build(t)
		change()
		if err := Verify(plans, params, false); err == nil || !strings.Contains(err.Error(), tooLong) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// What a sequential all-to-all needs is the same for any number of ranks and any size: a chunk that
// goes out and one that comes in.
func TestPeaks(t *testing.T) {
	const chunk = 192
	peaks := func(k Schedule, size int, n int64) Peaks {
		j := job{Params{Collective: AllToAll, Schedule: k, Size: size, ElemSize: 4, Chunk: chunk,
			Slots: 4}, slices.Repeat([]int64{n}, size)}
		plans, params := j.build(t)
		for from := range params { // equal blocks
			for to := range size {
				params[from].InBytes[to], params[from].OutBytes[to] = 4*n, 4*n
			}
			var err error
			if plans[from], err = Build(params[from]); err != nil {
				t.Fatal(err)
			}
		}
		all, err := PeaksOf(plans, params)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range all { // the ranks of a window are alike but where the last one is not full
			all[0].Pairs, all[0].Incast = max(all[0].Pairs, p.Pairs), max(all[0].Incast, p.Incast)
			all[0].Sent, all[0].Received = max(all[0].Sent, p.Sent), max(all[0].Received, p.Received)
			all[0].Staging = max(all[0].Staging, p.Staging)
		}
		return all[0]
	}
	for _, size := range []int{2, 3, 5, 8, 16, 33} {
		for _, n := range []int64{48, 96, 960} {
			for _, k := range []int{1, 2, 4} {
				w := min(k, size-1)
				want := Peaks{Pairs: w, Incast: w, Sent: int64(w) * chunk, Received: int64(w) * chunk,
					Staging: 2 * int64(w) * chunk}
				if got := peaks(Schedule(k), size, n); got != want {
					t.Errorf("%v, %d ranks, %d elements: %+v, want %+v", Schedule(k), size, n, got, want)
				}
			}
			p := peaks(Parallel, size, n)
			if messages := min(n*4/chunk, 4); p.Pairs != size-1 || p.Incast != size-1 ||
				p.Sent < int64(size-1)*chunk || p.Sent > int64(size-1)*messages*chunk {
				t.Errorf("parallel, %d ranks, %d elements: %+v", size, n, p)
			}
		}
	}
}

// TestWindowsAreProved gives the verifier plans that move the right data, but not in the window
// that they say.
func TestWindowsAreProved(t *testing.T) {
	j := job{Params{Collective: AllToAll, Schedule: Parallel}, []int64{50, 20, 33, 41}}.with(4)
	plans, params := j.build(t)
	claim := func(k Schedule) {
		for r := range params {
			params[r].Schedule = k
		}
	}
	claim(Sequential)
	verifyError(t, "messages may be under way before the beginning or after the end", plans, params,
		false)

	// Without the last tokens nobody knows that a pair is done.
	j.Schedule = 2
	plans, params = j.build(t)
	for _, p := range plans {
		p.dropTokens(func(n, all int) bool { return n == all-1 })
	}
	verifyError(t, "messages may be under way before the beginning or after the end", plans, params,
		false)

	// A window of two is none of one, and has more under way.
	plans, params = j.build(t)
	if err := Verify(plans, params, false); err != nil {
		t.Fatal(err)
	}
	claim(Sequential)
	verifyError(t, "2 peers may be under way at once, of a window of 1", plans, params, false)

	// All tokens but the first and the last are left out.
	j = job{Params{Collective: AllToAll, Schedule: Sequential}, []int64{96, 96}}.with(2)
	plans, params = j.build(t)
	for _, p := range plans {
		p.dropTokens(func(n, all int) bool { return n > 0 && n < all-1 })
	}
	verifyError(t, "256 bytes to peers", plans, params, false)
}

// dropTokens leaves out some of the messages of zero bytes, of each direction of a pair the n-th of
// all.
func (p *Plan) dropTokens(drop func(n, all int) bool) {
	type direction struct {
		op   Op
		peer int32
	}
	all, seen := map[direction]int{}, map[direction]int{}
	token := func(s *Step) bool { return (s.Op == Put || s.Op == Wait) && s.Bytes == 0 }
	for i := range p.Steps {
		if s := &p.Steps[i]; token(s) {
			all[direction{s.Op, s.Peer}]++
		}
	}
	dropped := map[int32]int32{} // waits, by peer
	var kept []Step
	for i := 0; i < len(p.Steps); i++ {
		s := p.Steps[i]
		if d := (direction{s.Op, s.Peer}); token(&s) {
			seen[d]++
			if drop(seen[d]-1, all[d]) {
				if s.Op == Wait {
					dropped[s.Peer]++
					i++ // its release
				}
				continue
			}
		}
		for k, ref := range s.Src {
			if ref.Space == Inbox {
				s.Src[k].Block -= dropped[ref.Peer]
			}
		}
		kept = append(kept, s)
	}
	p.Steps = kept
}

func TestParseSchedule(t *testing.T) {
	for text, want := range map[string]Schedule{"": BySize, "sequential": 1, "window=1": 1,
		"window=2": 2, "window=254": LastWindow, "parallel": Parallel} {
		got, err := ParseSchedule(text)
		if err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
		if again, err := ParseSchedule(got.String()); err != nil || again != got {
			t.Errorf("%q: %q is %v, %v", text, got, again, err)
		}
	}
	for _, text := range []string{"window", "window=", "window=0", "window=255", "window=-1",
		"window=1.5", "window=2 ", "Parallel", "1", " "} {
		if _, err := ParseSchedule(text); err == nil ||
			!strings.Contains(err.Error(), fmt.Sprintf("%q, allowed are", text)) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func BenchmarkVerifyWindows(b *testing.B) {
	const size = 64
	counts := slices.Repeat([]int64{200}, size)
	plans, params := job{Params{Collective: AllToAll, Schedule: Sequential},
		counts}.with(size).build(b)
	for b.Loop() {
		if err := Verify(plans, params, false); err != nil {
			b.Fatal(err)
		}
	}
}
