package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/pending"
)

// Endpoint is a process's end of all its links.
type Endpoint struct {
	id      address.ProcessID
	address address.Address
	grace   time.Duration
	log     *slog.Logger
	onFD    func(int, bool)
	poller  *Poller
	verbs   *verbsEnd       // nil where there is no RDMA port to use
	ctx     context.Context // ends with the endpoint
	cancel  context.CancelFunc

	listening
	spawned

	mu sync.Mutex // guards what follows, but for loops
	groupTable
	linkTable
	liveness
	closed  bool
	failure error               // after an internal error
	logged  map[string]struct{} // remote addresses whose refusal has been logged

	loops sync.Mutex // held while two local ranks attach to each other
}

// listening is where peers come in.
type listening struct {
	listeners  []*listener
	deaf       sync.Once    // the listeners have been closed
	congestion string       // the system's own choice of a TCP congestion control
	pending    pending.List // whose handshakes are under way
}

// spawned counts the goroutines of an endpoint, and those that dial: none starts once Close waits
// for them.
type spawned struct {
	life    sync.Mutex // guards ended, and running before that is set
	ended   bool
	running sync.WaitGroup
}

// groupTable holds an endpoint's groups and services, under Endpoint.mu.
type groupTable struct {
	groups    map[rankKey]*Group
	gone      map[rankKey]uint32 // detached, with the epoch
	goneOrder []rankKey          // the oldest first
	changed   chan struct{}      // closed and made anew when a group comes or goes

	services map[uint64]*service // that answer calls, by id
}

// liveness holds what an endpoint knows of whether its peers live, under Endpoint.mu.
type liveness struct {
	hosts    map[hostKey]*hostPulse // joined by TCP
	watching bool                   // a goroutine looks at them
	// those that are proved to have ended, of members of the groups; others are forgotten some time
	dead      map[address.ProcessID]bool
	processes map[address.ProcessID]*process // of this host that are held
	// what processes of this host tell each other; it may be nil, and does not change
	sightings Sightings
}

// linkTable holds an endpoint's links, under Endpoint.mu.
type linkTable struct {
	peers map[peerKey]*peer  // to which links are made or used
	links map[*link]struct{} // all that have not ended
}

// rankKey names a local rank of a group.
type rankKey struct {
	job, group uint64
	rank       int
}

// peerKey names what at most one link goes to.
type peerKey struct {
	process address.ProcessID
	kind    string
}

// peer is the link to a process, or the making of it.
type peer struct {
	link *link
	dial *attempt
}

type listener struct {
	net.Listener
	kind string
	fd   int
}

