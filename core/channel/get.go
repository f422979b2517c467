package channel

import (
	"encoding/binary"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/work"
)

// get is a get over a link that has not ended.
type get struct {
	channel *Channel
	to      []byte
	moved   uint64
	busy    bool    // a piece is being read into to
	over    bool    // nobody wants it any more: what comes goes nowhere
	held    *Memory // that has to; nil: its user sees to that
}

// request asks for memory of the peer over the link. With held it holds that until it has come.
func (c *Channel) request(m *Memory, offset uint64, to []byte, held *Memory, l *limit) error {
	const call = "get"
	if len(to) == 0 {
		return nil
	}
	e := c.e
	p := &e.peers[c.peer]
	var number uint64
	begin := func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		if number != 0 || c.cause != nil {
			return true
		}
		if p.asking >= mostGets {
			return false
		}
		p.asking++
		c.gets.begun++
		e.lastGet++
		number = e.lastGet
		e.gets[number] = &get{channel: c, to: to, held: held}
		if held != nil {
			e.Memories.holdOn(held)
		}
		return true
	}
	for !begin() {
		if !e.bring(c, l.until, begin) {
			return c.late(call, l.most, "the peer has not answered to the gets before")
		}
	}
	if number == 0 {
		return c.ended(call, e.causeOf(c))
	}
	e.mu.Lock()
	h := transport.Header{Type: frameGet, Seq: c.theirs, Arg: [2]uint64{uint64(m.id), offset}}
	e.mu.Unlock()
	about := binary.LittleEndian.AppendUint64(nil, number)
	about = binary.LittleEndian.AppendUint64(about, uint64(len(to)))
	if err := c.post(call, h, l, about); err != nil {
		e.mu.Lock()
		if g := e.gets[number]; g != nil {
			g.over = true
			if !g.busy {
				e.endGet(number)
			}
		}
		e.mu.Unlock()
		return err
	}
	return nil
}

// endGet ends a get for which a flush need not wait. It is called with mu held.
func (e *Engine) endGet(number uint64) {
	if g := e.gets[number]; g != nil {
		g.channel.gets.ended++
		e.dropGet(number)
	}
}

// dropGet forgets a get. It is called with mu held.
func (e *Engine) dropGet(number uint64) {
	if g := e.gets[number]; g != nil {
		delete(e.gets, number)
		e.peers[g.channel.peer].asking--
		if g.held != nil {
			e.Memories.let(g.held)
		}
	}
}

// dropGets lets gets go that nobody wants any more. The peer answers them all the same: until then
// they count as asked for. It is called with mu held.
func (e *Engine) dropGets(which func(*get) bool) {
	for _, g := range e.gets {
		g.over = g.over || which(g)
	}
}

// endGets is dropGets for those that are not answered any more.
func (e *Engine) endGets(which func(*get) bool) {
	e.dropGets(which)
	for number, g := range e.gets {
		if which(g) && !g.busy {
			e.dropGet(number)
		}
	}
}

// pieceOver tells that a piece of a get, of so many bytes, is not read any more.
func (e *Engine) pieceOver(number uint64, g *get, bytes uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	g.busy = false
	g.moved += uint64(bytes)
	switch {
	case g.moved == uint64(len(g.to)):
		e.endGet(number)
	case e.failure != nil || e.gone[g.channel.peer] != nil:
		e.dropGet(number)
	}
	g.channel.changed.tell()
}

// noGet takes the answer to a get whose memory is no more.
func (e *Engine) noGet(src int, number uint64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.gets[number]
	if number == 0 || number > e.lastGet || g != nil && g.channel.peer != src {
		return violation("it has no memory for get %d", number)
	}
	if g != nil && g.over {
		e.endGet(number)
	} else if g != nil {
		g.channel.lost.add(loss{err: g.channel.errorf(fault.ErrInvalidHandle, "flush", "what was to be "+
			"got is not here: its owner had deregistered the memory")}, g.channel.flushes.ended)
		e.endGet(number)
		g.channel.changed.tell()
	}
	return nil
}

