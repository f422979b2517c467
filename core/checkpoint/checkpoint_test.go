package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/goccl/goccl/core/fault"
)

func TestVersions(t *testing.T) {
	w := newWorld(t, "aabb")
	w.loads(0, "-", "-", "-", "-")
	w.makes(1, 1, 0, 1, 2, 3)
	w.makes(2, 1, 0, 1, 2, 3)
	w.loads(2, "0", "1", "2", "3")
	w = w.of(0, 1, 3)
	w.loads(2, "0 2", "1", "3")
	w.makes(3, 1, 0, 1, 2)
	w = w.of(0, 1)
	w.loads(3, "0 2", "1")
	w = w.of(1)
	w.loads(3, "1 0? 2?") // the first kept the third's, and the third the first's
	w.makes(4, 1, 1)
	w.loads(4, "1")
}

// Large models, of other sizes on each rank, go to one that joins; and without local ones.
func TestSizes(t *testing.T) {
	for _, sizes := range [][]int{{0, 300_000, 5}, {7, 0, 300_000}, {0, 0, 0}} {
		w := newWorld(t, "aaa")
		model := func(of, n int) []byte {
			b := make([]byte, n)
			for i := range b {
				b[i] = byte(i>>8 + i + of)
			}
			return b
		}
		w.each(func(rank int, m Members) error {
			return w.stores[rank].Make(context.Background(), m, model(9, 500_000),
				model(rank, sizes[rank]), 2)
		})
		w = w.of(0, 2)
		w.join("b")
		old := []int{0, 2, 1}
		w.each(func(rank int, m Members) error {
			got, err := w.stores[rank].Load(context.Background(), m)
			if err == nil && (got.Version != 1 || !bytes.Equal(got.Global, model(9, 500_000)) ||
				!bytes.Equal(got.Local, model(old[rank], sizes[old[rank]])) || got.Orphans != nil) {
				err = fmt.Errorf("version %d, %d and %d bytes", got.Version, len(got.Global), len(got.Local))
			}
			return err
		})
	}
}

// Shards of ranks that have ended go to those that join, as they come.
func TestShardsAreTaken(t *testing.T) {
	w := newWorld(t, "aaaa")
	w.makes(1, 1, 0, 1, 2, 3)
	w = w.of(1, 3)
	w.loads(1, "1 0", "3 2")
	w.join("a")
	w.loads(1, "1", "3 2", "0")
	w.join("a")
	w.loads(1, "1", "3", "0", "2")
	w.loads(1, "1", "3", "0", "2")
	w.join("a")
	w.loads(1, "1", "3", "0", "2", "-")

	// The rank that kept the model of the fourth has ended before: it is lost.
	w = w.of(0, 2, 3)
	w.loads(1, "1 3?", "0 3?", "2 3?")
	w.join("a")
	w.loads(1, "1 3?", "0 3?", "2 3?", "- 3?")
	w.makes(2, 1, 1, 0, 2, 3)
	w.loads(2, "1", "0", "2", "3")
}

// A local model is lost only if its rank and all that keep it have ended.
func TestReplicasOutlive(t *testing.T) {
	for _, c := range []struct {
		replicas int
		left     []int
		want     string // the local models of the two that are left and of two that join
	}{
		{2, []int{2, 3}, "2,3,0,1"}, // each was a keeper of the other's
		{2, []int{0, 2}, "0,2,1,3"},
		{9, []int{1, 3}, "1,3,0,2"},
		{1, []int{2, 3}, "2 0?,3 0?,- 0?,1 0?"},
		{0, []int{1, 3}, "1 0? 2?,3 0? 2?,- 0? 2?,- 0? 2?"},
	} {
		w := newWorld(t, "aaaa")
		w.makes(1, c.replicas, 0, 1, 2, 3)
		w = w.of(c.left...)
		w.join("aa")
		w.loads(1, strings.Split(c.want, ",")...)
		w.loads(1, strings.Split(c.want, ",")...)
	}
}

// clone is a store with the same versions.
func (s *Store) clone() *Store {
	c := &Store{id: s.id, belongs: s.belongs, committed: s.committed, staged: s.staged, epoch: s.epoch}
	c.number.Store(s.Version())
	return c
}

