package core

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/collective"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/internal/polltest"
)

// treeSize is of worlds whose trees have several levels.
const treeSize = 16

// halves is a world in levels, with a group of each half of the ranks beside it. All ranks that
// exchange something in either are connected.
type halves struct {
	*world
	parts   []*Comm // by rank
	sockets []openSockets
	sent    []int // by rank: the messages of one collective
}

func newHalves(t *testing.T, transport, algorithm string, timeout time.Duration) *halves {
	t.Helper()
	h := &halves{parts: make([]*Comm, treeSize), sockets: make([]openSockets, treeSize)}
	w, errs := tryWorld(t, treeSize, func(rank int, r *RuntimeConfig, c *Config) {
		r.OnFD = h.sockets[rank].note
		c.Transport, c.Timeout, c.Algorithms = transport, time.Minute, "allreduce:"+algorithm
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	h.world = w
	store := bootstrap.NewMemStore()
	w.each(func(rank int) (err error) {
		const size = treeSize / 2
		h.parts[rank], err = w.runtimes[rank].Init(context.Background(), Config{Rank: rank % size,
			Size: size, Store: store, GroupName: fmt.Sprint("half ", h.half(rank)), Transport: transport,
			Timeout: time.Minute})
		if err != nil {
			return err
		}
		t.Cleanup(h.parts[rank].Destroy)
		return errors.Join(run(h.parts[rank], allReduce(t, 100)), run(w.comms[rank], allReduce(t, 100)))
	})
	for rank := range w.comms {
		h.sent = append(h.sent, -h.sentBy(rank))
	}
	w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, 100)) })
	for rank := range w.comms {
		h.sent[rank] += h.sentBy(rank)
	}
	w.limit(timeout)
	return h
}

func (h *halves) half(rank int) int { return rank / (treeSize / 2) }

// sentBy is how many messages of collectives a rank has sent.
func (h *halves) sentBy(rank int) (all int) {
	for _, n := range sentOn(h.comms[rank], collectiveLane) {
		all += int(n)
	}
	return all
}

// start starts a sum over all ranks on one of them.
func (h *halves) start(t *testing.T, rank int) (*Work, Operation, error) {
	op := allReduce(t, 100)
	fill(unsafe.Slice((*int32)(op.In[0]), 100), rank, 0)
	work, err := h.comms[rank].Start(CallOptions{}, op)
	return work, op, err
}

// sum checks what start has started.
func (h *halves) sum(op Operation) error {
	return expect("sum", unsafe.Slice((*int32)(op.Out[0]), 100), func(i int) (s int32) {
		for r := range treeSize {
			s += value(r, 0, i)
		}
		return s
	})
}

// connections is how many ranks are connected with another, over both ends.
func (h *halves) connections() (n int) {
	for _, c := range h.comms {
		for peer := range c.Size() {
			if peer != c.Rank() && groupOf(c).Connected(peer) {
				n++
			}
		}
	}
	return n
}

// partsGoOn has the group go on that a rank is not in.
func (h *halves) partsGoOn(t *testing.T, without int) {
	t.Helper()
	h.each(func(rank int) error {
		if h.half(rank) == h.half(without) {
			return nil
		}
		return run(h.parts[rank], allReduce(t, 1000))
	})
}