// asked takes a GET: a goroutine answers those of a peer one after the other.
func (e *Engine) asked(src int, h transport.Header, payload []byte) error {
	if len(payload) != 16 {
		return violation("a get that says %d bytes of itself", len(payload))
	}
	e.mu.Lock()
	_, err := e.endOf(src, h.Seq)
	e.mu.Unlock()
	if err != nil {
		return err
	}
	number := binary.LittleEndian.Uint64(payload)
	bytes := binary.LittleEndian.Uint64(payload[8:])
	if bytes == 0 {
		return violation("a get of 0 bytes")
	}
	m, err := e.Memories.hold(h.Arg[0], exec.RemoteRead, h.Arg[1], bytes)
	if err != nil {
		return err
	}
	e.mu.Lock()
	p := &e.peers[src]
	idle := p.serving == 0
	p.serving++
	flooded := p.serving > 2*mostGets // one is answered before it is counted so
	e.mu.Unlock()
	if flooded {
		if m != nil {
			e.Memories.let(m)
		}
		return violation("%d gets at once, allowed are %d", 2*mostGets, mostGets)
	}
	if idle && m != nil && bytes <= shortGet && e.serveAtOnce(src, number, m, h.Arg[1], bytes) {
		return nil
	}
	p.served.Do(func() { e.serve(src, number, m, h.Arg[1], bytes) })
	return nil
}

// shortGet is the most bytes of a get that the reader of the link answers itself, and of the last
// piece of another one.
const shortGet = 16 << 10

// serveAtOnce answers a get if the link takes the answer now, and no other is before it.
func (e *Engine) serveAtOnce(src int, number uint64, m *Memory, offset, bytes uint64) bool {
	answer := e.images.Take(int(bytes))
	defer e.images.Give(&answer)
	copy(answer, m.memory()[offset:])
	h := transport.Header{Type: transport.Data, Flags: gotData, Seq: number}
	if m.closed.Load() || !e.links.TrySend(src, h, answer) {
		return false
	}
	e.Memories.let(m)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.peers[src].serving--
	return true
}

// serve answers a get. A peer that takes nothing in is given up on: its own call tells it.
func (e *Engine) serve(src int, number uint64, m *Memory, offset, bytes uint64) {
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.peers[src].serving--
	}()
	ctx := work.WithDeadline(e.Context, exec.Later(exec.Now(), e.face.Timeout()))
	defer ctx.End()
	if m == nil {
		_ = e.links.Send(ctx, src, transport.Header{Type: frameNoGet, Seq: number})
		return
	}
	defer e.Memories.let(m)
	from := m.memory()[offset:][:bytes]
	head := func(moved int) transport.Header {
		return transport.Header{Type: transport.Data, Flags: gotData, Seq: number,
			Arg: [2]uint64{uint64(moved)}}
	}
	moved := 0
	for len(from)-moved > shortGet {
		piece := from[moved:][:min(len(from)-moved-shortGet, pieceMost)]
		if e.send(ctx, src, head(moved), e.lend(src, piece, number), piece) != nil {
			return
		}
		moved += len(piece)
	}
	// Memory that is deregistered may be freed at once, and is no answer then. What is copied, or
	// read by the peer, before that is.
	last := e.images.Take(len(from) - moved)
	defer e.images.Give(&last)
	copy(last, from[moved:])
	if !e.awaitRead(ctx, src, number) {
		return
	}
	if m.closed.Load() {
		_ = e.links.Send(ctx, src, transport.Header{Type: frameNoGet, Seq: number})
		return
	}
	_ = e.links.Send(ctx, src, head(moved), last) // an error means that the peer's call has one
}

// slotOfGet is Slot for a piece of what this rank has asked for.
func (e *Engine) slotOfGet(src int, h transport.Header) ([]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.gets[h.Seq]
	if g == nil && h.Seq != 0 && h.Seq <= e.lastGet { // nobody wants it any more
		e.peers[src].coming = coming{}
		return make([]byte, h.Bytes), nil
	}
	if g == nil || g.channel.peer != src || h.Arg[0] != g.moved || h.Bytes == 0 ||
		uint64(h.Bytes) > uint64(len(g.to))-g.moved {
		return nil, violation("%d bytes from %d on of get %d, which did not ask for them", h.Bytes,
			h.Arg[0], h.Seq)
	}
	e.peers[src].coming = coming{get: g, number: h.Seq}
	if g.over {
		return make([]byte, h.Bytes), nil
	}
	g.busy = true
	return g.to[g.moved:][:h.Bytes], nil
}
