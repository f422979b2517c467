package plan

import (
	"fmt"
	"testing"
)

// A posted message may come at any time from Post.From on: no step from there to its Wait may use
// the destination, also where outputs are inputs, if they may be; and From must be as early as that
// allows.
func TestPosts(t *testing.T) {
	found := 0
	for _, size := range []int{2, 3, 5} {
		for c := range Barrier {
			for rank := range size {
				p := testParams(c, rank, size, 640)
				p.Chunk, p.Slots, p.Ahead = 128, 8, 2
				built, err := Build(p)
				if err != nil {
					t.Fatal(err)
				}
				for _, apart := range []bool{false, true} {
					posts := built.Posts(1, apart)
					found += len(posts)
					for _, q := range posts {
						wait, dst := built.Steps[q.Wait], built.Steps[q.Wait+1].Dst
						for i := q.From - 1; i < q.Wait; i++ {
							if i < 0 {
								continue
							}
							if used := overlaps(built.Steps[i], dst, wait.Bytes, apart); used != (i < q.From) {
								t.Fatalf("%v, rank %d of %d, apart %v: post of step %d from %d: step %d uses it: %v\n%s", c,
									rank, size, apart, q.Wait, q.From, i, used, built)
							}
						}
					}
				}
			}
		}
	}
	if found == 0 {
		t.Fatal("nothing was posted")
	}
	broadcast, err := Build(Params{Collective: Broadcast, Algorithm: Flat, Rank: 1, Size: 2,
		InBytes: []int64{256}, OutBytes: []int64{256}, ElemSize: 1, Chunk: 64, Slots: 4})
	if err != nil {
		t.Fatal(err)
	}
	if posts := broadcast.Posts(64, false); len(posts) != 4 || posts[3].From != 0 {
		t.Errorf("a leaf of a broadcast posts %v; all four messages may come from the start", posts)
	}
	if posts := broadcast.Posts(65, false); len(posts) != 0 {
		t.Errorf("short messages are posted: %v", posts)
	}
}

// overlaps is a second opinion on what a step uses: byte by byte.
func overlaps(s Step, dst Ref, bytes int64, apart bool) bool {
	type place struct {
		space Space
		block int32
		off   int64
	}
	of := func(r Ref, n int64) map[place]bool {
		m := map[place]bool{}
		for i := range n {
			switch r.Space {
			case In:
				m[place{In, 0, r.Off + i}] = true
			case Out:
				m[place{Out, r.Block, r.Off + i}] = true
			}
		}
		return m
	}
	used := map[place]bool{}
	if s.Op == Copy || s.Op == Combine {
		used = of(s.Dst, s.Bytes)
	}
	for _, r := range s.Src {
		for q := range of(r, s.Bytes) {
			used[q] = true
		}
	}
	for i := range bytes {
		if used[place{Out, dst.Block, dst.Off + i}] || !apart && used[place{In, 0, dst.Off + i}] {
			return true
		}
	}
	return false
}

func testParams(c Collective, rank, size int, bytes int64) Params {
	equal := func(n int) []int64 {
		b := make([]int64, n)
		for i := range b {
			b[i] = bytes
		}
		return b
	}
	usual := job{Params: Params{Collective: c, Size: size}}.algorithm()
	p := Params{Collective: c, Algorithm: usual, Rank: rank, Size: size, ElemSize: 4}
	switch c {
	case AllReduce, Reduce, Broadcast:
		p.InBytes, p.OutBytes = equal(1), equal(1)
	case AllGather, Gather:
		p.InBytes, p.OutBytes = equal(1), equal(size)
	case ReduceScatter, Scatter:
		p.InBytes, p.OutBytes = equal(size), equal(1)
	case AllToAll:
		p.InBytes, p.OutBytes = equal(size), equal(size)
	default:
		panic(fmt.Sprint(c))
	}
	return p
}
