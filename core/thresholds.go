package core

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/goccl/goccl/core/plan"
)

// The sizes at which one algorithm gives way to another, by kind of channel. `goccl tune` measures both sides of each
// at many sizes, in turn. These are for two ranks on two cores that share a cache, and over the loopback interface,
// where the curves are flat around the crossings: a factor of two costs a few per cent. Where ranks outnumber the
// CPUs, and a wait costs a change of threads, fewer messages are better: it then advises a pipeline_min of 256 KiB.
var (
	memoryThresholds = plan.Thresholds{OneShotMax: 16 << 10, FlatMax: 32 << 10, PipelineMin: 64 << 10}
	// Over a port channel a message costs more, and so does a second hop.
	portThresholds = plan.Thresholds{OneShotMax: 64 << 10, FlatMax: 64 << 10, PipelineMin: 1 << 20}
)

// setThresholds changes those that a text names, such as "one_shot_max=4096,pipeline_min=0".
func setThresholds(t *plan.Thresholds, text string) error {
	fields := map[string]*int64{"one_shot_max": &t.OneShotMax, "flat_max": &t.FlatMax, "pipeline_min": &t.PipelineMin}
	if text == "" {
		return nil
	}
	for item := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(item, "=")
		field := fields[name]
		if field == nil {
			return fmt.Errorf("%q, allowed are one_shot_max, flat_max and pipeline_min, each with =bytes", item)
		}
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < 0 {
			return fmt.Errorf("%q, the number of bytes must be 0 to %d", item, int64(math.MaxInt64))
		}
		*field = n
	}
	return nil
}
