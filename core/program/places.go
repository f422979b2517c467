package program

import "github.com/goccl/goccl/core/plan"

// home is the place of a chunk of a version's area.
func (e *emitter) home(v *version, index int32, w int) plan.Ref {
	win := e.windows[w]
	switch v.area {
	case inputs, outputs:
		space, of := plan.In, Input
		if v.area == outputs {
			space, of = plan.Out, Output
		}
		if e.Collective == plan.Broadcast {
			space = plan.Out // which is the root's input
		}
		if e.Collective == plan.Custom {
			off, _ := e.span(0, index, 1, win)
			return plan.Ref{Space: space, Off: off}
		}
		what, block := e.contribution(e.rank, int(index)), int32(0)
		if of == Output {
			what = e.promised(e.rank, int(index))
		}
		if e.Blocks(of) > 1 {
			block = index / int32(e.inBlock())
		}
		off, _ := e.span(what.block, what.chunk, 1, win)
		return plan.Ref{Space: space, Block: block + int32(win.set), Off: off}
	}
	slot := e.slot(v.area, index)
	if e.place == nil {
		return plan.Ref{Space: plan.Scratch, Off: int64(slot)}
	}
	group := int64(w%e.live) * e.slots * e.room()
	return plan.Ref{Space: plan.Scratch, Off: group + e.place[slot]*e.stride(w)}
}

// slot is the slot of scratch memory of a chunk of an area that lies there.
func (e *emitter) slot(a area, index int32) int {
	switch a {
	case scratch:
		return int(index)
	case shadows:
		return e.Scratch + int(index)
	}
	return e.Scratch + e.Out + int(index)
}

// use notes that chunks of an area are used.
func (e *emitter) use(a area, index, count int32) {
	if a == inputs || a == outputs {
		return
	}
	for i := range count {
		e.used[e.slot(a, index+i)] = true
	}
}

// stride is how long a slot of scratch memory is in a window.
func (e *emitter) stride(w int) int64 {
	return (e.windows[w].hi - e.windows[w].lo) * e.scale
}

// room is how long the longest slot is.
func (e *emitter) room() int64 { return (e.longest + align - 1) &^ (align - 1) }

// spareRef is the place of a slot for a while.
func (e *emitter) spareRef(slot int) plan.Ref {
	return plan.Ref{Space: plan.Scratch, Off: (int64(e.live)*e.slots + int64(slot)) * e.room()}
}

// ref is where a version lies that is not at home, from a chunk on.
func (e *emitter) ref(s *state, off int32) plan.Ref {
	bytes := int64(off) * e.stride(s.window)
	to := plan.Ref{Space: plan.Inbox, Peer: s.peer, Block: s.n}
	if s.where == inSpare {
		to = e.spareRef(s.spare)
	}
	to.Off += bytes
	return to
}

// take finds slots for a while.
func (e *emitter) take(count int) int {
	at := 0
	for i := 0; i < at+count; i++ {
		if i < len(e.spare) && e.spare[i] {
			at = i + 1
		}
	}
	for len(e.spare) < at+count {
		e.spare = append(e.spare, false)
	}
	for i := range count {
		e.spare[at+i] = true
	}
	e.spares = max(e.spares, int64(len(e.spare)))
	return at
}

// give gives them back.
func (e *emitter) give(at, count int) {
	for i := range count {
		e.spare[at+i] = false
	}
}

// pack lays out the scratch memory that is used.
func (e *emitter) pack() {
	e.place = make([]int64, len(e.used))
	for slot, used := range e.used {
		e.place[slot] = e.slots
		if used {
			e.slots++
		}
	}
}

func (e *emitter) scratchBytes() int64 {
	return (int64(e.live)*e.slots + e.spares) * e.room()
}
