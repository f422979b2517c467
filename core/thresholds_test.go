package core

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/goccl/goccl/core/plan"
)

func TestSetThresholds(t *testing.T) {
	all := thresholds{plan.Thresholds{OneShotMax: 1, FlatMax: 2, PipelineMin: 3}, 4, 5, 6, 7}
	for _, c := range []struct {
		text string
		want thresholds
		ok   bool
	}{
		{"", all, true},
		{"flat_max=0", thresholds{plan.Thresholds{OneShotMax: 1, PipelineMin: 3}, 4, 5, 6, 7}, true},
		{"one_shot_max=7,pipeline_min=8,multicast_min=15,swap_min=16,window_min=12,stream_min=10,send_get_min=13,long_max=14,direct_min=11,flat_max=9",
			thresholds{plan.Thresholds{OneShotMax: 7, FlatMax: 9, MulticastMin: 15, SwapMin: 16, PipelineMin: 8, WindowMin: 12}, 10, 13, 14, 11}, true},
		{"get_min=5", thresholds{plan.Thresholds{OneShotMax: 1, FlatMax: 2, PipelineMin: 3, GetMin: 5}, 4, 5, 6, 7}, true},
		{"one_shot_max", all, false},
		{"one_shot_max=", all, false},
		{"one_shot_max=-1", all, false},
		{"one_shot_max=99999999999999999999", all, false},
		{"chunk=4", all, false},
		{",", all, false},
	} {
		got := all
		if err := got.set(c.text); (err == nil) != c.ok || c.ok && got != c.want {
			t.Errorf("%q: %+v, %v", c.text, got, err)
		}
	}
}

// Thresholds decide about plans, so ranks that have others are told, and splits have their parent's.
func TestThresholdsOfRanks(t *testing.T) {
	join := func(of ...string) (*world, []error) {
		return tryWorld(t, len(of), func(rank int, _ *RuntimeConfig, c *Config) { c.Thresholds = of[rank] })
	}
	_, errs := join("flat_max=1", "flat_max=2")
	for rank, err := range errs {
		if !errors.Is(err, ErrMismatch) || !strings.Contains(err.Error(), `thresholds is "flat_max=1" on rank 0 and "flat_max=2" on rank 1`) {
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
		if shapeOf(child).thresholds.OneShotMax != 5 {
			t.Errorf("rank %d: %+v", rank, shapeOf(child).thresholds)
		}
		return run(child, allReduce(t, 1000))
	})
}
