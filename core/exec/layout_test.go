package exec

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/plan"
)

// circle has a rank near to those beside it.
func circle(ranks int) func(rank int) []int {
	return func(rank int) []int {
		near := []int{(rank + 1) % ranks, (rank + ranks - 1) % ranks}
		slices.Sort(near)
		return near
	}
}

// What belongs to one rank of a region is nobody else's, and as large as its messages.
func TestPlacesDoNotOverlap(t *testing.T) {
	all := Layout{Ranks: 9, Lanes: 2, Slots: 3, Chunk: 64, Near: circle(9), NearChunk: 4096,
		LaterChunk: 192,
		Mailbox:    MailboxFor(256), Bounce: BounceFor(256), Pipe: 8 << 10}
	some, none := all, all
	some.Sharing = []int{1, 2, 5, 8}
	none.Near = nil
	for _, l := range []Layout{all, some, none} {
		for rank := range l.Ranks {
			if l.Sharing != nil && !l.shares(rank) {
				continue
			}
			t.Run(fmt.Sprintf("%v/%d", l.Sharing, rank), func(t *testing.T) {
				mapped, private := l.regions(rank)
				mine, links := l.Sharing, []int{}
				for peer := range l.Ranks {
					if l.Sharing == nil {
						mine = append(mine, peer)
					} else if !l.shares(peer) {
						links = append(links, peer)
					}
				}
				checkPlaces(t, &l, &mapped, rank, mine)
				checkPlaces(t, &l, &private, rank, links)
			})
		}
	}
}

// checkPlaces checks the places of some peers in a region of a rank.
func checkPlaces(t *testing.T, l *Layout, r *region, rank int, peers []int) {
	type place struct{ at, end int64 }
	var places []place
	add := func(at, bytes int64) { places = append(places, place{at, at + bytes}) }
	for lane := range r.lanes {
		add(r.bell(lane), bellSize)
		add(r.stage(lane), int64(r.Slots)*slotSize(l.chunk(lane)))
		for _, peer := range peers {
			at, stride := r.inbox(lane, peer)
			add(at, int64(r.Slots)*stride)
			add(r.released(lane, peer), lineBytes)
			want := slotSize(l.chunk(lane))
			if l.Near != nil && lane == 0 && slices.Contains(l.Near(rank), peer) {
				want = slotSize(l.NearChunk)
			}
			if stride != want {
				t.Errorf("lane %d, rank %d: slots of %d bytes, want %d", lane, peer, stride, want)
			}
		}
	}
	if r.mails() {
		add(r.door(), lineBytes)
		for _, peer := range peers {
			add(r.mailboxOf(peer), r.mailboxSize())
		}
	}
	slices.SortFunc(places, func(a, b place) int { return cmp.Compare(a.at, b.at) })
	end := int64(0)
	for _, p := range places {
		if p.at < end {
			t.Errorf("a place at %d, another one ends at %d", p.at, end)
		}
		end = p.end
	}
	if end > r.size() {
		t.Errorf("the last place ends at %d, the region at %d", end, r.size())
	}
}

// Ranks that are near exchange long messages, and all of them short ones, on the same channels.
func TestNearRanksExchangeLongMessages(t *testing.T) {
	const size, slots, chunk, nearChunk = 5, 2, 64, 1024
	lanes := meshOf(t, size, Layout{Ranks: size, Lanes: 1, Slots: slots, Chunk: chunk,
		Near: circle(size), NearChunk: nearChunk})
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 3 {
		plans, params := make([]*plan.Plan, size), make([]plan.Params, size)
		for rank := range size { // to the next one, from the one before, in messages of nearChunk
			to, from := (rank+1)%size, (rank+size-1)%size
			p := plan.Params{Collective: plan.AllToAll, Algorithm: plan.Linear, Rank: rank, Size: size,
				ElemSize: 1, Chunk: nearChunk, Slots: slots, Memory: true,
				InBytes: make([]int64, size), OutBytes: make([]int64, size)}
			p.InBytes[to], p.OutBytes[from] = 3000, 3000
			plans[rank], params[rank] = must(plan.Build(p)), p
		}
		carryBytes(t, lanes, plans, params, rnd)
		for rank := range size { // all to all, in messages of chunk
			p := plan.Params{Collective: plan.AllToAll, Algorithm: plan.Linear, Rank: rank, Size: size,
				ElemSize: 1, Chunk: chunk, Slots: slots, Memory: true}
			for range size {
				p.InBytes, p.OutBytes = append(p.InBytes, 300), append(p.OutBytes, 300)
			}
			plans[rank], params[rank] = must(plan.Build(p)), p
		}
		carryBytes(t, lanes, plans, params, rnd)
	}
}

// carryBytes runs plans of an all-to-all, and checks what has come.
func carryBytes(
	t *testing.T, lanes []*Lane, plans []*plan.Plan, params []plan.Params, rnd *rand.Rand,
) {
	t.Helper()
	bindings := carryAll(t, lanes, plans, params, rnd, func() {}, func(rank int, b *Binding) {
		for to, p := range b.In {
			for i, bytes := 0, unsafe.Slice((*byte)(p), params[rank].InBytes[to]); i < len(bytes); i++ {
				bytes[i] = byte(rank*31 + to*7 + i)
			}
		}
	})
	for rank, b := range bindings {
		for from, p := range b.Out {
			for i, got := range unsafe.Slice((*byte)(p), params[rank].OutBytes[from]) {
				if want := byte(from*31 + rank*7 + i); got != want {
					t.Fatalf("rank %d, byte %d from %d: %d, want %d", rank, i, from, got, want)
				}
			}
		}
	}
}

// Messages of links have an inbox for each peer, apart from the window: none of a peer that shares
// memory, and on no other lane than the first.
func TestInboxesOfLinks(t *testing.T) {
	l := Layout{Ranks: 4, Lanes: 2, Slots: 2, Chunk: 64, Near: circle(4), NearChunk: 256,
		Sharing: []int{0, 1}}
	w, err := NewWindow(l, 0, true, Waiting{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for peer, most := range map[int]int{2: 64, 3: 256} {
		w.ConnectPort(peer)
		lane := w.Lane(0)
		if _, _, err := lane.Slot(peer, 0, int(MessageHeader)+most+1); err == nil {
			t.Errorf("rank %d: a message longer than %d bytes fits", peer, most)
		}
		_, body, err := lane.Slot(peer, 0, int(MessageHeader)+most)
		if err != nil {
			t.Fatal(err)
		}
		from := uintptr(unsafe.Pointer(unsafe.SliceData(w.inboxes)))
		if at := uintptr(unsafe.Pointer(&body[0])) - from; at >= uintptr(len(w.inboxes)) {
			t.Errorf("rank %d: the message does not lie in the private inboxes", peer)
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(w.FD(), &st); err != nil {
		t.Fatal(err)
	}
	window, private := l.Size(0)
	if st.Size != window || int64(len(w.inboxes)) != private {
		t.Errorf("a window of %d bytes, and %d; want %d, %d", st.Size, len(w.inboxes), window, private)
	}
}