// Listen opens a process's end.
func Listen(c Config) (*Endpoint, error) {
	if c.Grace < 0 {
		return nil, fmt.Errorf("liveness grace of %v: it must be positive, or 0 for %v", c.Grace,
			defaultGrace)
	}
	if c.Grace == 0 {
		c.Grace = defaultGrace
	}
	e := &Endpoint{
		id: newProcessID(), grace: c.Grace, log: c.Logger, onFD: c.OnFD,
		listening: listening{pending: pending.List{Most: maxHandshakes}},
		groupTable: groupTable{groups: map[rankKey]*Group{}, gone: map[rankKey]uint32{},
			changed: make(chan struct{}), services: map[uint64]*service{}},
		linkTable: linkTable{peers: map[peerKey]*peer{}, links: map[*link]struct{}{}},
		liveness: liveness{hosts: map[hostKey]*hostPulse{}, dead: map[address.ProcessID]bool{},
			processes: map[address.ProcessID]*process{}, sightings: c.Sightings},
		logged: map[string]struct{}{},
	}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	e.log = logs.For(e.log, logs.Net)
	if e.onFD == nil {
		e.onFD = func(int, bool) {}
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	var err error
	if e.poller, err = newPoller(e); err != nil {
		return nil, err
	}
	name, err := os.Hostname()
	if err != nil {
		name = "unknown"
	}
	e.address = address.Address{Process: e.id, Name: name, Mark: c.Mark, Life: c.Life}
	addCredentials(&e.address)
	if err := e.listenTCP(c); err != nil {
		e.closeListeners()
		_ = e.poller.close(nil)
		return nil, err
	}
	e.listenUnix()
	e.findPort(c)
	for _, l := range e.listeners {
		e.spawn("listener", func() { e.accept(l) })
	}
	return e, nil
}

func (e *Endpoint) warnf(format string, args ...any) { e.log.Warn(fmt.Sprintf(format, args...)) }

// Poller reads the endpoint's links.
func (e *Endpoint) Poller() *Poller { return e.poller }

// Address is what peers need to know. It does not change.
func (e *Endpoint) Address() address.Address { return e.address }

// Congestion names the TCP congestion control between hosts; "" where the system does not tell.
func (e *Endpoint) Congestion() string { return e.congestion }

func (e *Endpoint) listenTCP(c Config) error {
	addrs, err := listenAddrs(c.Interface, c.StoreHost)
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	lc.SetMultipathTCP(false) // liveness reads plain TCP's state
	lc.KeepAliveConfig = e.keepAlive()
	lc.Control = func(network, address string, c syscall.RawConn) error {
		c.Control(func(fd uintptr) { e.congestion = congestionOf(int(fd)) })
		return unpaced(network, address, c) // what is accepted inherits it
	}
	var last error
	for _, a := range addrs {
		l, err := lc.Listen(context.Background(), "tcp", netip.AddrPortFrom(a, 0).String())
		if err != nil {
			last = err
			continue
		}
		e.addListener(l, address.TCP)
		e.address.TCP = append(e.address.TCP, l.Addr().String())
	}
	if len(e.address.TCP) == 0 {
		return fmt.Errorf("cannot listen on TCP: %w; name another interface by GOCCL_SOCKET_IFNAME",
			last)
	}
	return nil
}

const reno = "reno"

// unpaced, as the Control of a net.Dialer or net.ListenConfig, is for connections within a host,
// where no network can be congested. Bbr would pace what is sent, and long messages take 1.2 to 1.6
// times as long; reno, which every kernel has, and allows unless it was told otherwise, sends what
// the peer has room for. A connection that was made with bbr would go on pacing with any other.
func unpaced(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		if strings.HasPrefix(congestionOf(int(fd)), "bbr") {
			_ = setCongestion(int(fd), reno)
		}
	})
}

// paceAgain gives an accepted connection from another host what the listener had before.
func (e *Endpoint) paceAgain(s *conn) {
	if congestionOf(s.fd) != reno || e.congestion == reno {
		return
	}
	if err := setCongestion(s.fd, e.congestion); err != nil {
		e.warnf("a connection keeps to congestion control %s instead of %s: %v", reno, e.congestion,
			err)
	}
}

// congestionOf is the TCP congestion control of a socket, "" where it cannot be told.
func congestionOf(fd int) string {
	name, _ := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	return name
}

func setCongestion(fd int, name string) error {
	return unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
}

// withinHost tells whether both ends of an accepted connection have the same address.
func withinHost(c net.Conn) bool {
	local, ok1 := c.LocalAddr().(*net.TCPAddr)
	remote, ok2 := c.RemoteAddr().(*net.TCPAddr)
	return ok1 && ok2 && local.IP.Equal(remote.IP)
}

func (e *Endpoint) listenUnix() {
	host, err := hostIdentity()
	if err != nil {
		// An id of one's own means: no process shares this host.
		e.address.Host = e.id.String()
		e.address.ShmProblem = fmt.Sprintf(
			"it cannot tell which host it is on: %v; show it that file in its sandbox, or use transport "+
				"\"tcp\"", err)
		return
	}
	e.address.Host = host
	if e.address.ShmProblem = checkShm(); e.address.ShmProblem != "" {
		return
	}
	name := e.id.Socket()
	l, err := net.Listen("unix", name)
	if err != nil {
		e.address.ShmProblem = fmt.Sprintf("cannot listen on an abstract Unix socket: %v; "+
			"allow it in the sandbox profile of the container, or use transport \"tcp\"", err)
		return
	}
	e.addListener(l, address.Shm)
	e.address.Unix = name
}

