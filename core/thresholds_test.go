package core

import (
	"context"
	"errors"
	"testing"
)

// Splits have their parent's thresholds.
func TestThresholdsOfSplits(t *testing.T) {
	w, errs := tryWorld(t, 2,
		func(_ int, _ *RuntimeConfig, c *Config) { c.Thresholds = "one_shot_max=5" })
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
