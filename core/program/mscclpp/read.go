// Package mscclpp reads execution plans of MSCCL++, as JSON: those that its language prints today,
// and those of its versions 0.5 to 0.7. They are told apart by the name inputChunks.
package mscclpp

import (
	"errors"
	"fmt"
	"math"

	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/program"
	"github.com/goccl/goccl/core/program/blocks"
	"github.com/goccl/goccl/core/program/internal/scan"
)

// Read reads a plan from the text of a file, and makes a program of it. It refuses a plan that is
// wrong: see [blocks.Convert].
func Read(text []byte) (program.Program, error) {
	p, err := Parse(text)
	if err != nil {
		return program.Program{}, err
	}
	return blocks.Convert(p)
}

// Parse reads a plan as it is.
func Parse(text []byte) (*blocks.Plan, error) {
	if err := scan.Check(text); err != nil {
		return nil, err
	}
	f := file{Scanner: scan.New(text)}
	err := f.read()
	if err == nil {
		err = f.End()
	}
	if err != nil {
		return nil, f.Where(err)
	}
	return f.plan()
}

// Limits of what is kept of a text.
const (
	mostItems = 1 << 16 // of a list
	mostOps   = 1 << 18
	mostAll   = 1 << 20 // items of all lists
)

// file is what a text says. Both schemas are read into the same.
type file struct {
	*scan.Scanner
	name, collective, protocol string
	inPlace, double, old       bool
	least, most                uint64
	gpus                       []gpu
	ops, all                   int // so far
}

type gpu struct {
	id               int
	in, out, scratch int
	blocks           []block
	channels         []channel
	buffers          []buffer
	semaphores       []int
}

// channel is an entry of a rank's list of channels.
type channel struct {
	kind     string
	buffer   string // of a switch
	peers    []int
	groups   [][]int // of a switch
	src, dst string  // of the older schema
}

// buffer is one of another rank.
type buffer struct {
	rank int
	kind string
}

type block struct {
	id       int
	ops      []op
	channels []list
	buffers  []list
}

// list is which channels, or buffers, of its rank a block has of a kind.
type list struct {
	kind, src, dst string
	ids            []int
}

// op is one of a block.
type op struct {
	name, kind      string
	channels        []int
	src, dst        []ref
	reduce          string
	part, parts     int
	barrier, blocks int
	semaphores      []int
	unit, chunks    int
	piped           bool
	body            []op
	number, depth   int
	old             *oldOp // nil: it has nothing of that
}

// oldOp is what an op has of the older schema alone: of its sources first, then of its
// destinations.
type oldOp struct {
	ends   [2][]end  // over channels
	keys   [2]string // of which channels
	places [2][]ref
	place  [2]ref
	has    [2]bool // place
	count  int
}

// end is a place at the other end of a channel.
type end struct{ id, off int }

// ref is chunks of a buffer.
type ref struct {
	kind          string // of a local buffer; "": it is another
	remote, multi int    // from 1: which
	index, count  int
}

func (f *file) read() error {
	f.most = math.MaxUint64
	seen := ""
	return f.Object([]string{"name", "protocol", "gpus"}, func(name string) (bool, error) {
		switch name {
		case "name":
			return true, f.String(&f.name)
		case "collective", "colletive": // as 0.5 wrote it
			if seen != "" {
				return true, fmt.Errorf("there is %q, too", seen)
			}
			seen = name
			return true, f.String(&f.collective)
		case "protocol":
			return true, f.oneOf(&f.protocol, "Simple", "LL")
		case "inplace":
			return true, f.Bool(&f.inPlace)
		case "use_double_scratch_buffer":
			return true, f.Bool(&f.double)
		case "min_message_size":
			return true, f.size(&f.least)
		case "max_message_size":
			return true, f.size(&f.most)
		case "gpus":
			return true, f.items(program.MostRanks, func() error {
				f.gpus = append(f.gpus, gpu{})
				return f.gpu(&f.gpus[len(f.gpus)-1])
			})
		}
		return true, f.Skip()
	})
}

