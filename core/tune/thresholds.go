package tune

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/goccl/goccl/core/plan"
)

// Thresholds are the sizes in bytes at which one way to move data gives way to another. Ranks must
// agree on all but StreamMin, SendGetMin and SendPipeMin.
type Thresholds struct {
	plan.Thresholds
	FlatMax    int64 // up to it, broadcast and reduce let the root talk to every rank itself
	StreamMin  int64 // outputs from this total on are written past the caches: see Shape.Streams
	SendGetMin int64 // a send from this length on is read by its receiver where it can be; 0: never
	// SendPipeMin is from which length on a send goes through a pipe: see Shape.Pipes; 0: never.
	SendPipeMin int64
	LongMax     int64 // the most bytes of a message with direct placement: see plan.Params.Long
	DirectMin   int64 // direct plans are tried for blocks from this length on
}

// The thresholds by kind of channel. `goccl tune` measures both sides of each at many sizes, in
// turn. These are for two ranks on two cores that share a cache, for four and eight ranks on them,
// and over TCP by the loopback interface. The curves are flat around the crossings: a factor of two
// costs a few per cent. Outputs are streamed from where they fill half of the cache that the cores
// share: what is read soon is better off in it.
var (
	memoryThresholds = Thresholds{
		Thresholds: plan.Thresholds{OneShotMax: 1 << 10, MulticastMin: 8 << 10,
			SwapMin: 4 << 10, PipelineMin: 64 << 10, GetMin: 8 << 20},
		FlatMax: 32 << 10, StreamMin: 16 << 20, SendGetMin: 8 << 20, SendPipeMin: 32 << 10,
		DirectMin: 32 << 10,
	}
	// Where a wait costs a change of threads, fewer messages are better.
	oversubscribedThresholds = Thresholds{
		Thresholds: plan.Thresholds{OneShotMax: 16 << 10, MulticastMin: 8 << 10,
			GetMin: 1 << 20},
		FlatMax: 128 << 10, StreamMin: 16 << 20, SendGetMin: 384 << 10, DirectMin: 32 << 10,
	}
	// Over a port channel a message costs more, and so does a second hop. Between hosts a window
	// keeps switches from crowds of senders, which is not measured.
	portThresholds = Thresholds{
		Thresholds: plan.Thresholds{OneShotMax: 64 << 10, WindowMin: 1 << 20, Window: 8},
		FlatMax:    64 << 10, StreamMin: 16 << 20, LongMax: 512 << 10, DirectMin: math.MaxInt64,
	}
)

// Reads are how fast ranks read each other's memory. The kernel looks up every page that it copies,
// which costs little on some CPUs, and on others several times as much as the copy.
type Reads uint8

const (
	SlowReads  Reads = iota // two copies take less time, which a rank makes through windows
	FastReads               // but not one, which a send takes where both ends copy at once
	CheapReads              // no slower than a copy
)

// ReadsAt are the reads that take so many times as long as a copy.
func ReadsAt(cost float64) Reads {
	switch {
	case cost < 1.25: // for the first and the last piece of a send only one end copies
		return CheapReads
	case cost < 2:
		return FastReads
	}
	return SlowReads
}

// thresholds are the defaults, with messages of at most chunk bytes.
func (t *Topology) thresholds(chunk int64, reads Reads) Thresholds {
	memory := memoryThresholds
	if t.Oversubscribed {
		memory = oversubscribedThresholds
	}
	if reads == SlowReads {
		memory.GetMin, memory.SendGetMin = 0, 0
	}
	if reads == FastReads && !t.Oversubscribed {
		memory.SendGetMin = 0
	}
	if !t.Ports {
		return memory
	}
	port := portThresholds
	if t.Memory { // sends within a host
		port.SendGetMin, port.SendPipeMin = memory.SendGetMin, memory.SendPipeMin
	}
	if t.MultiHost {
		if t.RDMA { // by estimates for 8 ranks: messages cost little
			port.OneShotMax = 16 << 10
		}
		return port
	}
	port.WindowMin, port.Window = 0, 0 // there is no network to be congested
	if t.Oversubscribed {              // fewer and longer messages are fewer changes of threads
		port.FlatMax, port.LongMax, port.WindowMin = 512<<10, 4<<20, manyChunks*chunk
	}
	return port
}

// Fields are those that can be set, by name.
func (t *Thresholds) Fields() map[string]*int64 {
	return map[string]*int64{
		"one_shot_max": &t.OneShotMax, "flat_max": &t.FlatMax, "multicast_min": &t.MulticastMin,
		"swap_min": &t.SwapMin, "pipeline_min": &t.PipelineMin, "window_min": &t.WindowMin,
		"get_min": &t.GetMin, "stream_min": &t.StreamMin, "send_get_min": &t.SendGetMin,
		"send_pipe_min": &t.SendPipeMin,
		"long_max":      &t.LongMax, "direct_min": &t.DirectMin,
	}
}

// String is the text that Set takes.
func (t *Thresholds) String() string {
	fields := t.Fields()
	var items []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		items = append(items, name+"="+strconv.FormatInt(*fields[name], 10))
	}
	return strings.Join(items, ",")
}

// Set changes those that a text names, such as "one_shot_max=4096,pipeline_min=0".
func (t *Thresholds) Set(text string) error {
	fields := t.Fields()
	if text == "" {
		return nil
	}
	for item := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(item, "=")
		field := fields[name]
		if field == nil {
			return fmt.Errorf("%q, allowed are one_shot_max, flat_max, multicast_min, swap_min, "+
				"pipeline_min, window_min, get_min, stream_min, send_get_min, send_pipe_min, long_max and "+
				"direct_min, each with =bytes", item)
		}
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < 0 {
			return fmt.Errorf("%q, the number of bytes must be 0 to %d", item, int64(math.MaxInt64))
		}
		*field = n
	}
	return nil
}
