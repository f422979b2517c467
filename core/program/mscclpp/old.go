package mscclpp

import (
	"fmt"

	"github.com/goccl/goccl/core/program"
	"github.com/goccl/goccl/core/program/blocks"
)

// newNames are what ops of the older schema are called today.
var newNames = map[string]string{"rs": "res", "rrc": "rre", "rrcs": "rres", "rspkt": "respkt",
	"rpkt": "repkt", "cpkt": "upkt", "tpkt": "cpkt"}

// sameNames are those of it that have the same name.
var sameNames = map[string]bool{"nop": true, "barrier": true, "put": true, "pws": true,
	"pwsf": true, "get": true, "copy": true, "signal": true, "wait": true, "flush": true, "re": true,
	"ppkt": true, "glres": true}

// oldField reads a field that only ops of the older schema have.
func (f *file) oldField(o *op, name string) (bool, error) {
	side := func(first string) int {
		if name == first {
			return 0
		}
		return 1
	}
	if o.old == nil {
		o.old = &oldOp{}
	}
	switch name {
	case "i_cids", "o_cids":
		return true, f.items(mostItems, func() error {
			e := end{}
			err := f.Object([]string{"id"}, func(name string) (bool, error) {
				switch name {
				case "id":
					return true, f.index(&e.id)
				case "off":
					return true, f.index(&e.off)
				}
				return false, nil
			})
			to := &o.old.ends[side("i_cids")]
			*to = append(*to, e)
			return err
		})
	case "i_buff", "o_buff":
		src, dst := "", ""
		err := f.Object([]string{"src", "dst"}, func(name string) (bool, error) {
			switch name {
			case "src":
				return true, f.oneOf(&src, "i", "o", "s")
			case "dst":
				return true, f.oneOf(&dst, "i", "o", "s")
			}
			return false, nil
		})
		o.old.keys[side("i_buff")] = src + dst
		return true, err
	case "srcs", "dsts":
		return true, f.items(mostItems, func() error {
			r := ref{}
			err := f.Object([]string{"buff", "off"}, func(name string) (bool, error) {
				switch name {
				case "buff":
					return true, f.oneOf(&r.kind, "i", "o", "s")
				case "off":
					return true, f.index(&r.index)
				}
				return false, nil
			})
			to := &o.old.places[side("srcs")]
			*to = append(*to, r)
			return err
		})
	case "srcbuff", "dstbuff":
		o.old.has[side("srcbuff")] = true
		return true, f.oneOf(&o.old.place[side("srcbuff")].kind, "i", "o", "s")
	case "srcoff", "dstoff":
		return true, f.index(&o.old.place[side("srcoff")].index)
	case "src", "dst", "deps": // the rank itself; and what the order of a block says, too
		return true, f.Skip()
	case "cnt":
		return true, f.index(&o.old.count)
	}
	return false, nil
}

// oldSides are the sources and destinations of an op of the older schema, and its channels. It has
// the name of today.
func (t *translator) oldSides(rank int, b *block, o *op,
) (name string, src, dst []side, ends []channelEnd, err error) {
	name = o.name
	if today, ok := newNames[name]; ok {
		name = today
	} else if !sameNames[name] {
		return name, nil, nil, nil, fmt.Errorf("there is no such op in the schema of 0.5 to 0.7")
	}
	if o.old == nil {
		return name, nil, nil, nil, nil
	}
	var sides [2][]side
	for i := range sides {
		at := blocks.Ref{Place: program.Place{Rank: rank, Count: o.old.count}}
		place := o.old.place[i]
		if o.kind == "switch" {
			if !o.old.has[i] || len(o.old.ends[i]) != 1 {
				return name, nil, nil, nil, fmt.Errorf("over a switch it must have a buffer and a channel at " +
					"either end")
			}
			n, err := t.oldPick(rank, b, "switch", place.kind+place.kind, o.old.ends[i][0].id)
			if err != nil {
				return name, nil, nil, nil, err
			}
			at.Chunk = place.index
			s, err := t.group(rank, n, at)
			if err != nil {
				return name, nil, nil, nil, err
			}
			sides[i] = []side{s}
			continue
		}
		places := o.old.places[i]
		if o.old.has[i] {
			places = append([]ref{place}, places...)
		}
		for _, p := range places {
			at.Space, at.Chunk = spaces[p.kind], p.index
			sides[i] = append(sides[i], side{[]blocks.Ref{at}, local})
		}
		for _, e := range o.old.ends[i] {
			n, err := t.oldPick(rank, b, o.kind, o.old.keys[i], e.id)
			if err != nil {
				return name, nil, nil, nil, err
			}
			c := t.gpus[rank].ends[o.kind][n]
			if name == "signal" || name == "wait" || i == 1 {
				ends = append(ends, c)
			}
			if name == "signal" || name == "wait" {
				continue
			}
			at.Rank, at.Space, at.Chunk = c.peer, spaces[o.old.keys[i][1:]], e.off
			sides[i] = append(sides[i], side{[]blocks.Ref{at}, remote})
		}
	}
	return name, sides[0], sides[1], ends, nil
}

// oldPick is the number, among those of its kind, of what a block has as its id-th channel of a
// kind between buffers.
func (t *translator) oldPick(rank int, b *block, kind, buffers string, id int) (int, error) {
	n := id
	for _, l := range b.channels {
		if l.kind != kind || l.src+l.dst != buffers {
			continue
		}
		if n >= len(l.ids) {
			n -= len(l.ids)
			continue
		}
		if all := t.gpus[rank].old[kind+" "+buffers]; l.ids[n] < len(all) {
			return all[l.ids[n]], nil
		}
		return 0, fmt.Errorf("there is no %s channel %d between buffers %q at rank %d", kind, l.ids[n],
			buffers, rank)
	}
	return 0, fmt.Errorf("there is no %s channel %d between buffers %q; the block has %d", kind, id,
		buffers, id-n)
}