// Whichever of three ranks dies at whichever step of a version, and whichever others are through
// that step: those that are left load the same, whole, and no less than has been returned; and they
// go on. The same where the next of them dies while they load.
func TestDeaths(t *testing.T) {
	start := newWorld(t, "aba")
	start.makes(1, 1, 0, 1, 2)
	start.makes(2, 1, 0, 1, 2)
	steps, cases := start.calls, 0
	for rank := range 3 {
		left := slices.DeleteFunc([]int{0, 1, 2}, func(r int) bool { return r == rank })
		for call := range steps {
			for through := range uint(8) {
				if through>>rank&1 != 0 {
					continue
				}
				w := &world{t: t, hosts: start.hosts, epoch: start.epoch,
					death: &death{rank, call, through}}
				for _, s := range start.stores {
					w.stores = append(w.stores, s.clone())
				}
				returned := 2
				for _, err := range w.try(func(rank int, m Members) error { return w.make(m, 3, 1, rank) }) {
					if err == nil {
						returned = 3
					}
				}
				w = w.of(left...)
				w.survive(returned, left)
				cases++
			}
		}
	}
	t.Logf("%d deaths, in %d steps", cases, steps)
}

// survive loads, dies at each step of that, too, and loads again.
func (w *world) survive(returned int, owners []int) {
	w.t.Helper()
	alone := func() *world {
		c := *w
		c.stores = nil
		for _, s := range w.stores {
			c.stores = append(c.stores, s.clone())
		}
		return &c
	}
	whole := alone()
	got := whole.version()
	if got < returned {
		w.t.Fatalf("version %d is loaded, %d has been returned", got, returned)
	}
	for rank := range w.stores {
		for call := range whole.calls {
			for through := range uint(1 << len(w.stores)) {
				if through>>rank&1 != 0 {
					continue
				}
				again := alone()
				again.death = &death{rank, call, through}
				again.try(func(rank int, m Members) error {
					_, err := again.stores[rank].Load(context.Background(), m)
					return err
				})
				again = again.of(1 - rank)
				// More than before, if the one that had not staged it has died.
				n := again.version()
				if n < got {
					w.t.Fatalf("version %d is loaded after %d", n, got)
				}
				if local := again.stores[0].committed.local; string(local) !=
					fmt.Sprint("local ", n, owners[1-rank]) {
					w.t.Fatalf("the local model is %q", local)
				}
			}
		}
	}
	whole.makes(got+1, 1, owners...)
}

// version is what all ranks load.
func (w *world) version() int {
	w.t.Helper()
	versions := make([]uint64, len(w.stores))
	w.each(func(rank int, m Members) error {
		v, err := w.stores[rank].Load(context.Background(), m)
		if err == nil {
			versions[rank] = v.Version
		}
		return err
	})
	if slices.Min(versions) != slices.Max(versions) {
		w.t.Fatalf("versions %v", versions)
	}
	return int(versions[0])
}

