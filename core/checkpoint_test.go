package core

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccl/goccl/core/plan"
)

// checkPoint makes a version, of models that tell which it is, and whose.
func (w *world) checkPoint(version int, owners ...int) {
	w.t.Helper()
	w.each(func(rank int) error {
		global := fmt.Append(nil, "global ", version)
		local := fmt.Append(nil, "local ", version, owners[rank])
		if err := w.comms[rank].CheckPoint(soon(w.t), global, local, 1); err != nil {
			return err
		}
		clear(global) // they have been copied
		clear(local)
		if n := w.comms[rank].VersionNumber(); n != uint64(version) {
			return fmt.Errorf("version %d, not %d", n, version)
		}
		return nil
	})
}

// loads checks that ranks get a version, and the local models of some; -1: none.
func (w *world) loads(version int, owners ...int) {
	w.t.Helper()
	w.loadsWith(version, nil, owners...)
}

// loadsWith checks also which orphans ranks get, as in "0" or, lost, "0?".
func (w *world) loadsWith(version int, orphans []string, owners ...int) {
	w.t.Helper()
	w.each(func(rank int) error {
		loaded, err := w.comms[rank].LoadCheckPoint(soon(w.t))
		if err != nil {
			return err
		}
		if orphans != nil {
			var all []string
			for _, o := range loaded.Orphans {
				model := fmt.Sprint("local ", version, o.Rank)
				switch {
				case o.Model == nil && o.Size == uint64(len(model)):
					all = append(all, fmt.Sprint(o.Rank, "?"))
				case string(o.Model) == model && o.Size == uint64(len(model)):
					all = append(all, fmt.Sprint(o.Rank))
				default:
					return fmt.Errorf("an orphan %+v", o)
				}
			}
			if got := strings.Join(all, " "); got != orphans[rank] {
				return fmt.Errorf("orphans %s, not %s", got, orphans[rank])
			}
		}
		got, global, local := loaded.Version, loaded.Global, loaded.Local
		wantGlobal, wantLocal := fmt.Sprint("global ", version), ""
		if version == 0 {
			wantGlobal = ""
		} else if owners[rank] >= 0 {
			wantLocal = fmt.Sprint("local ", version, owners[rank])
		}
		if got != uint64(version) || string(global) != wantGlobal || string(local) != wantLocal ||
			w.comms[rank].VersionNumber() != got {
			return fmt.Errorf("version %d, %q and %q; not %d, %q and %q", got, global, local, version,
				wantGlobal, wantLocal)
		}
		return nil
	})
}

// goOn has those of a world go on that are left, with a collective where that has them recover.
func (w *world) goOn() {
	w.t.Helper()
	w.each(func(rank int) error {
		if c := w.comms[rank]; c.recovers() {
			return run(c, Operation{Collective: plan.Barrier})
		}
		return w.comms[rank].Recover(soon(w.t))
	})
}

func TestCheckPoint(t *testing.T) {
	for _, transport := range transports {
		for _, recovery := range []string{RecoveryStep, RecoverySurvivors} {
			t.Run(transport+" "+recovery, func(t *testing.T) {
				w := newWorldOf(t, transport, 4, Config{Timeout: 20 * time.Second, Recovery: recovery})
				w.loads(0)
				w.checkPoint(1, 0, 1, 2, 3)
				w.checkPoint(2, 0, 1, 2, 3)
				w.loads(2, 0, 1, 2, 3)
				w.endFor(0, 2)
				w = w.of(0, 1, 3)
				w.goOn()
				w.loads(2, 0, 1, 3)
				w.checkPoint(3, 0, 1, 3)
				w.endFor(1, 2)
				w = w.of(0, 1)
				w.goOn()
				w.endFor(1, 0)
				w = w.of(1)
				w.goOn()
				w.loads(3, 1)
				w.checkPoint(4, 1)
				w.loads(4, 1)
				everything(t, w)
			})
		}
	}
}

