// Package msccl reads algorithms of MSCCL, as XML: those that MSCCLang, SCCL, TACCL and TE-CCL
// print.
//
// A block sends to one rank and receives from one, over a channel. What it sends waits in a queue
// for the block there that receives. So the reader gives each message memory of its own at the
// receiver.
package msccl

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/program"
	"github.com/goccl/goccl/core/program/blocks"
	"github.com/goccl/goccl/core/program/internal/scan"
)

// Read reads an algorithm from the text of a file, and makes a program of it. It refuses one that
// is wrong: see [blocks.Convert].
func Read(text []byte) (program.Program, error) {
	p, err := Parse(text)
	if err != nil {
		return program.Program{}, err
	}
	return blocks.Convert(p)
}

// Parse reads an algorithm as it is.
func Parse(text []byte) (*blocks.Plan, error) {
	if err := scan.Check(text); err != nil {
		return nil, err
	}
	f := file{Decoder: xml.NewDecoder(bytes.NewReader(text))}
	if err := f.read(); err != nil {
		line, column := f.InputPos()
		return nil, fmt.Errorf("line %d, column %d: %w", line, column, err)
	}
	return f.plan()
}

const mostSteps = 1 << 18

// file is what a text says.
type file struct {
	*xml.Decoder
	name, collective string
	ranks, chunks    int
	inPlace          bool
	least, most      int64
	gpus             []gpu
	steps            int
}

type gpu struct {
	scratch int
	blocks  []block
}

type block struct {
	send, recv, channel int
	steps               []step
	awaited             map[int]bool // which steps others wait for
}

type step struct {
	kind                 string
	src, dst             string // buffers
	srcOff, dstOff       int
	count                int
	dependBlock, depends int // -1: on none
}

// element reads the next element that begins in the present one; nil: that ends.
func (f *file) element(name string) (*xml.StartElement, error) {
	for {
		t, err := f.Token()
		switch {
		case errors.Is(err, io.EOF) && name == "algo":
			return nil, errors.New("there is no algo")
		case err != nil:
			return nil, fmt.Errorf("not XML: %w", err)
		}
		switch t := t.(type) {
		case xml.StartElement:
			if t.Name.Local != name {
				return nil, fmt.Errorf("%q must be here, not %q", name, t.Name.Local)
			}
			return &t, nil
		case xml.EndElement:
			return nil, nil
		case xml.CharData:
			if len(bytes.TrimSpace(t)) > 0 {
				return nil, errors.New("there is text, where only elements may be")
			}
		case xml.Directive:
			return nil, errors.New("there is a directive, which is not allowed")
		}
	}
}

// attributes reads those of an element, none of which may come twice. Fields that are not known are
// passed over.
func attributes(e *xml.StartElement, required []string, numbers map[string]*int,
	texts map[string]*string,
) error {
	seen := map[string]bool{}
	for _, a := range e.Attr {
		name := a.Name.Local
		if seen[name] {
			return fmt.Errorf("%q comes twice", name)
		}
		seen[name] = true
		if to := texts[name]; to != nil {
			*to = a.Value
		}
		if to := numbers[name]; to != nil {
			n, err := strconv.ParseInt(a.Value, 10, 64)
			if err != nil || n < -1 || n > scan.MostNumber {
				return fmt.Errorf("%s is %q; it must be a whole number in -1..2^53", name, a.Value)
			}
			*to = int(n)
		}
	}
	for _, name := range required {
		if !seen[name] {
			return fmt.Errorf("%s of %s is missing", name, e.Name.Local)
		}
	}
	return nil
}

