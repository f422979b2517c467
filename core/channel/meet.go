package channel

import (
	"encoding/binary"
	"math"
	"unsafe"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/serial"
	"github.com/goccl/goccl/core/transport"
)

// Open opens this rank's end of a channel: of a kind, or of the best that there is (""). It waits
// for nobody. Callers may choose tags up to 2^31 - 1; those behind are [WindowTag].
func (e *Engine) Open(rank, tag int, kind string) (*Channel, error) {
	if err := e.refuse(rank, tag, kind); err != nil {
		return nil, err
	}
	c := &Channel{e: e, peer: rank, tag: tag, forced: kind == KindPort,
		background: background{triggers: serial.Queue{Spawn: e.Spawn}}}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.mayOpen(c); err != nil {
		return nil, err
	}
	if err := e.furnish(c); err != nil {
		return nil, fault.Errorf(fault.ErrSystem, "channel_open: %v", err)
	}
	e.lastID++
	c.id = e.lastID
	e.ends[c.id], e.handles[c.Handle()] = c, c
	p := &e.peers[rank]
	p.reached.Store(true)
	if rank == e.Rank {
		c.met, c.target = true, e.Memories.Owner
		e.queue(c).open = c
		c.end.Meet(e.Memories.Owner, c.semaphore)
		return c, nil
	}
	q := e.queue(c)
	q.open = c
	if len(q.theirs) > 0 {
		first := q.theirs[0]
		q.theirs = q.theirs[1:]
		p.waiting--
		delete(p.tags, first.id)
		e.pair(c, first)
	} else {
		q.own = append(q.own, c)
		e.unmet++
	}
	h := transport.Header{Type: frameOpen, Seq: c.id,
		Arg: [2]uint64{uint64(tag), e.placeOf(c.semaphore)}}
	if c.forced {
		h.Flags = openPort
	}
	e.tell(rank, h, ownerText(e.Memories.Owner))
	return c, nil
}

// refuse returns why a channel is not opened, whatever there is.
func (e *Engine) refuse(rank, tag int, kind string) error {
	bad := func(format string, args ...any) error {
		return fault.Errorf(fault.ErrInvalidArgument, "channel_open: "+format, args...).In(e.Members)
	}
	switch {
	case rank < 0 || rank >= len(e.Ports):
		return bad("peer is %d, allowed are 0 to %d", rank, len(e.Ports)-1)
	case tag < 0 || tag > math.MaxUint32:
		return bad("tag is %d, allowed are 0 to %d", tag, math.MaxInt32)
	case kind != "" && kind != KindMemory && kind != KindPort:
		return bad("kind is %q, allowed are %q, %q and none", kind, KindMemory, KindPort)
	case kind == KindMemory && e.Ports[rank]:
		return fault.Errorf(fault.ErrUnsupported, "channel_open: kind is %q, and %s shares no memory "+
			"with this one", kind, e.Members.Names(rank)).In(e.Members)
	case kind == KindPort && rank == e.Rank:
		return fault.Errorf(fault.ErrUnsupported, "channel_open: kind is %q, and peer is this rank, to "+
			"which there is no link", kind).In(e.Members)
	}
	return nil
}

// mayOpen is called with mu held.
func (e *Engine) mayOpen(c *Channel) error {
	switch {
	case e.failure != nil:
		return c.ended("open", e.failure)
	case e.gone[c.peer] != nil:
		return c.ended("open", e.gone[c.peer])
	case max(len(e.ends), e.unmet) >= MostChannels:
		return fault.Errorf(fault.ErrInvalidArgument, "channel_open: %d channels are open, or closed "+
			"and their peers have not opened theirs, which is the most", MostChannels).In(e.Members)
	}
	if q := e.pairings[pairing{c.peer, c.tag}]; q != nil && q.open != nil {
		return fault.Errorf(fault.ErrInvalidArgument, "channel_open: tag is %d, by which this rank has "+
			"a channel to %s open; allowed are other tags, and this one when it is closed", c.tag%windowTags,
			e.Members.Names(c.peer)).In(e.Members)
	}
	return nil
}

// furnish makes a channel's end. It is called with mu held.
func (e *Engine) furnish(c *Channel) (err error) {
	if e.arena == nil {
		if e.arena, err = e.Memories.Arenas.Acquire(); err != nil {
			return err
		}
	}
	if c.semaphore, err = e.arena.Alloc(exec.SemaphoreBytes); err != nil {
		return err
	}
	if c.end, err = exec.NewChannelEnd(c.semaphore, e.Waiting); err != nil {
		_ = e.arena.Free(c.semaphore) // it has just been allocated
	}
	return err
}

// placeOf returns where memory lies in this process's arena.
func (e *Engine) placeOf(p unsafe.Pointer) uint64 {
	return uint64(uintptr(p) - uintptr(unsafe.Pointer(unsafe.SliceData(e.arena.Memory()))))
}

// queue returns the pairing of a channel. It is called with mu held.
func (e *Engine) queue(c *Channel) *queue {
	key := pairing{c.peer, c.tag}
	if e.pairings[key] == nil {
		e.pairings[key] = &queue{}
	}
	return e.pairings[key]
}

