package transport

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/goccl/goccl/core/address"
)

// Group is a local rank's membership in a communicator.
type Group struct {
	e       *Endpoint
	key     rankKey
	epoch   uint32
	secret  []byte
	name    string  // for texts
	handler Handler // guarded by gate; stays the same while a call is inside
	share   []int   // descriptors
	stopped unsafe.Pointer
	members []*member // by rank; nil for this rank
	ctx     context.Context
	cancel  context.CancelFunc
	inbox   inbox
	halted  atomic.Bool // no more Data frames
	failed  atomic.Pointer[notice]

	gate   sync.Mutex    // guards what follows; closed may be read without it
	closed atomic.Bool   // Detach has been called: the handler is called no more
	inside int           // calls of the handler
	empty  chan struct{} // made by who waits for the calls to end; closed by the last one
}

// notice is a frame for all ranks, also for those that attach later.
type notice struct {
	h       Header
	payload []byte
}

func newGroup(e *Endpoint, c GroupConfig) (*Group, error) {
	n := len(c.Peers)
	switch {
	case c.Rank < 0 || c.Rank >= n:
		return nil, fmt.Errorf("rank %d of a group of %d: allowed are 0 to %d", c.Rank, n, n-1)
	case len(c.Kinds) != n:
		return nil, fmt.Errorf("%d kinds of link for %d ranks", len(c.Kinds), n)
	case len(c.Secret) < 16:
		return nil, fmt.Errorf("a secret of %d bytes: at least 16 are needed", len(c.Secret))
	case c.Handler == nil:
		return nil, errors.New("a group needs a handler")
	case c.Peers[c.Rank].Process != e.id:
		return nil, fmt.Errorf("the address of rank %d is not that of this endpoint", c.Rank)
	}
	g := &Group{
		e: e, key: rankKey{c.Job, c.Group, c.Rank}, epoch: c.Epoch,
		secret: append([]byte(nil), c.Secret...),
		name:   c.Name, handler: c.Handler, share: c.Share, stopped: c.Stopped,
		members: make([]*member, n),
	}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	for r, k := range c.Kinds {
		if r == c.Rank {
			continue
		}
		a := c.Peers[r]
		ok := false
		switch k {
		case address.Mem:
			ok = a.Process == e.id
		case address.Shm:
			ok = a.Process != e.id && a.Unix != ""
		case address.TCP, address.Verbs:
			ok = a.Process != e.id && len(a.Reachable(&e.address)) > 0 &&
				(k == address.TCP || e.verbs != nil)
		}
		if !ok {
			return nil, fmt.Errorf("rank %d (%s) cannot be joined by %q", r, a.Who(), k)
		}
		g.members[r] = &member{g: g, rank: r, addr: a, kind: k, changed: make(chan struct{})}
	}
	return g, nil
}

func (g *Group) member(rank int) (*member, error) {
	if rank < 0 || rank >= len(g.members) || g.members[rank] == nil {
		return nil, fmt.Errorf("rank %d is not a peer of rank %d in a group of %d", rank,
			g.key.rank, len(g.members))
	}
	return g.members[rank], nil
}

// Connected tells whether frames can be sent to a rank at once.
func (g *Group) Connected(rank int) bool {
	m, err := g.member(rank)
	return err == nil && m.ready.Load() != nil
}

// Kind names what joins this rank to another: where TCP stands in for verbs, once they are
// connected, TCP.
func (g *Group) Kind(rank int) string {
	m, err := g.member(rank)
	if err != nil {
		return ""
	}
	if r := m.ready.Load(); r != nil && r.link != nil {
		return r.link.wire.kind()
	}
	return m.kind
}

// Connect makes sure that there is a link to a rank's process and that both sides have attached to
// each other over it; the handler has been told then. Either side may call first, or both. Where
// the peer's process is stopped or late, it waits until the context ends.
func (g *Group) Connect(ctx context.Context, rank int) error {
	m, err := g.member(rank)
	if err != nil {
		return err
	}
	_, err = m.connect(ctx, 0)
	return err
}

// Meet is Connect where the peer calls it, too: one of the two dials, and the other waits a moment
// before it does.
func (g *Group) Meet(ctx context.Context, rank int) error {
	m, err := g.member(rank)
	if err != nil {
		return err
	}
	wait := meetDelay
	if dialsFirst(g.key.rank, rank, len(g.members)) {
		wait = 0
	}
	_, err = m.connect(ctx, wait)
	return err
}

// dialsFirst tells which of two ranks that meet dials: the one that the other follows within half
// of the group, so that each dials half of its peers.
func dialsFirst(rank, peer, size int) bool {
	there, back := (peer-rank+size)%size, (rank-peer+size)%size
	return there < back || there == back && rank < peer
}

