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