// forget drops a pairing of which nothing is left. It is called with mu held.
func (e *Engine) forget(rank, tag int) {
	key := pairing{rank, tag}
	if q := e.pairings[key]; q != nil && q.open == nil && len(q.own)+len(q.theirs) == 0 {
		delete(e.pairings, key)
	}
}

// pair joins an end of this rank and one of a peer. It is called with mu held.
func (e *Engine) pair(c *Channel, o opened) {
	c.met, c.theirs = true, o.id
	if o.closed {
		e.endHeld(c, e.closedBy(c.peer))
		return
	}
	e.theirs[end{c.peer, o.id}] = c
	if c.cause != nil {
		return
	}
	c.target = o.owner
	semaphore := e.semaphoreOf(c, o)
	c.oneSided = semaphore == nil && !c.forced && !o.port && !e.Ports[c.peer]
	c.end.Meet(o.owner, semaphore)
	if c.end.State() == exec.ChannelPort && e.Reader != nil && !e.Local[c.peer] {
		c.attended = true
		e.Reader.Attend(1)
	}
	c.changed.tell()
	e.kick()
}

// semaphoreOf returns where the semaphore of a peer is mapped; nil: the channel is a port channel.
func (e *Engine) semaphoreOf(c *Channel, o opened) unsafe.Pointer {
	if c.forced || o.port || e.Ports[c.peer] {
		return nil
	}
	arena, release, ok := e.face.HoldArena(c.peer)
	if !ok {
		return nil
	}
	release() // the epoch maps it until Free
	if o.semaphore%exec.SemaphoreBytes != 0 || o.semaphore > uint64(len(arena))-exec.SemaphoreBytes ||
		len(arena) < exec.SemaphoreBytes {
		return nil
	}
	return unsafe.Pointer(&arena[o.semaphore])
}

// closedBy is the cause of the end of a channel that its peer has closed.
func (e *Engine) closedBy(rank int) *fault.Error {
	return fault.Errorf(fault.ErrAborted, "%s has closed its end", e.Members.Names(rank)).
		In(e.Members).Blaming(rank)
}

// opened takes an OPEN.
func (e *Engine) opened(src int, h transport.Header, payload []byte) error {
	if h.Arg[0] > math.MaxUint32 || h.Seq == 0 || h.Flags > openPort || len(payload) != 8 {
		return violation("it has opened end %d with tag %d", h.Seq, h.Arg[0])
	}
	o := opened{id: h.Seq, owner: binary.LittleEndian.Uint64(payload), semaphore: h.Arg[1],
		port: h.Flags == openPort}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failure != nil {
		return nil
	}
	p := &e.peers[src]
	if o.id <= p.lastOpened {
		return violation("it has opened end %d, and end %d before", o.id, p.lastOpened)
	}
	if p.waiting >= MostChannels {
		return violation("it has opened %d ends that nobody has met", p.waiting)
	}
	p.lastOpened = o.id
	key := pairing{src, int(h.Arg[0])}
	q := e.pairings[key]
	if q == nil {
		q = &queue{}
		e.pairings[key] = q
	}
	if len(q.own) == 0 {
		q.theirs = append(q.theirs, o)
		p.waiting++
		if p.tags == nil {
			p.tags = map[uint64]int{}
		}
		p.tags[o.id] = key.tag
		return nil
	}
	c := q.own[0]
	q.own = q.own[1:]
	e.unmet--
	e.pair(c, o)
	e.forget(src, key.tag)
	return nil
}

// closedByPeer takes a CLOSE.
func (e *Engine) closedByPeer(src int, id uint64) error {
	answer := e.answer(src, transport.Header{Type: frameClosed, Seq: id})
	e.mu.Lock()
	if c := e.theirs[end{src, id}]; c != nil {
		delete(e.theirs, end{src, id})
		e.endHeld(c, e.closedBy(src))
		e.dropGets(func(g *get) bool { return g.channel == c })
		e.mu.Unlock()
		e.kick()
		e.settle(answer)
		return nil
	}
	defer e.mu.Unlock()
	p := &e.peers[src]
	tag, ok := p.tags[id]
	if !ok {
		if e.failure != nil {
			return nil
		}
		return violation("it has closed end %d, which it has not opened", id)
	}
	delete(p.tags, id)
	for i := range e.pairings[pairing{src, tag}].theirs {
		if o := &e.pairings[pairing{src, tag}].theirs[i]; o.id == id {
			o.closed = true
		}
	}
	answer()
	return nil
}

// closeAnswered takes a CLOSED: the peer stores no signals of a channel any more.
func (e *Engine) closeAnswered(src int, id uint64) error {
	e.mu.Lock()
	c := e.ends[id]
	if c == nil || c.peer != src || !c.closed || c.acked {
		e.mu.Unlock()
		return violation("it answers to the end of %d, which it was not told", id)
	}
	c.acked = true
	e.mu.Unlock()
	e.release(c)
	return nil
}