// Large models, of other sizes on each rank, go to one that joins; and without local ones.
func TestCheckPointSizes(t *testing.T) {
	for _, sizes := range [][]int{{0, 3 << 20, 5}, {7, 0, 3 << 20}, {0, 0, 0}} {
		config := joinConfigOf("shm")
		w := newWorldOf(t, "shm", 3, config)
		model := func(of, n int) []byte {
			b := make([]byte, n)
			for i := range b {
				b[i] = byte(i>>8 + i + of)
			}
			return b
		}
		w.each(func(rank int) error {
			return w.comms[rank].CheckPoint(soon(t), model(9, 5<<20), model(rank, sizes[rank]),
				2)
		})
		w.end(1)
		w = w.of(0, 2)
		joined := w.joining(config, w.handles())
		w.each(func(rank int) error { return w.comms[rank].Grow(soon(t), 1) })
		old := []int{0, 2, 1}
		w = joined()
		w.each(func(rank int) error {
			got, err := w.comms[rank].LoadCheckPoint(soon(t))
			if err == nil && (got.Version != 1 || !slices.Equal(got.Global, model(9, 5<<20)) ||
				!slices.Equal(got.Local, model(old[rank], sizes[old[rank]])) || got.Orphans != nil) {
				err = fmt.Errorf("version %d, %d and %d bytes", got.Version, len(got.Global), len(got.Local))
			}
			return err
		})
	}
}

// Local models of ranks that have ended go to those that join, as they come.
func TestPlacesAreTaken(t *testing.T) {
	config := joinConfigOf("tcp")
	w := newWorldOf(t, "tcp", 4, config)
	w.checkPoint(1, 0, 1, 2, 3)
	w.end(0)
	w.end(2)
	w = w.of(1, 3)
	w.goOn()
	w.loadsWith(1, []string{"0", "2"}, 1, 3)
	grow := func() {
		t.Helper()
		joined := w.joining(config, w.handles())
		w.each(func(rank int) error { return w.comms[rank].Grow(soon(t), 1) })
		w = joined()
	}
	grow()
	w.loadsWith(1, []string{"", "2", ""}, 1, 3, 0)
	grow()
	w.loadsWith(1, []string{"", "", "", ""}, 1, 3, 0, 2)
	w.loads(1, 1, 3, 0, 2)
	grow()
	w.loads(1, 1, 3, 0, 2, -1)

	// The rank that kept the model of the fourth has ended before: it is lost.
	w.end(1)
	w.end(4)
	w = w.of(0, 2, 3)
	w.goOn()
	w.loadsWith(1, []string{"3?", "3?", "3?"}, 1, 0, 2)
	grow()
	w.loadsWith(1, []string{"3?", "3?", "3?", "3?"}, 1, 0, 2, -1)
	w.checkPoint(2, 1, 0, 2, 3)
	w.loads(2, 1, 0, 2, 3)
}

// stagedOnly has a rank be as if it had been interrupted in the second phase of the last version.
func (c *Comm) stagedOnly(before *checkpoint) {
	c.models.staged, c.models.committed = c.models.committed, before
	c.models.version.Store(before.version)
}

// A version that a rank may have returned counts; one that somebody lacks does not.
func TestStagedCheckPoint(t *testing.T) {
	for _, all := range []bool{true, false} {
		w := newWorld(t, "shm", 3, time.Minute)
		w.checkPoint(1, 0, 1, 2)
		var before []*checkpoint
		for _, c := range w.comms {
			before = append(before, c.models.committed)
		}
		w.checkPoint(2, 0, 1, 2)
		w.comms[1].stagedOnly(before[1])
		w.comms[2].stagedOnly(before[2])
		if !all {
			w.comms[2].models.staged = nil
		}
		w.end(0)
		w = w.of(1, 2)
		w.goOn()
		for rank, err := range w.try(func(rank int) error {
			return w.comms[rank].CheckPoint(soon(t), nil, nil, 1)
		}) {
			if !errors.Is(err, ErrInvalidArgument) || !strings.Contains(err.Error(), "call LoadCheckPoint") {
				t.Errorf("rank %d: %v", rank, err)
			}
		}
		version := 2
		if !all {
			version = 1
		}
		w.loads(version, 1, 2)
		w.checkPoint(version+1, 1, 2)
		w.loads(version+1, 1, 2)
	}
}