// Send sends a frame to a rank, which is connected first if it is not. It returns when the
// payload's memory may be reused: when it is written, or when the context ends. A frame that was
// begun by then is finished by a goroutine, and Send returns nil; an error means that nothing of it
// is sent. Frames of one sender arrive in order.
func (g *Group) Send(ctx context.Context, rank int, h Header, payload ...[]byte) error {
	_, err := g.send(ctx, rank, h, payload, manner{})
	return err
}

// SendReading is Send for the holder of the token of the endpoint's poller.
func (g *Group) SendReading(ctx context.Context, rank int, h Header, payload ...[]byte) error {
	_, err := g.send(ctx, rank, h, payload, manner{reading: true})
	return err
}

// Advertise sends a Data frame whose last piece of the payload may stay where it is, for the peer
// to read by itself (RDMA READ): in memory that VerbsConfig.Memory knows, over verbs. Advertised
// tells whether it is so: then its memory may be reused when Handler.Acked has been called, which
// may be before Advertise returns; or the group is left, or fails. Reading says whether the caller
// holds the token of the endpoint's poller.
func (g *Group) Advertise(ctx context.Context, reading bool, rank int, h Header,
	payload ...[]byte) (advertised bool, err error) {
	return g.send(ctx, rank, h, payload, manner{reading: reading, advertise: true})
}

// Advertises tells whether Advertise may leave a payload where it is that is this memory.
func (g *Group) Advertises(rank int, payload []byte) bool {
	m, err := g.member(rank)
	if err != nil {
		return false
	}
	r := m.ready.Load()
	return r != nil && r.link != nil && r.link.advertises(g, payload)
}

// TrySend sends a frame to a rank if that takes no waiting. It tells whether it did, or the link
// has ended. Handlers may call it.
func (g *Group) TrySend(rank int, h Header, payload ...[]byte) bool {
	m, err := g.member(rank)
	if err != nil || g.fill(&h, m, payload) != nil {
		return false
	}
	r := m.ready.Load()
	return r != nil && r.link != nil && r.link.trySend(g, &h, payload)
}

// Pump reads what has come over the link to a rank, if there is one. The caller holds the token of
// the endpoint's poller.
func (g *Group) Pump(rank int) {
	m, err := g.member(rank)
	if err != nil {
		return
	}
	if r := m.ready.Load(); r != nil && r.link != nil {
		r.link.pump()
	}
}

// manner is how a frame is sent.
type manner struct {
	reading   bool // by the holder of the poller's token
	advertise bool // the last piece of its payload may be advertised
}

func (g *Group) send(ctx context.Context, rank int, h Header, payload [][]byte,
	how manner) (advertised bool, err error) {
	m, err := g.member(rank)
	if err != nil {
		return false, err
	}
	if err := g.fill(&h, m, payload); err != nil {
		return false, err
	}
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	r := m.ready.Load()
	if r == nil {
		if r, err = m.connect(ctx, 0); err != nil {
			return false, err
		}
	}
	if r.local != nil {
		return false, r.local.inbox.send(ctx, r.local,
			item{kind: itemFrame, src: g.key.rank, h: h, payload: join(payload)})
	}
	advertised, err = r.link.send(ctx, g, &h, payload, how)
	if err == errLinkEnded {
		// The link's reader knows best why it has ended.
		if err := r.link.await(ctx, nil, how.reading); err != errLinkEnded {
			return false, err
		}
		m.mu.Lock()
		err = m.err
		m.mu.Unlock()
		if err == nil {
			err = m.text(ErrClosed)
		}
	}
	return advertised, err
}