// survive waits for the collective in which a rank dies. Who needs none of the messages that it has
// not sent has the sum; all others are told who has died, and so are all at their next call.
func (h *halves) survive(t *testing.T, victim int, works []*Work, ops []Operation) {
	t.Helper()
	for rank, work := range works {
		if work == nil {
			continue
		}
		if _, err := work.Wait(-1); err != nil {
			namesTheEnded(t, victim, err)
		} else if err := h.sum(ops[rank]); err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	for rank, err := range h.try(func(rank int) error {
		if rank == victim {
			return nil
		}
		return run(h.comms[rank], allReduce(t, 1))
	}) {
		if rank != victim {
			namesTheEnded(t, victim, err)
		}
	}
	h.partsGoOn(t, victim)
}

// dyingWire dies in place of the message after so many.
type dyingWire struct {
	collective.Wire
	left int
	die  func()
}

func (d *dyingWire) Put(ctx context.Context, run *exec.Run) error {
	if d.left == 0 {
		d.die()
	}
	d.left--
	return d.Wire.Put(ctx, run)
}

// A rank dies before each of its messages, at different places of trees of each kind.
func TestDeathBeforeEachMessage(t *testing.T) {
	for algorithm, victims := range map[string][]int{
		"recursive_multiplying(2,2,2,2)": {6},
		"recursive_multiplying(4,4)":     {9},
		"hierarchical(4,4)":              {15},
		"binomial_tree":                  {0, 8},
	} {
		for _, victim := range victims {
			if testing.Short() && victim != 6 {
				continue
			}
			messages := 1
			for k := 0; k < messages; k++ {
				t.Run(fmt.Sprintf("%s/%d/%d", algorithm, victim, k), func(t *testing.T) {
					h := newHalves(t, "tcp", algorithm, time.Minute)
					messages = h.sent[victim]
					letGo := holdQueue(t, h.comms[victim])
					engine := *private[*collective.Engine](h.comms[victim], "runner.engine")
					engine.Wire = &dyingWire{engine.Wire, k, h.sockets[victim].kill}
					letGo()
					works, ops := make([]*Work, treeSize), make([]Operation, treeSize)
					for rank := range works {
						var err error
						if works[rank], ops[rank], err = h.start(t, rank); err != nil {
							namesTheEnded(t, victim, err) // another has told it
						}
					}
					_, _ = works[victim].Wait(-1) // it is dead
					works[victim] = nil
					h.survive(t, victim, works, ops)
				})
			}
		}
	}
}

// A rank has come as far as each of the levels when it dies; those that it waits for come after.
// Where it does not die, all have the sum, however late they come.
func TestDeathAtEachLevel(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		for _, victim := range []int{0, 6} {
			for level := range 4 {
				for _, dies := range []bool{true, false} {
					if testing.Short() && (victim != 6 || !dies) {
						continue
					}
					t.Run(fmt.Sprintf("%s/%d/%d/%v", transport, victim, level, dies), func(t *testing.T) {
						h := newHalves(t, transport, "recursive_multiplying(2,2,2,2)", time.Minute)
						works, ops := make([]*Work, treeSize), make([]Operation, treeSize)
						begin := func(rank int) {
							var err error
							if works[rank], ops[rank], err = h.start(t, rank); err != nil {
								namesTheEnded(t, victim, err) // another has told it
							}
						}
						before := h.sentBy(victim)
						letGo := holdQueue(t, h.comms[victim])
						for rank := range treeSize { // its block of so many levels, itself among them
							if rank>>level == victim>>level {
								begin(rank)
							}
						}
						polltest.Until(t, "the victim waits for its twin", func() bool {
							runHeldQueue(h.comms[victim], works[victim], time.Millisecond)
							return h.sentBy(victim)-before == level+1
						})
						if dies {
							h.sockets[victim].kill()
						}
						letGo()
						for rank := range treeSize {
							if rank>>level != victim>>level {
								begin(rank)
							}
						}
						if dies {
							_, _ = works[victim].Wait(-1) // it is dead
							works[victim] = nil
							h.survive(t, victim, works, ops)
							return
						}
						h.each(func(rank int) error {
							_, err := works[rank].Wait(-1)
							return errors.Join(err, h.sum(ops[rank]))
						})
						h.partsGoOn(t, victim)
					})
				}
			}
		}
	}
}

// A rank that never calls is named by all, however far from it they are in the tree, and ranks that
// only wait for those that wait for it are not. To find that out nobody connects.
func TestMissingInATree(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		for algorithm, absent := range map[string]int{"recursive_multiplying(2,2,2,2)": 6,
			"hierarchical(4,4)": 15, "binomial_tree": 0} {
			t.Run(transport+"/"+algorithm, func(t *testing.T) {
				t.Parallel()
				h := newHalves(t, transport, algorithm, 2*time.Second)
				before := h.connections()
				for rank, err := range h.try(func(rank int) error {
					if rank == absent {
						return nil
					}
					return run(h.comms[rank], allReduce(t, 100))
				}) {
					if rank != absent && (!errors.Is(err, ErrTimeout) ||
						!strings.Contains(err.Error(), named(absent)+" did not arrive")) {
						t.Errorf("rank %d: %v\nwas to name rank %d alone", rank, err, absent)
					}
				}
				if after := h.connections(); after != before {
					t.Errorf("there were %d connections, and are %d", before, after)
				}
				h.partsGoOn(t, absent)
			})
		}
	}
}

// Where nobody else has timed out yet, who does finds a missing rank that it is not connected with.
func TestMissingFarAway(t *testing.T) {
	const absent = 15 // a leaf, below 14, 12 and 8
	h := newHalves(t, "tcp", "binomial_tree", time.Minute)
	if err := h.comms[0].SetTimeout(2 * time.Second); err != nil {
		t.Fatal(err)
	}
	for rank, err := range h.try(func(rank int) error {
		if rank == absent {
			return nil
		}
		return run(h.comms[rank], allReduce(t, 100))
	}) {
		if rank != absent && (!errors.Is(err, ErrTimeout) ||
			!strings.Contains(err.Error(), named(0)+": "+named(absent)+" did not arrive")) {
			t.Errorf("rank %d: %v\nwas to name rank %d alone", rank, err, absent)
		}
	}
	if !groupOf(h.comms[0]).Connected(absent) {
		t.Error("it has not asked the missing rank")
	}
}