// Whenever a rank ends, the others load the same, and no less than has been returned.
func TestDeathInCheckPoint(t *testing.T) {
	for _, recovery := range []string{RecoveryStep, RecoverySurvivors} {
		for i := range 12 {
			w := newWorldOf(t, "shm", 3, Config{Timeout: 20 * time.Second, Recovery: recovery})
			w.checkPoint(1, 0, 1, 2)
			ended := make(chan struct{})
			go func() {
				time.Sleep(time.Duration(i) * 20 * time.Microsecond)
				w.endFor(i%2, 2)
				close(ended)
			}()
			returned := uint64(1)
			for rank, err := range w.try(func(rank int) error {
				return w.comms[rank].CheckPoint(soon(t), []byte("global 2"),
					fmt.Append(nil, "local ", 2, rank), 1+i%2)
			}) {
				if err == nil {
					returned = 2
				} else if rank < 2 && !errors.Is(err, ErrPeerFailed) {
					t.Fatalf("rank %d: %v", rank, err)
				}
			}
			<-ended
			left := w.of(0, 1)
			left.goOn()
			versions := make([]uint64, 2)
			left.each(func(rank int) error {
				loaded, err := left.comms[rank].LoadCheckPoint(soon(t))
				if err == nil {
					versions[rank] = loaded.Version
				}
				return err
			})
			if versions[0] != versions[1] || versions[0] < returned {
				t.Fatalf("versions %d, %d has been returned", versions, returned)
			}
			left.loads(int(versions[0]), 0, 1)
		}
	}
}

// What all ranks are to have alike they have, or all are told.
func TestCheckPointRefused(t *testing.T) {
	config := joinConfigOf("shm")
	w := newWorldOf(t, "shm", 3, config)
	w.checkPoint(1, 0, 1, 2)
	refused := func(kind error, text string, global, local func(rank int) []byte) {
		t.Helper()
		for rank, err := range w.try(func(rank int) error {
			return w.comms[rank].CheckPoint(soon(t), global(rank), local(rank), 1)
		}) {
			if !errors.Is(err, kind) || !strings.Contains(err.Error(), text) {
				t.Errorf("rank %d: %v", rank, err)
			}
		}
	}
	none := func(int) []byte { return nil }
	only1 := func(b []byte) func(int) []byte {
		return func(rank int) []byte {
			if rank == 1 {
				return b
			}
			return nil
		}
	}
	refused(ErrMismatch, "the global models differ", only1([]byte("x")), none)
	refused(ErrInvalidArgument, "allowed are 1073741824", none, only1(make([]byte, 1<<29+1)))
	refused(ErrInvalidArgument, "allowed are 1073741824", none, only1(make([]byte, 1<<30+1)))
	w.loads(1, 0, 1, 2)
	w.checkPoint(2, 0, 1, 2)

	joined := w.joining(config, w.handles())
	w.each(func(rank int) error { return w.comms[rank].Grow(soon(t), 1) })
	w = joined()
	refused(ErrMismatch, "the members have changed since", none, none)
	w.loads(2, 0, 1, 2, -1)
	w.checkPoint(3, 0, 1, 2, 3)
	w.comms[3].models.committed = &checkpoint{} // as if it alone had not loaded
	refused(ErrMismatch, "the next version is 1 on", none, none)
	w.loads(3, 0, 1, 2, 3)
	everything(t, w)

	w.comms[2].models.committed.digest++
	refuses(w, "different models of")
}

// What has changed in a rank's memory comes from others that have it, or is lost, or is an error of
// all: it is not loaded.
func TestChangedModels(t *testing.T) {
	global := func(w *world, ranks ...int) {
		for _, rank := range ranks {
			w.comms[rank].models.committed.global[3] ^= 1
		}
	}
	local := func(w *world, rank int) { w.comms[rank].models.committed.local[3] ^= 1 }
	kept := func(w *world, rank, of int) { w.comms[rank].models.committed.kept[of][3] ^= 1 }
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
			w := newWorld(t, "shm", 3, time.Minute)
			w.checkPoint(1, 0, 1, 2)
			c.change(w)
			if c.fails != "" {
				refuses(w, c.fails)
				return
			}
			w.loads(1, 0, 1, 2)
			w.loads(1, 0, 1, 2)
			w.checkPoint(2, 0, 1, 2)
			w.loads(2, 0, 1, 2)
		})
	}
	w := newWorld(t, "shm", 3, time.Minute)
	w.checkPoint(1, 0, 1, 2)
	kept(w, 2, 1)
	w.end(1)
	w = w.of(0, 2)
	w.goOn()
	w.loadsWith(1, []string{"1?", "1?"}, 0, 2)
}

