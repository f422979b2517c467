package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/trace"
	"github.com/goccl/goccl/core/work"
)

// algorithmWorlds make worlds in which some algorithms can run, all of them in one or another.
var algorithmWorlds = map[string]func(t *testing.T, algorithms string) (*world, []error){
	"shared memory": func(t *testing.T, algorithms string) (*world, []error) {
		return tryWorld(t, 3, func(_ int, _ *RuntimeConfig, c *Config) {
			c.Transport, c.Algorithms = "shm", algorithms
		})
	},
	"ports": func(t *testing.T, algorithms string) (*world, []error) {
		return tryWorld(t, 5, func(_ int, _ *RuntimeConfig, c *Config) {
			c.Transport, c.Algorithms = "tcp", algorithms
		})
	},
	"two hosts": func(t *testing.T, algorithms string) (*world, []error) {
		return tryWorld(t, 4, func(rank int, r *RuntimeConfig, c *Config) {
			if c.Algorithms = algorithms; rank >= 2 {
				r.host = "elsewhere"
			}
		})
	},
	"two hosts, by turns": func(t *testing.T, algorithms string) (*world, []error) {
		return tryWorld(t, 5, func(rank int, r *RuntimeConfig, c *Config) {
			if c.Algorithms = algorithms; rank%2 == 1 {
				r.host = "elsewhere"
			}
		})
	},
}

// Each algorithm that is forced gives the right results, of small and of large blocks, and is what
// ran. Where it cannot run all ranks are told.
func TestForcedAlgorithms(t *testing.T) {
	ran := map[string]bool{}
	for name, make := range algorithmWorlds {
		for c := plan.AllReduce; c <= plan.Barrier; c++ {
			for _, a := range plan.Algorithms(c) {
				forced := fmt.Sprintf("%v:%v", c, a)
				t.Run(name+"/"+forced, func(t *testing.T) {
					w, errs := make(t, forced)
					if errs[0] != nil {
						for rank, err := range errs {
							if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(),
								"GOCCL_ALGO: "+forced+" cannot run in this group: ") ||
								!strings.Contains(err.Error(), "; allowed here are ") {
								t.Errorf("rank %d: %v", rank, err)
							}
						}
						return
					}
					for rank, err := range errs {
						if err != nil {
							t.Fatalf("rank %d: %v", rank, err)
						}
					}
					if a == plan.Direct {
						w.alloc = func(rank, n int) []int32 { return shareable(t, w, rank, n) }
					}
					ran[forced] = true
					w.only = []plan.Collective{c}
					size := len(w.comms)
					for _, n := range []int{0, 1, 70_001} {
						before := w.comms[0].Sequence()
						collectives(t, w, size, n, n%2 == 0)
						if n < 70_001 {
							continue
						}
						for rank, comm := range w.comms {
							if names := namesOf(comm, c, before); !slices.Equal(names, []string{a.String()}) {
								t.Errorf("rank %d, %d elements: %v ran by %q", rank, n, c, names)
							}
						}
					}
				})
			}
		}
	}
	for c := plan.AllReduce; c <= plan.Barrier; c++ {
		for _, a := range plan.Algorithms(c) {
			if forced := fmt.Sprintf("%v:%v", c, a); !ran[forced] {
				t.Errorf("%s ran nowhere", forced)
			}
		}
	}
}