func (e *Endpoint) addListener(l net.Listener, kind string) {
	fd := -1
	if raw, err := l.(syscall.Conn).SyscallConn(); err == nil {
		raw.Control(func(f uintptr) { fd = int(f) })
	}
	e.onFD(fd, true)
	e.listeners = append(e.listeners, &listener{l, kind, fd})
}

func (e *Endpoint) closeListeners() {
	e.deaf.Do(func() {
		for _, l := range e.listeners {
			e.onFD(l.fd, false)
			l.Close()
		}
	})
}

// enter has Close wait until running is done once more. It reports false where the endpoint is
// being closed.
func (e *Endpoint) enter() bool {
	e.life.Lock()
	defer e.life.Unlock()
	if e.ended {
		return false
	}
	e.running.Add(1)
	return true
}

// spawn starts a goroutine. A panic in it fails the endpoint instead of the process. It starts
// nothing once the endpoint is being closed.
func (e *Endpoint) spawn(what string, f func()) bool {
	if !e.enter() {
		return false
	}
	go func() {
		defer e.running.Done()
		defer func() {
			if r := recover(); r != nil {
				e.broken(fmt.Errorf("internal error in %s: %v", what, r), debug.Stack())
			}
		}()
		f()
	}()
	return true
}

// broken ends all links and groups, and listens no more, after an internal error.
func (e *Endpoint) broken(err error, stack []byte) {
	e.log.Warn(err.Error(), "stack", string(stack))
	e.mu.Lock()
	if e.failure != nil {
		e.mu.Unlock()
		return
	}
	e.failure = err
	var groups []*Group
	for _, g := range e.groups {
		groups = append(groups, g)
	}
	links := e.allLinks()
	e.mu.Unlock()
	e.closeListeners() // so that peers are refused at once
	for _, l := range links {
		l.end(err)
	}
	for _, g := range groups {
		for _, m := range g.members {
			func() {
				defer func() { _ = recover() }() // a handler that has panicked may well do so again
				m.down(err)
			}()
		}
	}
}

// allLinks needs e.mu.
func (e *Endpoint) allLinks() []*link {
	l := make([]*link, 0, len(e.links))
	for k := range e.links {
		l = append(l, k)
	}
	return l
}

// linked tells whether there is a link to a member's process.
func (e *Endpoint) linked(m *member) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.peers[peerKey{m.addr.Process, m.kind}]
	return p != nil && p.link != nil
}

// refuse logs a refused connection, once a remote address.
func (e *Endpoint) refuse(from string, err error) {
	e.mu.Lock()
	_, known := e.logged[from]
	known = known || e.closed || len(e.logged) >= maxLogged
	if !known {
		e.logged[from] = struct{}{}
	}
	e.mu.Unlock()
	if !known {
		e.warnf("refused a connection from %s: %v (further ones from there are not logged)", from,
			err)
	}
}

// Attach makes a local rank a member of a group. Links are made at first use, or by the peers.
// Handler may be called before Attach returns.
func (e *Endpoint) Attach(c GroupConfig) (*Group, error) {
	g, err := newGroup(e, c)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	switch {
	case e.closed:
		err = ErrClosed
	case e.failure != nil:
		err = e.failure
	case e.groups[g.key] != nil:
		err = fmt.Errorf("rank %d of group %s is attached already", c.Rank, c.Name)
	}
	if err != nil {
		e.mu.Unlock()
		return nil, err
	}
	e.groups[g.key] = g
	e.signal()
	links := e.allLinks()
	e.mu.Unlock()
	// Attaches that peers have sent ahead are taken up by the links' readers.
	for _, l := range links {
		l.claim(g.key)
	}
	return g, nil
}

// signal wakes the goroutines that wait for a group to come or go. It needs e.mu.
func (e *Endpoint) signal() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// forgetGroup needs to be followed by goodbyes to the peers.
func (e *Endpoint) forgetGroup(g *Group) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.groups[g.key] != g {
		return
	}
	delete(e.groups, g.key)
	if _, ok := e.gone[g.key]; !ok {
		e.goneOrder = append(e.goneOrder, g.key)
	}
	e.gone[g.key] = g.epoch
	if len(e.goneOrder) > maxGone {
		delete(e.gone, e.goneOrder[0])
		e.goneOrder = e.goneOrder[1:]
	}
	e.forgetDead()
	e.signal()
}

