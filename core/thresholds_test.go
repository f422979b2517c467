package core

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// Thresholds decide about plans, so ranks that have others are told, and splits have their
// parent's.
func TestThresholdsOfRanks(t *testing.T) {
	join := func(of ...string) (*world, []error) {
		return tryWorld(t, len(of),
			func(rank int, _ *RuntimeConfig, c *Config) { c.Thresholds = of[rank] })
	}
	_, errs := join("flat_max=1", "flat_max=2")
	for rank, err := range errs {
		if !errors.Is(err, ErrMismatch) || !strings.Contains(err.Error(),
			`GOCCL_THRESHOLDS is "flat_max=1" on rank 0 and "flat_max=2" on rank 1`) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	_, errs = join("flat=1", "flat=1")
	for rank, err := range errs {
		if !errors.Is(err, ErrInvalidArgument) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	w, errs := join("one_shot_max=5", "one_shot_max=5")
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	w.each(func(rank int) error {
		child, err := w.comms[rank].Split(context.Background(), 0, 0)
		if err != nil {
			return err
		}
		defer child.Destroy()
		if shapeOf(child).Thresholds.OneShotMax != 5 {
			t.Errorf("rank %d: %+v", rank, shapeOf(child).Thresholds)
		}
		return run(child, allReduce(t, 1000))
	})
}

// What links cost decides about plans, too.
func TestLinksOfRanks(t *testing.T) {
	for _, c := range []struct {
		of   [2]string
		kind error
		want string
	}{
		{[2]string{"tcp=1:2:3", "tcp=1:2:4"}, ErrMismatch,
			`what links cost (GOCCL_LINKS) is "tcp=1:2:3" on rank 0 and "tcp=1:2:4" on rank 1`},
		{[2]string{"ib=1:2:3", "ib=1:2:3"}, ErrInvalidArgument,
			`GOCCL_LINKS is "ib=1:2:3", allowed are memory, loopback, tcp and verbs`},
	} {
		_, errs := tryWorld(t, 2, func(rank int, r *RuntimeConfig, _ *Config) {
			r.Getenv = func(name string) string { return map[string]string{EnvLinks: c.of[rank]}[name] }
		})
		for rank, err := range errs {
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%q, rank %d: %v", c.of, rank, err)
			}
		}
	}
}