// refuses checks that a version is not loaded, by any rank.
func refuses(w *world, text string) {
	w.t.Helper()
	for rank, err := range w.try(func(rank int) error {
		_, err := w.comms[rank].LoadCheckPoint(soon(w.t))
		return err
	}) {
		if !errors.Is(err, ErrMismatch) || !strings.Contains(err.Error(), text) {
			w.t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// loadLying loads as a rank does that passes on something else than it has told. What it claims of
// others does not matter.
func (c *Comm) loadLying(ctx context.Context, lie string) error {
	e, mine := now(c), c.models.committed
	has, err := c.gatherHoldings(ctx)
	if err != nil {
		return err
	}
	_, source, err := e.choose(has)
	if err != nil {
		return err
	}
	places := slices.Clone(mine.places)
	if lie == "the table of local models" {
		places[1].Local = 1 << 50
	}
	table, _ := binary.Append(nil, binary.LittleEndian, places)
	if err := c.broadcast(ctx, source, table); err != nil {
		return err
	}
	from := slices.Repeat([][]int{{source}}, e.Size())
	if err := c.unchanged(ctx, e, true, lie, mine.version, from); err != nil {
		return err
	}
	if lie == "the global model" {
		mine.global[0] ^= 1
	}
	if err := c.passGlobal(ctx, e, mine, has); err != nil {
		return err
	}
	var ids []uint64
	var current []bool
	for _, h := range has {
		ids, current = append(ids, h.id), append(current, h.of(1) != nil)
	}
	holders, err := c.gatherHolders(ctx, mine, places)
	if err != nil {
		return err
	}
	if lie == "a local model" {
		mine.kept[1][0] ^= 1
	}
	return c.passOn(ctx, e, mine, places, ownersOf(places, ids, current), holders)
}

// A rank that passes on other models than it has told of is found out, and all are told.
func TestLyingKeepers(t *testing.T) {
	config := joinConfigOf("shm")
	for lie, liar := range map[string]int{"the table of local models": 0, "the global model": 0,
		"a local model": 1} {
		t.Run(lie, func(t *testing.T) {
			w := newWorldOf(t, "shm", 3, config)
			w.checkPoint(1, 0, 1, 2)
			w.end(1)
			w = w.of(0, 2)
			joined := w.joining(config, w.handles())
			w.each(func(rank int) error { return w.comms[rank].Grow(soon(t), 1) })
			w = joined()
			for rank, err := range w.try(func(rank int) error {
				if rank == liar {
					return w.comms[rank].loadLying(soon(t), lie)
				}
				_, err := w.comms[rank].LoadCheckPoint(soon(t))
				return err
			}) {
				if !errors.Is(err, ErrMismatch) || !strings.Contains(err.Error(), lie+" of version 1 has come "+
					"from rank") {
					t.Errorf("rank %d: %v", rank, err)
				}
			}
		})
	}
}

// A rank that waits in a checkpoint is let go.
func TestDestroyInCheckPoint(t *testing.T) {
	w := newWorld(t, "shm", 2, time.Minute)
	done := make(chan error)
	go func() { done <- w.comms[0].CheckPoint(context.Background(), nil, nil, 1) }()
	until(t, "it has begun", func() bool { return w.comms[0].Sequence() > 0 })
	w.comms[0].Destroy()
	if err := <-done; !errors.Is(err, ErrAborted) {
		t.Error(err)
	}
}

// A worker that ends is replaced, and all replay from the last version: the result has the bits of
// a run that nothing has disturbed.
func TestReplay(t *testing.T) {
	const steps, every, n = 12, 3, 500
	config := joinConfigOf("shm")
	bytesOf := func(b []int32) []byte { return fmt.Append(nil, b) }
	// train goes on from the last version up to a step, which some rank does not begin.
	train := func(c *Comm, identity, until int) ([]byte, error) {
		loaded, err := c.LoadCheckPoint(soon(t))
		if err != nil {
			return nil, err
		}
		version, global, local := loaded.Version, loaded.Global, loaded.Local
		state, mine := make([]int32, n), int32(identity)
		if version > 0 {
			text := strings.NewReader(strings.Trim(string(global), "[]"))
			for i := range state {
				fmt.Fscan(text, &state[i])
			}
			fmt.Sscan(string(local), &mine)
		}
		for step := int(version) * every; step < until; step++ {
			op, out := sumOf(t, int(mine), n, true)
			if err := run(c, op); err != nil {
				return nil, err
			}
			for i := range state {
				state[i] = state[i]*31 + out[i]
			}
			mine = mine*5 + 1
			if (step+1)%every == 0 {
				if err := c.CheckPoint(soon(t), bytesOf(state), fmt.Append(nil, mine), 1); err != nil {
					return nil, err
				}
			}
		}
		return bytesOf(state), nil
	}
	all := func(w *world) []byte {
		results := make([][]byte, len(w.comms))
		w.each(func(rank int) (err error) {
			results[rank], err = train(w.comms[rank], rank, steps)
			return err
		})
		return results[0]
	}
	want := all(newWorldOf(t, "shm", 3, config))

	w := newWorldOf(t, "shm", 3, config)
	left := w.of(0, 2)
	joined := left.joining(config, left.handles())
	w.each(func(rank int) error {
		if rank == 1 {
			_, err := train(w.comms[rank], rank, 8)
			w.endFor(0, rank)
			return err
		}
		if _, err := train(w.comms[rank], rank, steps); !errors.Is(err, ErrPeerFailed) {
			return fmt.Errorf("it ended with %v", err)
		}
		return w.comms[rank].Grow(soon(t), 1)
	})
	if got := all(joined()); string(got) != string(want) {
		t.Error("a replay has other bits")
	}
}

// A local model is lost only if its rank and all that keep it have ended.
func TestReplicas(t *testing.T) {
	config := joinConfigOf("shm")
	for _, c := range []struct {
		replicas int
		ended    []int
		want     []int // the local models of the two that have not ended and of those that join
	}{
		{2, []int{0, 1}, []int{2, 3, 0, 1}}, // each was a keeper of the other's
		{2, []int{3, 1}, []int{0, 2, 1, 3}},
		{9, []int{2, 0}, []int{1, 3, 0, 2}},
		{1, []int{0, 1}, []int{2, 3, -1, 1}},
		{0, []int{0, 2}, []int{1, 3, -1, -1}},
	} {
		t.Run(fmt.Sprint(c.replicas, c.ended), func(t *testing.T) {
			w := newWorldOf(t, "shm", 4, config)
			w.each(func(rank int) error {
				return w.comms[rank].CheckPoint(soon(t), []byte("global 1"), fmt.Append(nil, "local ", 1, rank),
					c.replicas)
			})
			w.end(c.ended[0])
			w.end(c.ended[1])
			w = w.of(c.want[:2]...)
			w.goOn()
			for range c.ended {
				joined := w.joining(config, w.handles())
				w.each(func(rank int) error { return w.comms[rank].Grow(soon(t), 1) })
				w = joined()
			}
			w.loads(1, c.want...)
			w.loads(1, c.want...)
			everything(t, w)
		})
	}
}

// What the ranks do not have alike, or is not allowed, all are told; and the limit counts copies.
func TestReplicasRefused(t *testing.T) {
	w := newWorld(t, "shm", 3, time.Minute)
	for _, c := range []struct {
		kind     error
		text     string
		replicas [3]int
		bytes    int
	}{
		{ErrMismatch, "replicas are 2 on", [3]int{1, 2, 1}, 0},
		{ErrInvalidArgument, "replicas are -1 on", [3]int{1, 1, -1}, 0},
		{ErrInvalidArgument, "allowed are 1073741824", [3]int{2, 2, 2}, 1<<30/6 + 1},
	} {
		for rank, err := range w.try(func(rank int) error {
			return w.comms[rank].CheckPoint(soon(t), nil, make([]byte, c.bytes), c.replicas[rank])
		}) {
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("rank %d: %v", rank, err)
			}
		}
	}
	w.checkPoint(1, 0, 1, 2)
}