func (f *file) read() error {
	e, err := f.element("algo")
	if err != nil {
		return err
	}
	protocol, inPlace, least, most := "Simple", 0, 0, 0
	if err := attributes(e, []string{"name", "nchunksperloop", "ngpus", "coll"}, map[string]*int{
		"nchunksperloop": &f.chunks, "ngpus": &f.ranks, "inplace": &inPlace, "minBytes": &least,
		"maxBytes": &most,
	}, map[string]*string{"name": &f.name, "coll": &f.collective, "proto": &protocol}); err != nil {
		return err
	}
	if protocol != "Simple" && protocol != "LL" && protocol != "LL128" {
		return fmt.Errorf("proto is %q; it must be Simple, LL or LL128", protocol)
	}
	if f.ranks < 1 || f.ranks > program.MostRanks || f.chunks < 1 || f.chunks > program.MostChunks {
		return fmt.Errorf("ngpus is %d and nchunksperloop %d; they must be in 1..%d and 1..%d", f.ranks,
			f.chunks, program.MostRanks, program.MostChunks)
	}
	f.inPlace, f.least, f.most = inPlace == 1, int64(max(least, 0)), int64(max(most, 0))
	if f.most > 0 && f.most < f.least {
		return fmt.Errorf("maxBytes is %d; it must be no less than minBytes, which is %d", f.most,
			f.least)
	}
	for {
		e, err := f.element("gpu")
		if err != nil {
			return err
		}
		if e == nil {
			break
		}
		if err := f.gpu(e); err != nil {
			return err
		}
	}
	if len(f.gpus) != f.ranks {
		return fmt.Errorf("there are %d gpus, and ngpus is %d", len(f.gpus), f.ranks)
	}
	for {
		t, err := f.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("not XML: %w", err)
		}
		switch t := t.(type) {
		case xml.Comment:
		case xml.CharData:
			if len(bytes.TrimSpace(t)) > 0 {
				return errors.New("something follows the end of the algo")
			}
		default:
			return errors.New("something follows the end of the algo")
		}
	}
}

func (f *file) gpu(e *xml.StartElement) error {
	g := gpu{}
	id := 0
	numbers := map[string]*int{"id": &id, "s_chunks": &g.scratch}
	if err := attributes(e, []string{"id"}, numbers, nil); err != nil {
		return err
	}
	if id != len(f.gpus) {
		return fmt.Errorf("the id of the gpu is %d; it must be %d, as gpus are in the order of ranks", id,
			len(f.gpus))
	}
	for {
		e, err := f.element("tb")
		if err != nil {
			return err
		}
		if e == nil {
			break
		}
		b := block{send: -1, recv: -1, awaited: map[int]bool{}}
		if err := attributes(e, []string{"id"}, map[string]*int{"id": &id, "send": &b.send,
			"recv": &b.recv, "chan": &b.channel}, nil); err != nil {
			return err
		}
		if id != len(g.blocks) {
			return fmt.Errorf("the id of the tb is %d; it must be %d, as blocks are in their order", id,
				len(g.blocks))
		}
		for _, peer := range []int{b.send, b.recv} {
			if peer >= f.ranks || peer == len(f.gpus) {
				return fmt.Errorf("a tb of rank %d sends to rank %d and receives from %d; they must be "+
					"others, of 0 to %d, or -1", len(f.gpus), b.send, b.recv, f.ranks-1)
			}
		}
		if err := f.block(&b); err != nil {
			return err
		}
		g.blocks = append(g.blocks, b)
	}
	for _, b := range g.blocks {
		for _, s := range b.steps {
			if s.dependBlock >= len(g.blocks) ||
				s.dependBlock >= 0 && (s.depends < 0 || s.depends >= len(g.blocks[s.dependBlock].steps)) {
				return fmt.Errorf("a step of the gpu waits for step %d of block %d, which is not there",
					s.depends, s.dependBlock)
			}
			if s.dependBlock >= 0 {
				g.blocks[s.dependBlock].awaited[s.depends] = true
			}
		}
	}
	f.gpus = append(f.gpus, g)
	return nil
}

func (f *file) block(b *block) error {
	for {
		e, err := f.element("step")
		if err != nil || e == nil {
			return err
		}
		if f.steps++; f.steps > mostSteps {
			return fmt.Errorf("there are more than %d steps", mostSteps)
		}
		s := step{dependBlock: -1, depends: -1, count: 1}
		number := 0
		if err := attributes(e, []string{"s", "type"}, map[string]*int{"s": &number,
			"srcoff": &s.srcOff, "dstoff": &s.dstOff, "cnt": &s.count, "depid": &s.dependBlock,
			"deps": &s.depends}, map[string]*string{"type": &s.kind, "srcbuf": &s.src, "dstbuf": &s.dst},
		); err != nil {
			return err
		}
		if number != len(b.steps) {
			return fmt.Errorf("the step is number %d; it must be %d, as steps are in their order", number,
				len(b.steps))
		}
		b.steps = append(b.steps, s)
		if e, err := f.element("nothing"); err != nil || e != nil {
			return err
		}
	}
}