// forgetDead forgets those that have ended and are members of no group. Of those that somebody asks
// for again there is proof again. It needs e.mu.
func (e *Endpoint) forgetDead() {
	if len(e.dead) == 0 {
		return
	}
	members := map[address.ProcessID]bool{}
	for _, g := range e.groups {
		for _, m := range g.members {
			if m != nil {
				members[m.addr.Process] = true
			}
		}
	}
	maps.DeleteFunc(e.dead, func(p address.ProcessID, _ bool) bool { return !members[p] })
}

// find looks a local rank up: it is here, or has left (at this epoch or later), or has not come
// yet, and then wait is closed when that may have changed.
func (e *Endpoint) find(k rankKey, epoch uint32) (g *Group, left bool, wait chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if g := e.groups[k]; g != nil {
		if g.epoch == epoch {
			return g, false, nil
		}
		return nil, g.epoch > epoch, e.changed
	}
	last, left := e.gone[k]
	return nil, left && last >= epoch, e.changed
}

// Close ends all groups (peers are told BYE), links and goroutines, within a second, or, where an
// adapter has to send again what a peer has not acknowledged, when it has or gives up, or after the
// liveness grace. No handler is called after it. It must not be called by a handler.
func (e *Endpoint) Close() error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	var groups []*Group
	for _, g := range e.groups {
		groups = append(groups, g)
	}
	e.mu.Unlock()
	for _, g := range groups {
		g.Detach()
	}
	e.cancel()
	e.mu.Lock()
	links := e.allLinks()
	e.mu.Unlock()
	// Each link says its goodbyes, closes its sending half, and reads on until the peer does the
	// same: closing a TCP socket that holds unread data would destroy goodbyes on their way.
	e.poller.StartProgress()
	for _, l := range links {
		l.retire(true)
	}
	awaitGoodbyes(links, max(closeFlush, e.grace))
	// not sooner: a peer that hears nothing asks there whether this process is alive
	e.closeListeners()
	for _, l := range links {
		l.end(ErrClosed)
	}
	e.closePIDFDs()
	e.poller.end()
	e.life.Lock()
	e.ended = true
	e.life.Unlock()
	all := make(chan struct{})
	go func() { e.running.Wait(); close(all) }()
	t := time.NewTimer(closeWait)
	defer t.Stop()
	select {
	case <-all:
		return errors.Join(e.poller.close(t.C), e.verbs.close())
	case <-t.C:
		go func() {
			<-all
			_ = errors.Join(e.poller.close(nil), e.verbs.close()) // the caller has gone
		}()
		return errors.New("transport: a goroutine did not end in time: a handler blocks")
	}
}

// awaitGoodbyes waits until links have ended, or until nothing has been on its way for closeFlush,
// but no longer than limit.
func awaitGoodbyes(links []*link, limit time.Duration) {
	const looks = 8
	t := time.NewTicker(closeFlush / looks)
	defer t.Stop()
	until := time.Now().Add(limit)
	for left := looks; len(links) > 0; {
		select {
		case <-links[0].done:
			links = links[1:]
		case <-t.C:
			left--
			if slices.ContainsFunc(links, (*link).delivers) {
				left = looks
			}
			if left == 0 || time.Now().After(until) {
				return
			}
		}
	}
}

// accept takes connections in until the listener is closed.
func (e *Endpoint) accept(l *listener) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // descriptors have run out, or the peer has gone: the next may do
			if sleep(e.ctx, 50*time.Millisecond) != nil {
				return
			}
			continue
		}
		s := e.newConn(c)
		if l.kind == address.TCP && !withinHost(c) {
			e.paceAgain(s)
		}
		g := e.pending.Enter(e.ctx)
		if !e.spawn("handshake", func() { e.welcome(g, s, l.kind) }) {
			g.Close()
			s.Close()
		}
	}
}