func join(parts [][]byte) []byte {
	var b []byte
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

// fill completes a header and checks it.
func (g *Group) fill(h *Header, m *member, payload [][]byte) error {
	n := uint64(0)
	for _, p := range payload {
		n += uint64(len(p))
	}
	most := uint64(MaxControl)
	switch {
	case h.Type == Data:
		most = MaxData
	case h.Type < ControlBase:
		return fmt.Errorf("frame type %d: allowed are %d (data) and %d to 255", h.Type, Data,
			ControlBase)
	}
	if n > most {
		return fmt.Errorf("a frame of type %d with %d bytes: at most %d are allowed", h.Type, n,
			most)
	}
	h.Bytes, h.Job, h.Group, h.Epoch = uint32(n), g.key.job, g.key.group, g.epoch
	h.Src, h.Dst = uint32(g.key.rank), uint32(m.rank)
	return nil
}

// Broadcast sends a control frame to all ranks that are attached now. It never blocks: a peer that
// takes nothing in may miss it. It comes after what has been sent before.
func (g *Group) Broadcast(h Header, payload []byte) {
	payload = append([]byte(nil), payload...)
	for _, m := range g.members {
		if m != nil {
			g.post(m, h, payload)
		}
	}
}

// Fail is Broadcast, and says the same to ranks that attach later: the group has failed.
func (g *Group) Fail(h Header, payload []byte) {
	g.failed.Store(&notice{h, append([]byte(nil), payload...)})
	g.Broadcast(h, payload)
}

// repeatNotice comes when a rank has attached: Fail has found it attached, or this finds the
// notice.
func (g *Group) repeatNotice(m *member) {
	if f := g.failed.Load(); f != nil {
		g.post(m, f.h, f.payload)
	}
}

// Repeat says what Fail has said to those of some ranks that are not attached, and connects to them
// first. It does nothing where Fail has not been called, and returns once all have been told, or
// when the context ends.
func (g *Group) Repeat(ctx context.Context, ranks []int) {
	f := g.failed.Load()
	if f == nil {
		return
	}
	var wg sync.WaitGroup
	for _, rank := range ranks {
		if !g.Connected(rank) {
			// An error means that the rank has ended, or cannot be told in time.
			wg.Go(func() { _ = g.Send(ctx, rank, f.h, f.payload) })
		}
	}
	wg.Wait()
}

// Notify sends a control frame to one rank, in the manner of Broadcast. It reports whether the rank
// is attached, or lost. Handlers may call it.
func (g *Group) Notify(rank int, h Header, payload []byte) (attached bool) {
	m, err := g.member(rank)
	return err == nil && g.post(m, h, payload)
}

// post reports whether the member is attached, or lost.
func (g *Group) post(m *member, h Header, payload []byte) bool {
	if h.Type < ControlBase || g.leaving() || g.fill(&h, m, [][]byte{payload}) != nil {
		return true
	}
	// Not the route: this side's attach may still be queued while the peer's frames come in
	// already, and an answer to one of those must go out.
	m.mu.Lock()
	err, l, r := m.err, m.in, m.ready.Load()
	if l != m.out {
		l = nil
	}
	m.mu.Unlock()
	switch {
	case err != nil:
	case l != nil:
		l.mu.Lock()
		// A goodbye ends what this group may say: it is queued under the same lock.
		if l.outs[pairKey{h.Job, h.Group, h.Src, h.Dst}] == m {
			l.enqueueLocked(queued{h: h, payload: payload})
		}
		l.mu.Unlock()
	case r != nil:
		r.local.inbox.post(r.local, item{kind: itemFrame, src: g.key.rank, h: h, payload: payload},
			maxTold)
	default:
		return false
	}
	return true
}

// Halt ends the group's Data frames: those that come from now on are dropped, and one that is being
// read is left in the middle. Control frames still come. It does not wait.
func (g *Group) Halt() {
	if g.halted.Swap(true) {
		return
	}
	g.e.mu.Lock()
	links := g.e.allLinks()
	g.e.mu.Unlock()
	for _, l := range links {
		l.leaveAlone(g)
	}
}

// Detach leaves the group: peers are told, as far as they listen, and no handler method is running
// or called any more when it returns. It must not be called by a handler.
func (g *Group) Detach() {
	g.gate.Lock()
	if g.closed.Swap(true) {
		g.gate.Unlock()
		return
	}
	if g.inside > 0 && g.empty == nil {
		g.empty = make(chan struct{})
	}
	empty := g.empty
	g.gate.Unlock()
	g.cancel()
	g.e.forgetGroup(g)
	for _, m := range g.members {
		if m != nil {
			m.part()
		}
	}
	g.inbox.wake(g)
	g.Halt() // a payload may be half read whose rest does not come
	g.e.poller.Kick()
	if empty != nil {
		<-empty
	}
}

// UseHandler gives the group another handler. No method of the one before is running or called any
// more when it returns. It must not be called by a handler.
func (g *Group) UseHandler(h Handler) {
	for {
		g.gate.Lock()
		if g.inside == 0 {
			g.handler = h
			g.gate.Unlock()
			return
		}
		if g.empty == nil {
			g.empty = make(chan struct{})
		}
		empty := g.empty
		g.gate.Unlock()
		<-empty
	}
}

// enter lets a caller of the handler in, unless the group is being left.
func (g *Group) enter() bool {
	g.gate.Lock()
	defer g.gate.Unlock()
	if g.closed.Load() {
		return false
	}
	g.inside++
	return true
}

func (g *Group) exit() {
	g.gate.Lock()
	defer g.gate.Unlock()
	g.inside--
	if g.inside == 0 && g.empty != nil {
		close(g.empty)
		g.empty = nil
	}
}

// call calls the handler, unless the group is being left. It tells whether it did.
func (g *Group) call(f func(Handler)) bool {
	if !g.enter() {
		return false
	}
	defer g.exit()
	f(g.handler)
	return true
}

func (g *Group) leaving() bool { return g.closed.Load() }