// does is what a kind of step does.
type does struct {
	receives, sends, reads, writes bool
	again                          bool // it reads what it writes
}

var kinds = map[string]does{
	"nop":  {},
	"s":    {sends: true, reads: true},
	"r":    {receives: true, writes: true},
	"cpy":  {reads: true, writes: true},
	"re":   {reads: true, writes: true, again: true},
	"rcs":  {receives: true, sends: true, writes: true},
	"rrc":  {receives: true, reads: true, writes: true},
	"rrs":  {receives: true, sends: true, reads: true},
	"rrcs": {receives: true, sends: true, reads: true, writes: true},
}

// queue is a channel from a rank to another. Of each message it has the length, and where it lies.
type queue struct {
	counts, places   []int
	sender, receiver int // blocks; -1: none
	received         int
	counter          int
}

type queueKey struct{ from, to, channel int }

// queues finds all, and gives their messages memory.
func (f *file) queues(p *blocks.Plan) (map[queueKey]*queue, error) {
	all := map[queueKey]*queue{}
	used := make([]int, f.ranks)
	get := func(k queueKey) *queue {
		if all[k] == nil {
			all[k] = &queue{sender: -1, receiver: -1, counter: len(p.Counters)}
			p.Counters = append(p.Counters, blocks.Counter{
				Name: fmt.Sprintf("channel %d from rank %d to rank %d", k.channel, k.from, k.to)})
		}
		return all[k]
	}
	for rank := range f.gpus {
		for i := range f.gpus[rank].blocks {
			b := &f.gpus[rank].blocks[i]
			for n := range b.steps {
				s := &b.steps[n]
				does, ok := kinds[s.kind]
				where := fmt.Sprintf("rank %d, block %d, op %d (%s)", rank, i, n, s.kind)
				switch {
				case !ok:
					return nil, fmt.Errorf("%s: there is no such type", where)
				case does.sends && b.send < 0, does.receives && b.recv < 0:
					return nil, fmt.Errorf("%s: the block sends to rank %d and receives from rank %d", where,
						b.send, b.recv)
				case s.kind != "nop" && (s.count < 1 || s.count > program.MostChunks):
					return nil, fmt.Errorf("%s: cnt is %d; it must be in 1..%d", where, s.count,
						program.MostChunks)
				}
				if does.sends {
					q := get(queueKey{rank, b.send, b.channel})
					if q.sender >= 0 && q.sender != i {
						return nil, fmt.Errorf("%s: block %d sends over the same channel; one only may", where,
							q.sender)
					}
					q.sender = i
					q.counts, q.places = append(q.counts, s.count), append(q.places, used[b.send])
					if used[b.send] += s.count; used[b.send] > program.MostChunks {
						return nil, fmt.Errorf("%s: up to here rank %d is sent more than %d chunks", where, b.send,
							program.MostChunks)
					}
					p.Mail = max(p.Mail, used[b.send])
				}
				if does.receives {
					q := get(queueKey{b.recv, rank, b.channel})
					if q.receiver >= 0 && q.receiver != i {
						return nil, fmt.Errorf("%s: block %d receives over the same channel; one only may", where,
							q.receiver)
					}
					q.receiver = i
				}
			}
		}
	}
	return all, nil
}

