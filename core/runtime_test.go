package core

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// A rank that is refused by its own process tells the others, which would wait for it.
func TestInitRefusedOnOneRank(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"transport":  {func(c *Config) { c.Transport = "rdma" }, `transport is "rdma"`},
		"thresholds": {func(c *Config) { c.Thresholds = "no" }, "thresholds"},
		"interface":  {func(c *Config) { c.Interface = "none7" }, "none7"},
	} {
		for bad := range 3 {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				begun := time.Now()
				_, errs := tryWorld(t, 3, func(rank int, _ *RuntimeConfig, c *Config) {
					if rank == bad {
						test.change(c)
					}
				})
				for rank, err := range errs {
					if err == nil || !strings.Contains(err.Error(), test.want) || (rank == bad) == errors.Is(err, ErrMismatch) {
						t.Errorf("rank %d, where rank %d is bad: %v", rank, bad, err)
					}
				}
				if took := time.Since(begun); took > 10*time.Second {
					t.Errorf("it took %v", took)
				}
			})
		}
	}
}