// oneOf reads one of some words.
func (f *file) oneOf(to *string, words ...string) error {
	if err := f.String(to); err != nil {
		return err
	}
	for _, w := range words {
		if w == *to {
			return nil
		}
	}
	return fmt.Errorf("it is %q; it must be one of %q", *to, words)
}

// size reads a number of bytes, which may be as long as a word.
func (f *file) size(to *uint64) error {
	t, err := f.Next()
	if err != nil {
		return err
	}
	if _, err := fmt.Sscanf(fmt.Sprint(t), "%d", to); err != nil || fmt.Sprint(t) != fmt.Sprint(*to) {
		return fmt.Errorf("a whole number in 0..2^64-1 must be here, not %v", t)
	}
	return nil
}

// items reads an array of so many items at most.
func (f *file) items(most int, item func() error) error {
	return f.Array(func(i int) error {
		if i >= most {
			return fmt.Errorf("there are more than %d items", most)
		}
		if f.all++; f.all > mostAll {
			return fmt.Errorf("up to here there are more than %d items", mostAll)
		}
		return item()
	})
}

// numbers reads an array of numbers.
func (f *file) numbers(to *[]int) error {
	return f.items(mostItems, func() error {
		n := 0
		err := f.index(&n)
		*to = append(*to, n)
		return err
	})
}

// index reads a number that is no more than any index may be.
func (f *file) index(to *int) error {
	err := f.Number(to, false)
	if err == nil && *to > math.MaxInt32 {
		err = fmt.Errorf("the number is %d; it must be at most 2^31-1", *to)
	}
	return err
}

func (f *file) gpu(g *gpu) error {
	required := []string{"id", "threadblocks", "channels"}
	err := f.Object(required, func(name string) (bool, error) {
		switch name {
		case "id":
			return true, f.index(&g.id)
		case "inputChunks", "outputChunks", "scratchChunks":
			f.old = true
		}
		switch name {
		case "input_chunks", "inputChunks":
			return true, f.index(&g.in)
		case "output_chunks", "outputChunks":
			return true, f.index(&g.out)
		case "scratch_chunks", "scratchChunks":
			return true, f.index(&g.scratch)
		case "threadblocks":
			return true, f.items(mostItems, func() error {
				g.blocks = append(g.blocks, block{})
				return f.block(&g.blocks[len(g.blocks)-1])
			})
		case "channels":
			return true, f.items(mostItems, func() error {
				g.channels = append(g.channels, channel{})
				return f.channel(&g.channels[len(g.channels)-1])
			})
		case "remote_buffers":
			return true, f.items(mostItems, func() error {
				g.buffers = append(g.buffers, buffer{})
				b := &g.buffers[len(g.buffers)-1]
				return f.Object([]string{"rank", "type"}, func(name string) (bool, error) {
					switch name {
					case "rank":
						return true, f.index(&b.rank)
					case "type":
						return true, f.oneOf(&b.kind, "i", "o", "s")
					case "access_channel_types":
						return true, f.Skip()
					}
					return false, nil
				})
			})
		case "semaphores":
			return true, f.items(mostItems, func() error {
				g.semaphores = append(g.semaphores, 0)
				return f.Object([]string{"init_value"}, func(name string) (bool, error) {
					return name == "init_value", f.index(&g.semaphores[len(g.semaphores)-1])
				})
			})
		}
		return true, f.Skip()
	})
	if err == nil && g.id != len(f.gpus)-1 {
		err = fmt.Errorf("the id is %d; it must be %d, as gpus are in the order of ranks", g.id,
			len(f.gpus)-1)
	}
	return err
}

var kinds = []string{"memory", "port", "switch", "sm", "proxy", "nvls", "none"}