// plan makes of the file what its blocks do.
func (f *file) plan() (*blocks.Plan, error) {
	p := &blocks.Plan{Name: f.name, Ranks: f.ranks, In: f.chunks, Out: f.chunks, InPlace: f.inPlace,
		MinBytes: f.least, MaxBytes: f.most}
	divided := 1
	switch f.collective {
	case "allreduce":
		p.Collective = plan.AllReduce
	case "alltoall":
		p.Collective = plan.AllToAll
	case "allgather":
		p.Collective = plan.AllGather
		divided, p.In = f.ranks, f.chunks/f.ranks
	case "reduce_scatter", "reducescatter":
		p.Collective = plan.ReduceScatter
		divided, p.Out = f.ranks, f.chunks/f.ranks
	case "custom":
		p.Collective = plan.Custom
	default:
		return nil, fmt.Errorf("coll is %q; it must be allreduce, allgather, reduce_scatter, alltoall "+
			"or custom", f.collective)
	}
	if f.chunks%divided != 0 {
		return nil, fmt.Errorf("nchunksperloop is %d; of %s it must be a multiple of ngpus, which is %d",
			f.chunks, f.collective, f.ranks)
	}
	for _, g := range f.gpus {
		p.Scratch = max(p.Scratch, g.scratch)
	}
	queues, err := f.queues(p)
	if err != nil {
		return nil, err
	}
	// Blocks are those of all ranks: the first one of each rank.
	first := make([]int, f.ranks)
	for rank := 1; rank < f.ranks; rank++ {
		first[rank] = first[rank-1] + len(f.gpus[rank-1].blocks)
	}
	// Messages are received in the order in which they are sent.
	sent := map[*queue]int{}
	for rank := range f.gpus {
		for i := range f.gpus[rank].blocks {
			b := &f.gpus[rank].blocks[i]
			to := blocks.Block{Rank: rank, ID: i}
			for n := range b.steps {
				op, err := b.op(rank, n, first[rank], queues, sent)
				if err != nil {
					return nil, fmt.Errorf("rank %d, block %d, op %d (%s): %w", rank, i, n, b.steps[n].kind, err)
				}
				to.Ops = append(to.Ops, op)
			}
			b.fuse(&to)
			p.Blocks = append(p.Blocks, to)
		}
	}
	return p, nil
}

var spaces = map[string]program.Space{"i": program.Input, "o": program.Output, "s": program.Scratch}

// op is what a step does.
func (b *block) op(rank, n, first int, queues map[queueKey]*queue, sent map[*queue]int,
) (blocks.Op, error) {
	s, does := &b.steps[n], kinds[b.steps[n].kind]
	op := blocks.Op{Name: s.kind, Number: n}
	if s.dependBlock >= 0 {
		op.After = []blocks.Point{{Block: first + s.dependBlock, Op: s.depends}}
	}
	place := func(buffer string, off int) (blocks.Ref, error) {
		space, ok := spaces[buffer]
		if !ok {
			return blocks.Ref{}, fmt.Errorf("there is no buffer %q; there are i, o and s", buffer)
		}
		return blocks.Ref{Place: program.Place{Rank: rank, Space: space, Chunk: off, Count: s.count}}, nil
	}
	message := func(to int, q *queue, k int) blocks.Ref {
		return blocks.Ref{Place: program.Place{Rank: to, Space: blocks.Mail, Chunk: q.places[k],
			Count: s.count}}
	}
	t := blocks.Transfer{}
	if does.reads {
		at, err := place(s.src, s.srcOff)
		if err != nil {
			return op, err
		}
		t.From = append(t.From, at)
	}
	if does.writes {
		at, err := place(s.dst, s.dstOff)
		if err != nil {
			return op, err
		}
		t.To = append(t.To, at)
		if does.again {
			t.From = append(t.From, at)
		}
	}
	if does.receives {
		q := queues[queueKey{b.recv, rank, b.channel}]
		k := q.received
		if k >= len(q.counts) {
			return op, fmt.Errorf("receives message %d from rank %d, which sends %d", k, b.recv,
				len(q.counts))
		}
		if q.counts[k] != s.count {
			return op, fmt.Errorf("receives %d chunks, where rank %d sends %d", s.count, b.recv, q.counts[k])
		}
		q.received++
		t.From = append(t.From, message(rank, q, k))
		op.Takes = []int{q.counter}
	}
	if does.sends {
		q := queues[queueKey{rank, b.send, b.channel}]
		t.To = append(t.To, message(b.send, q, sent[q]))
		sent[q]++
		op.Posts = []int{q.counter}
	}
	if len(t.To) > 0 {
		op.Transfers = []blocks.Transfer{t}
	}
	return op, nil
}

// fuse makes one reduction of those in succession that add to the same place, as nothing waits for
// any but the last. So its operands can be summed in the order of ranks.
func (b *block) fuse(to *blocks.Block) {
	last := -1
	for n := range to.Ops {
		op := &to.Ops[n]
		if op.Name == "nop" {
			continue
		}
		if op.Name != "re" {
			last = -1
			continue
		}
		if last >= 0 && !b.awaited[last] && to.Ops[last].Transfers[0].To[0] == op.Transfers[0].To[0] {
			before := &to.Ops[last]
			from := before.Transfers[0].From
			own := op.Transfers[0].From
			op.Transfers[0].From = append(from[:len(from):len(from)], own[0])
			before.Transfers = nil
		}
		last = n
	}
}