// A version that failed when it was whole has to be asked for.
func TestStaged(t *testing.T) {
	for _, all := range []bool{true, false} {
		w := newWorld(t, "aaa")
		w.makes(1, 1, 0, 1, 2)
		w.death = &death{rank: 0, call: w.calls - 1} // nobody is through the last barrier
		if all {
			w.death.through = 1 << 1
		}
		w.try(func(rank int, m Members) error { return w.make(m, 2, 1, rank) })
		if !all {
			w.stores[1].staged = nil
		}
		w = w.of(1, 2)
		for rank, err := range w.try(func(rank int, m Members) error { return w.make(m, 3, 1, rank) }) {
			if !errors.Is(err, fault.ErrInvalidArgument) && !errors.Is(err, fault.ErrMismatch) ||
				!strings.Contains(err.Error(), "LoadCheckPoint") {
				t.Errorf("rank %d: %v", rank, err)
			}
		}
		number := 2
		if !all {
			number = 1
		}
		if got := w.version(); got != number {
			t.Errorf("version %d, not %d", got, number)
		}
		w.makes(number+1, 1, 1, 2)
	}

	// What all members have staged counts, whoever joins.
	w := newWorld(t, "aaa")
	w.death = &death{rank: 0, call: 2}
	w.try(func(rank int, m Members) error { return w.make(m, 1, 1, rank) })
	w = w.of(1, 2)
	w.join("a")
	w.loads(1, "1", "2", "0")
	w.death = &death{rank: 0, call: 2}
	w.try(func(rank int, m Members) error { return w.make(m, 2, 1, rank) })
	for rank, err := range w.try(func(rank int, m Members) error { return w.make(m, 3, 1, rank) }) {
		if !errors.Is(err, fault.ErrInvalidArgument) ||
			!strings.Contains(err.Error(), "the checkpoint before has failed") {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// The global model comes in stripes, but from one rank to all where those that lack it are more.
func TestHowTheGlobalModelComes(t *testing.T) {
	for hosts, want := range map[string]string{
		"a": "exchange", "aa": "exchange", "aaa": "broadcast of 0"} {
		w := newWorld(t, "aa")
		w.each(func(rank int, m Members) error {
			return w.stores[rank].Make(context.Background(), m, []byte("global 1"), nil, 1)
		})
		w.join(hosts)
		w.version()
		if got := w.kinds[3]; got != want {
			t.Errorf("%d join: it comes by %s, want %s", len(hosts), got, want)
		}
	}
}

// What all ranks are to have alike they have, or all are told, and nothing has changed.
func TestRefused(t *testing.T) {
	w := newWorld(t, "aaa")
	w.makes(1, 1, 0, 1, 2)
	for _, c := range []struct {
		kind     error
		text     string
		global   string // of rank 1
		replicas [3]int
	}{
		{fault.ErrMismatch, "the global models differ: of 2 bytes", "xx", [3]int{1, 1, 1}},
		{fault.ErrMismatch, "the global models differ: of 1 bytes", "x", [3]int{1, 1, 1}},
		{fault.ErrMismatch, "replicas are 2 on", "y", [3]int{1, 2, 1}},
		{fault.ErrInvalidArgument, "replicas are -1 on", "y", [3]int{1, 1, -1}},
	} {
		for rank, err := range w.try(func(rank int, m Members) error {
			global := "y"
			if rank == 1 {
				global = c.global
			}
			return w.stores[rank].Make(context.Background(), m, []byte(global), nil, c.replicas[rank])
		}) {
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("rank %d: %v, want %q", rank, err, c.text)
			}
		}
	}
	w.loads(1, "0", "1", "2")
	w.makes(2, 1, 0, 1, 2)
	w.join("a")
	make3 := func(text string) {
		t.Helper()
		for rank, err := range w.try(func(rank int, m Members) error { return w.make(m, 3, 1, rank) }) {
			if !errors.Is(err, fault.ErrMismatch) || !strings.Contains(err.Error(), text) {
				t.Errorf("rank %d: %v", rank, err)
			}
		}
	}
	make3("the members have changed since")
	w.loads(2, "0", "1", "2", "-")
	w.makes(3, 1, 0, 1, 2, 3)
	w.stores[3].committed = &version{} // as if it alone had not loaded
	make3("the next version is 1 on")
	w.loads(3, "0", "1", "2", "3")
	w.stores[2].committed.digest++
	w.refuses("different models of")
}

// A rank holds its own models and copies of others', in two versions.
func TestTooLarge(t *testing.T) {
	group := fault.NewGroup("", nil, make([]int, 3))
	for _, c := range []struct {
		global   int64
		local    [3]int64
		replicas int
		tooLarge int // the rank; -1: none
	}{
		{MaxBytes / 2, [3]int64{}, 1, -1},
		{MaxBytes/2 + 1, [3]int64{}, 1, 0},
		{0, [3]int64{0, MaxBytes / 2, 0}, 1, -1},
		{0, [3]int64{0, MaxBytes/2 + 1, 0}, 0, 1},
		{0, [3]int64{0, MaxBytes + 1, 0}, 0, 1},
		{MaxBytes + 1, [3]int64{}, 0, 0},
		{-1, [3]int64{}, 0, 0},
		{0, [3]int64{0, 0, -1}, 0, 2},
		{MaxBytes / 4, [3]int64{MaxBytes / 8, MaxBytes / 8, MaxBytes / 8}, 1, -1},
		{MaxBytes / 4, [3]int64{MaxBytes / 8, MaxBytes / 8, MaxBytes/8 + 1}, 1, 0}, // it keeps that
		{0, [3]int64{MaxBytes / 6, MaxBytes / 6, MaxBytes / 6}, 2, -1},
		{0, [3]int64{MaxBytes/6 + 2, MaxBytes / 6, MaxBytes / 6}, 2, -1},
		{0, [3]int64{MaxBytes/6 + 3, MaxBytes / 6, MaxBytes / 6}, 2, 0},
	} {
		var drafts []draft
		for _, local := range c.local {
			drafts = append(drafts, draft{Version: 1, Global: c.global, Local: local,
				Replicas: int64(c.replicas)})
		}
		err := checkDrafts(&group, drafts, replicasOf([]string{"a", "a", "a"}, c.replicas))
		if c.tooLarge < 0 {
			if err != nil {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		if !errors.Is(err, fault.ErrInvalidArgument) || !strings.Contains(err.Error(), fmt.Sprintf(
			"on rank %d (pid 0), in two versions and with the copies that it keeps for others; allowed are "+
				"1073741824", c.tooLarge)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// What has changed in a rank's memory comes from others that have it, or is lost, or is an error of
// all: it is not loaded.
func TestChangedModels(t *testing.T) {
	global := func(w *world, ranks ...int) {
		for _, rank := range ranks {
			w.stores[rank].committed.global[3] ^= 1
		}
	}
	local := func(w *world, rank int) { w.stores[rank].committed.local[3] ^= 1 }
	kept := func(w *world, rank, of int) { w.stores[rank].committed.kept[of][3] ^= 1 }
	for what, c := range map[string]struct {
		change func(w *world)
		fails  string
	}{
		"the global model of one":  {change: func(w *world) { global(w, 1) }},
		"the global models of two": {change: func(w *world) { global(w, 0, 2) }},
		"all global models": {change: func(w *world) { global(w, 0, 1, 2) },
			fails: "the global model of version 1 has changed since it was made, on all"},
		"a local model": {change: func(w *world) { local(w, 1) }},
		"a kept model":  {change: func(w *world) { kept(w, 2, 1) }},
		"a local model and that which is kept": {change: func(w *world) { local(w, 1); kept(w, 2, 1) },
			fails: "a local model of version 1 has come from rank 2"},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, "aaa")
			w.makes(1, 1, 0, 1, 2)
			c.change(w)
			if c.fails != "" {
				w.refuses(c.fails)
				return
			}
			w.loads(1, "0", "1", "2")
			w.loads(1, "0", "1", "2")
			w.makes(2, 1, 0, 1, 2)
			w.loads(2, "0", "1", "2")
		})
	}
	w := newWorld(t, "aaa")
	w.makes(1, 1, 0, 1, 2)
	kept(w, 2, 1)
	w.of(0, 2).loads(1, "0 1?", "2 1?")
}

// liar passes on other bytes than it has: in its broadcasts, or in one of its exchanges.
type liar struct {
	Service
	broadcasts bool
	exchange   int // which, from 1 on
	exchanges  int
}

func (l *liar) Broadcast(ctx context.Context, root int, data []byte) error {
	if l.broadcasts {
		data = slices.Clone(data)
		data[len(data)-1] ^= 1
	}
	return l.Service.Broadcast(ctx, root, data)
}

func (l *liar) Exchange(ctx context.Context, in, out [][]byte) error {
	in = slices.Clone(in)
	l.exchanges++
	for i, b := range in {
		if l.exchanges == l.exchange && len(b) > 0 {
			in[i] = slices.Clone(b)
			in[i][0] ^= 1
		}
	}
	return l.Service.Exchange(ctx, in, out)
}

// A rank that passes on other models than it has told of is found out, and all are told.
func TestLiars(t *testing.T) {
	for lie, by := range map[string]*liar{
		"the table of local models": {broadcasts: true},
		"the global model":          {exchange: 1},
		"a local model":             {exchange: 2},
	} {
		w := newWorld(t, "aaa")
		w.makes(1, 2, 0, 1, 2)
		w = w.of(0, 2)
		w.join("a")
		for rank, err := range w.try(func(rank int, m Members) error {
			if rank == 0 {
				by.Service, m.Service = m.Service, by
			}
			_, err := w.stores[rank].Load(context.Background(), m)
			return err
		}) {
			if !errors.Is(err, fault.ErrMismatch) || !strings.Contains(err.Error(), lie+" of version 1 has "+
				"come from rank") {
				t.Errorf("%s: rank %d: %v", lie, rank, err)
			}
		}
	}
}

// Foreign masks name no more shards than there are.
func TestHolders(t *testing.T) {
	got := holdersOf(65, []int64{1, -1, 1 << 62, 1})
	for at, holders := range got {
		var want []int
		switch at {
		case 0:
			want = []int{0}
		case 62:
			want = []int{1}
		case 64:
			want = []int{0, 1}
		}
		if !slices.Equal(holders, want) {
			t.Errorf("shard %d: %v, not %v", at, holders, want)
		}
	}
	for _, n := range []int{0, 1, 63, 64, 65, 200} {
		even := mask(n, func(at int) bool { return at%2 == 0 })
		for at, holders := range holdersOf(n, slices.Concat(even, make([]int64, len(even)), even)) {
			even := slices.Equal(holders, []int{0, 2})
			if even != (at%2 == 0) || at%2 > 0 && holders != nil {
				t.Errorf("%d shards, shard %d: %v", n, at, holders)
			}
		}
	}
}
