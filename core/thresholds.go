package core

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/goccl/goccl/core/plan"
)

// thresholds are the sizes at which one way gives way to another.
type thresholds struct {
	plan.Thresholds
	// streamMin is from how many bytes of outputs on they are written past the caches; see shape.streams. Ranks
	// need not agree on it.
	streamMin int64
	// sendGetMin is from how many bytes on a send is read by its receiver from where it lies, where it can be; 0: never. Ranks need
	// not agree on it.
	sendGetMin int64
	// longMax is the most bytes of a message whose receiver has posted its place; see plan.Params.Long.
	longMax int64
	// directMin is from how many bytes of a block on direct plans are tried.
	directMin int64
}

// The thresholds by kind of channel. `goccl tune` measures both sides of each at many sizes, in turn. These are for
// two ranks on two cores that share a cache, for four and eight ranks on them, over TCP by the loopback interface. The curves are flat
// around the crossings: a factor of two costs a few per cent. Outputs are streamed from where they fill half of the cache
// that the cores share: what is read soon is better off in it.
var (
	memoryThresholds = thresholds{plan.Thresholds{OneShotMax: 1 << 10, FlatMax: 32 << 10, MulticastMin: 8 << 10, SwapMin: 4 << 10, PipelineMin: 64 << 10, GetMin: 8 << 20}, 16 << 20, 8 << 20, 0, 32 << 10}
	// Where a wait costs a change of threads, fewer messages are better.
	crowdedThresholds = thresholds{plan.Thresholds{OneShotMax: 16 << 10, FlatMax: 128 << 10, MulticastMin: 8 << 10, GetMin: 1 << 20}, 16 << 20, 384 << 10, 0, 32 << 10}
	// Over a port channel a message costs more, and so does a second hop. Between hosts a window keeps switches from crowds of senders, which
	// is not measured.
	portThresholds = thresholds{plan.Thresholds{OneShotMax: 64 << 10, FlatMax: 64 << 10, WindowMin: 1 << 20, Window: 8}, 16 << 20, 0, 512 << 10, math.MaxInt64}
)

func (s site) thresholds() thresholds {
	if s.ports {
		t := portThresholds
		if !s.apart { // there is no network to be crowded
			t.WindowMin, t.Window = 0, 0
			if s.crowded { // fewer and longer messages are fewer changes of threads; see also newShape
				t.FlatMax, t.longMax = 512<<10, 4<<20
			}
		}
		if s.memory { // sends within a host
			t.sendGetMin = site{crowded: s.crowded, hugePages: s.hugePages}.thresholds().sendGetMin
		}
		return t
	}
	t := memoryThresholds
	if s.crowded {
		t = crowdedThresholds
	}
	if !s.hugePages { // two copies through a window are faster: see exec.HugePages
		t.GetMin, t.sendGetMin = 0, 0
	}
	return t
}

// fields are those that can be set, by name.
func (t *thresholds) fields() map[string]*int64 {
	return map[string]*int64{
		"one_shot_max": &t.OneShotMax, "flat_max": &t.FlatMax, "multicast_min": &t.MulticastMin,
		"swap_min": &t.SwapMin, "pipeline_min": &t.PipelineMin, "window_min": &t.WindowMin,
		"get_min": &t.GetMin, "stream_min": &t.streamMin, "send_get_min": &t.sendGetMin,
		"long_max": &t.longMax, "direct_min": &t.directMin,
	}
}

// String is the text that set takes.
func (t *thresholds) String() string {
	fields := t.fields()
	var items []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		items = append(items, name+"="+strconv.FormatInt(*fields[name], 10))
	}
	return strings.Join(items, ",")
}

// set changes those that a text names, such as "one_shot_max=4096,pipeline_min=0".
func (t *thresholds) set(text string) error {
	fields := t.fields()
	if text == "" {
		return nil
	}
	for item := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(item, "=")
		field := fields[name]
		if field == nil {
			return fmt.Errorf("%q, allowed are one_shot_max, flat_max, multicast_min, swap_min, pipeline_min, window_min, get_min, stream_min, send_get_min, long_max and direct_min, each with =bytes", item)
		}
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < 0 {
			return fmt.Errorf("%q, the number of bytes must be 0 to %d", item, int64(math.MaxInt64))
		}
		*field = n
	}
	return nil
}