func (f *file) channel(c *channel) error {
	return f.Object(nil, func(name string) (bool, error) {
		switch name {
		case "channel_type", "type":
			return true, f.kind(&c.kind)
		case "buffer_type", "buff":
			return true, f.oneOf(&c.buffer, "i", "o", "s")
		case "connected_to", "connectedTo":
			return true, f.numbers(&c.peers)
		case "srcbuff":
			return true, f.String(&c.src)
		case "dstbuff":
			return true, f.String(&c.dst)
		case "rank_groups", "rankGroups":
			return true, f.items(mostItems, func() error {
				var ranks []int
				err := f.Object([]string{"ranks"}, func(name string) (bool, error) {
					switch name {
					case "size":
						return true, f.Skip()
					case "ranks":
						return true, f.numbers(&ranks)
					}
					return false, nil
				})
				c.groups = append(c.groups, ranks)
				return err
			})
		}
		return false, nil
	})
}

// kind reads the kind of a channel, by the name that it has today.
func (f *file) kind(to *string) error {
	if err := f.oneOf(to, kinds...); err != nil {
		return err
	}
	if today, ok := map[string]string{"sm": "memory", "proxy": "port", "nvls": "switch"}[*to]; ok {
		*to = today
	}
	return nil
}

func (f *file) block(b *block) error {
	return f.Object([]string{"id", "ops"}, func(name string) (bool, error) {
		switch name {
		case "id":
			return true, f.index(&b.id)
		case "ops":
			return true, f.opList(&b.ops, 0)
		case "channels", "remote_buffer_refs":
			to := &b.channels
			if name != "channels" {
				to = &b.buffers
			}
			return true, f.items(mostItems, func() error {
				l := list{}
				err := f.Object(nil, func(name string) (bool, error) {
					switch name {
					case "channel_type", "access_channel_type", "ctype":
						return true, f.kind(&l.kind)
					case "src":
						return true, f.String(&l.src)
					case "dst":
						return true, f.String(&l.dst)
					case "buff":
						return true, f.Skip()
					case "channel_ids", "remote_buffer_ids", "cids":
						return true, f.numbers(&l.ids)
					}
					return false, nil
				})
				*to = append(*to, l)
				return err
			})
		}
		return true, f.Skip()
	})
}

func (f *file) opList(to *[]op, depth int) error {
	return f.items(mostOps, func() error {
		if f.ops++; f.ops > mostOps {
			return fmt.Errorf("there are more than %d ops", mostOps)
		}
		o := op{number: len(*to), depth: depth}
		err := f.op(&o)
		*to = append(*to, o)
		return err
	})
}

func (f *file) op(o *op) error {
	return f.Object([]string{"name"}, func(name string) (bool, error) {
		switch name {
		case "name":
			return true, f.String(&o.name)
		case "channel_type", "ctype":
			return true, f.kind(&o.kind)
		case "channel_ids":
			return true, f.numbers(&o.channels)
		case "src_buff":
			return true, f.refs(&o.src)
		case "dst_buff":
			return true, f.refs(&o.dst)
		case "reduce_op":
			return true, f.oneOf(&o.reduce, "sum", "min", "max")
		case "tbg_info":
			return true, f.Object([]string{"tb_id", "tbg_size"}, func(name string) (bool, error) {
				to, ok := map[string]*int{"tb_id": &o.part, "tbg_size": &o.parts}[name]
				if !ok {
					return false, nil
				}
				return true, f.index(to)
			})
		case "barrier_id":
			return true, f.index(&o.barrier)
		case "num_threadblocks", "nthread_blocks":
			return true, f.index(&o.blocks)
		case "semaphore_ids":
			return true, f.numbers(&o.semaphores)
		case "iter_context":
			o.piped = true
			return true, f.Object([]string{"unit_size", "num_chunks"}, func(name string) (bool, error) {
				to, ok := map[string]*int{"unit_size": &o.unit, "num_chunks": &o.chunks}[name]
				if !ok {
					return false, nil
				}
				return true, f.index(to)
			})
		case "ops":
			if o.depth > 0 {
				return true, errors.New("pipelines must not lie in each other")
			}
			return true, f.opList(&o.body, 1)
		}
		return f.oldField(o, name)
	})
}