// namesOf are the different algorithms by which those collectives of a kind ran that came after the
// first so many.
func namesOf(c *Comm, collective plan.Collective, after uint64) (names []string) {
	for sequence := after + 1; sequence <= c.Sequence(); sequence++ {
		name := c.Algorithm(sequence)
		if c.shared.FastPath.At(sequence).Name() == collective.String() && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// What callers in C run again goes by the same algorithm, and has its name.
func TestAlgorithmOfKnownCalls(t *testing.T) {
	for _, algorithms := range []string{"", "allreduce:two_shot", "allreduce:direct"} {
		w, errs := tryWorld(t, 2, func(_ int, _ *RuntimeConfig, c *Config) { c.Algorithms = algorithms })
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		want := "one_shot"
		if _, forced, ok := strings.Cut(algorithms, ":"); ok {
			want = forced
		}
		around(t, w, 2, 1) // no direct plan runs before ranks are connected
		before := w.comms[0].Sequence()
		for range 3 {
			w.each(func(rank int) error { return run(w.comms[rank], inPlace(shareable(t, w, rank, 200))) })
		}
		for rank, c := range w.comms {
			if got := namesOf(c, plan.AllReduce, before); !slices.Equal(got, []string{want}) {
				t.Errorf("%q, rank %d: %q", algorithms, rank, got)
			}
		}
	}
}

// An algorithm that is forced can run, in whatever form ranks name it; else all are told.
func TestAlgorithmsOfRanks(t *testing.T) {
	join := func(of ...string) (*world, []error) {
		return tryWorld(t, len(of), func(rank int, r *RuntimeConfig, c *Config) {
			r.Getenv = func(name string) string {
				return map[string]string{EnvAlgorithms: of[rank]}[name]
			}
		})
	}
	for _, c := range []struct {
		of   [2]string
		want string // "": it is let through
	}{
		{[2]string{"broadcast:multicast", "broadcast:multicast"},
			"GOCCL_ALGO: broadcast:multicast cannot run in this group: broadcast by multicast needs more " +
				"than two ranks, all of which share memory; allowed here are flat, binomial_tree, direct"},
		{[2]string{"allreduce:two_shot,direct",
			"allreduce:^one_shot,recursive_multiplying,hierarchical,binomial_tree"}, ""},
		{[2]string{"allreduce:hierarchical(2,2)", "allreduce:hierarchical(2,2)"},
			"GOCCL_ALGO: allreduce:hierarchical(2,2) cannot run in this group: allreduce by hierarchical " +
				"needs more than two ranks; allowed here are one_shot, two_shot, binomial_tree, direct"},
	} {
		_, errs := join(c.of[:]...)
		for rank, err := range errs {
			if c.want == "" && err != nil ||
				c.want != "" && (!errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%q, rank %d: %v", c.of, rank, err)
			}
		}
	}
}

// A split has the algorithms of its parent; a rank alone has no use for any.
func TestAlgorithmsOfSplits(t *testing.T) {
	w, errs := tryWorld(t, 3, func(_ int, _ *RuntimeConfig, c *Config) {
		c.Algorithms = "allreduce:two_shot;allgather:multicast,linear"
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	w.each(func(rank int) error {
		child, err := w.comms[rank].Split(context.Background(), rank/2, 0)
		if err != nil {
			return err
		}
		defer child.Destroy()
		if err := run(child, allReduce(t, 1)); err != nil {
			return err
		}
		if name := child.Algorithm(1); name != "two_shot" {
			return fmt.Errorf("a split's allreduce ran by %q", name)
		}
		return nil
	})
}

// A name is there once the collective has ended well, and as long as it is among the last.
func TestAlgorithmIsKept(t *testing.T) {
	w := newWorld(t, "shm", 2, time.Minute)
	c := w.comms[0]
	if name := c.Algorithm(0) + c.Algorithm(1); name != "" {
		t.Errorf("nothing ran, by %q", name)
	}
	w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, 1)) })
	monitored := Operation{Collective: plan.MonitoredBarrier, DType: reduce.Int32}
	w.each(func(rank int) error { return run(w.comms[rank], monitored) })
	if first, second := c.Algorithm(1), c.Algorithm(2); first != "one_shot" || second != "" {
		t.Errorf("they ran by %q and %q", first, second)
	}
	const last = 2 + trace.Collectives
	for range trace.Collectives {
		w.each(func(rank int) error { return run(w.comms[rank], Operation{Collective: plan.Barrier}) })
	}
	if first, by := c.Algorithm(1), c.Algorithm(last); first != "" || by != "dissemination" {
		t.Errorf("the first ran by %q, the last by %q", first, by)
	}
	c.Destroy()
	if name := c.Algorithm(last); name != "dissemination" {
		t.Errorf("after the end: %q", name)
	}
}

// A part that has a plan runs just that, and the next call of the same collective goes its own way.
func TestPartWithPlan(t *testing.T) {
	const size, n = 3, 1000
	for _, kind := range transports {
		w := newWorld(t, kind, size, time.Minute)
		for _, algorithm := range []plan.Algorithm{plan.OneShot, plan.TwoShot, plan.BinomialTree} {
			w.each(func(rank int) error {
				c := w.comms[rank]
				op, out := sumOf(t, rank, n, false)
				s := now(c).Shape().Segments(&op, nil)[0].Params
				s.Algorithm, s.Radices = algorithm, nil
				p, err := plan.Build(s)
				if err != nil {
					return err
				}
				compiled, err := exec.Compile(p, kind == "tcp", true)
				if err != nil {
					return err
				}
				defer compiled.Free()
				k := queued(t, c, time.Minute, &op, func(p *work.Part) { p.Plan = compiled })
				k.Started()
				if _, err := k.Wait(-1); err != nil {
					return err
				}
				if got := c.Algorithm(c.Sequence()); got != algorithm.String() {
					return fmt.Errorf("it went by %s, not %v", got, algorithm)
				}
				return sumIs(out, []int{0, 1, 2})
			})
		}
		everything(t, w)
	}
}
