package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccl/goccl/core/internal/polltest"
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
		if c := w.comms[rank]; now(c).Recovers() {
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

// A rank that waits in a checkpoint is let go.
func TestDestroyInCheckPoint(t *testing.T) {
	w := newWorld(t, "shm", 2, time.Minute)
	done := make(chan error)
	go func() { done <- w.comms[0].CheckPoint(context.Background(), nil, nil, 1) }()
	polltest.Until(t, "it has begun", func() bool { return w.comms[0].Sequence() > 0 })
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