// refs reads an array of places.
func (f *file) refs(to *[]ref) error {
	return f.items(mostItems, func() error {
		r := ref{}
		kinds := 0
		err := f.Object([]string{"index", "size"}, func(name string) (bool, error) {
			switch name {
			case "type":
				kinds++
				return true, f.oneOf(&r.kind, "i", "o", "s")
			case "buffer_id":
				kinds++
				err := f.index(&r.remote)
				r.remote++
				return true, err
			case "switch_channel_id":
				kinds++
				err := f.index(&r.multi)
				r.multi++
				return true, err
			case "index":
				return true, f.index(&r.index)
			case "size":
				return true, f.index(&r.count)
			}
			return false, nil
		})
		if err == nil && kinds != 1 {
			err = errors.New("a place must have one of type, buffer_id and switch_channel_id")
		}
		*to = append(*to, r)
		return err
	})
}

// plan makes of the file what its blocks do.
func (f *file) plan() (*blocks.Plan, error) {
	if len(f.gpus) == 0 {
		return nil, errors.New("there are no gpus")
	}
	first := &f.gpus[0]
	p := &blocks.Plan{Name: f.name, Ranks: len(f.gpus), In: first.in, Out: first.out,
		Scratch: first.scratch, InPlace: f.inPlace, Double: f.double}
	if f.old {
		p.Double = f.protocol == "LL" // as its versions have it
	}
	c, ok := map[string]plan.Collective{"allreduce": plan.AllReduce, "allgather": plan.AllGather,
		"reducescatter": plan.ReduceScatter, "alltoall": plan.AllToAll, "sendrecv": plan.Custom,
		"test": plan.Custom}[f.collective]
	if !ok {
		return nil, fmt.Errorf("collective is %q; it must be allreduce, allgather, reducescatter, "+
			"alltoall, sendrecv or test", f.collective)
	}
	p.Collective, p.Exchange = c, f.collective == "sendrecv"
	for i := range f.gpus {
		g := &f.gpus[i]
		if g.in != first.in || g.out != first.out {
			return nil, fmt.Errorf("rank %d has %d input chunks and %d output chunks, and rank 0 has %d "+
				"and %d; all must have as many", g.id, g.in, g.out, first.in, first.out)
		}
		p.Scratch = max(p.Scratch, g.scratch)
	}
	if p.In > program.MostChunks || p.Out > program.MostChunks {
		return nil, fmt.Errorf("there are %d input chunks and %d output chunks; at most %d are allowed",
			p.In, p.Out, program.MostChunks)
	}
	f.derive(p)
	if f.least > 1<<53 {
		return nil, fmt.Errorf("min_message_size is %d; it must be at most 2^53", f.least)
	}
	if p.MinBytes = int64(f.least); f.most <= 1<<53 {
		if p.MaxBytes = int64(f.most); f.most < max(f.least, 1) {
			return nil, fmt.Errorf("max_message_size is %d; it must be at least 1, and no less than "+
				"min_message_size, which is %d", f.most, f.least)
		}
	}
	return p, f.translate(p)
}

// derive finds a number of chunks that is not given, as in place one may be.
func (f *file) derive(p *blocks.Plan) {
	if p.In > 0 == (p.Out > 0) || p.Collective == plan.Custom {
		return
	}
	in, out := 1, 1
	switch p.Collective {
	case plan.AllGather:
		out = p.Ranks
	case plan.ReduceScatter:
		in = p.Ranks
	}
	if p.In == 0 {
		p.In = p.Out / out * in
	} else {
		p.Out = p.In / in * out
	}
}
