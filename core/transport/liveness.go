package transport

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/internal/errtext"
)

// Liveness over TCP. The kernel tells how long ago the peer's host has acknowledged or sent
// anything; keepalives see to it that a host which is there does so at all times. One connection of
// this process to a host sends them often, for all of them; the others send theirs rarely, in case
// their peer has ended and nothing of that has come. A host whose process is stopped with its
// buffers full may, for long, acknowledge nothing on that connection: then another one takes over.
// Keepalives work in whole seconds. Where the grace is too short for that, an idle connection to a
// host carries a ping several times in a grace: a frame that its system acknowledges. Processes of
// one host tell each other when they have heard of others: one ping is enough for all of them.
//
// Before a host is given up, its processes are dialed: the kernel of a stopped process accepts,
// that of a dead one refuses, and a host that is gone says nothing. The probing connection is kept
// while the doubt lasts, as one that carries nothing is always acknowledged.

// hostKey names what shows itself alive as a whole. Containers of one host may have addresses of
// their own, and hosts behind one address names of their own.
type hostKey struct {
	local, remote netip.Addr
	host          string
}

// hostPulse watches the connections of this process to a host.
type hostPulse struct {
	key    hostKey
	mu     sync.Mutex // guards what follows, and the pulses
	pulses []*pulse   // the first sends keepalives often
	alive  time.Time  // when the host has last shown itself, or so long must be waited
	heard  time.Time  // when it has shown itself to this process
	pinged time.Time
}

// pulse watches one TCP connection. It is guarded by hostPulse.mu but for what does not change.
type pulse struct {
	host   *hostPulse
	conn   *conn
	target string // where the peer's process listens
	who    string
	ping   func() // nil where the connection carries no frames

	stopped bool
	fail    func(error)
	probing bool
	probe   *conn
}

// watch begins to watch a connection; fail is called at most once, and not after unwatch. It
// returns nil where there is nothing to watch.
func (e *Endpoint) watch(s *conn, kind string, peer *address.Address, fail func(error)) *pulse {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.watchLocked(s, kind, peer, fail, nil)
}

// watchLocked is watch for a connection that may carry pings. It needs e.mu.
func (e *Endpoint) watchLocked(s *conn, kind string, peer *address.Address, fail func(error),
	ping func()) *pulse {
	if !address.IsPort(kind) {
		return nil
	}
	key := hostKey{addrOf(s.LocalAddr()), addrOf(s.RemoteAddr()), peer.Host}
	h := e.hosts[key]
	if h == nil {
		h = &hostPulse{key: key}
		e.hosts[key] = h
	}
	p := &pulse{host: h, conn: s, who: peer.Who(), fail: fail, ping: ping}
	for _, t := range peer.Reachable(&e.address) {
		if p.target == "" || sameHost(s.RemoteAddr(), t) {
			p.target = t
		}
	}
	h.mu.Lock()
	h.alive = time.Now()
	h.heard = h.alive
	h.pulses = append(h.pulses, p)
	if len(h.pulses) == 1 {
		s.keepAliveEvery(e.often())
	}
	h.mu.Unlock()
	if !e.watching {
		e.watching = e.spawn("liveness", e.monitor)
	}
	return p
}

// addrOf is the IP address of a TCP address; none of another.
func addrOf(a net.Addr) netip.Addr {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return t.AddrPort().Addr().Unmap()
}

func (e *Endpoint) unwatch(p *pulse) {
	if p == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	h := p.host
	h.mu.Lock()
	defer h.mu.Unlock()
	p.stopped = true
	p.dropProbe()
	first := h.pulses[0] == p
	h.pulses = slices.DeleteFunc(h.pulses, func(o *pulse) bool { return o == p })
	switch {
	case len(h.pulses) == 0:
		delete(e.hosts, h.key)
	case first:
		h.pulses[0].conn.keepAliveEvery(e.often())
	}
}

// dropProbe needs hostPulse.mu.
func (p *pulse) dropProbe() {
	if p.probe != nil {
		p.probe.Close()
		p.probe = nil
	}
}

// often is how often a host is to acknowledge something: several times in a grace.
func (e *Endpoint) often() time.Duration { return min(max(e.grace/5, time.Second), time.Hour) }

// rarely is how often those connections send keepalives to whose host another one does often.
func (e *Endpoint) rarely() time.Duration { return min(30*e.often(), 8*time.Hour) }

// keepAlive is how connections begin. The kernel's own verdict is to come after the monitor's.
func (e *Endpoint) keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: e.rarely(), Interval: e.often(),
		Count: int(min(e.grace/(e.often()/2)+4, 127))}
}

// keepAliveEvery changes how long a connection may be idle before it sends a keepalive: at once, if
// it has been for longer. Where the option is not to be had, the probe still is.
func (s *conn) keepAliveEvery(idle time.Duration) {
	seconds := int((idle + time.Second - 1) / time.Second)
	s.raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, seconds)
	})
}

// Sightings are what processes of one host tell each other of other hosts.
type Sightings interface {
	// Saw tells the others how long ago this process has heard of a host.
	Saw(host uint64, ago time.Duration)
	// Seen tells how long ago one of the others has: the last one.
	Seen(host uint64) (ago time.Duration, known bool)
}

// pings tells whether the grace is too short for keepalives.
func (e *Endpoint) pings() bool { return e.grace < 5*time.Second }

// pingAfter is how long a host may be silent before it is sent a ping.
func (e *Endpoint) pingAfter() time.Duration { return e.grace / 6 }

// id names the host among the processes of this one.
func (k hostKey) id() uint64 {
	sum := sha256.Sum256(fmt.Append(nil, k.local, " ", k.remote, " ", k.host))
	return binary.LittleEndian.Uint64(sum[:])
}

// hearOf tells other processes of this host when the host has been heard of, and is told. If nobody
// has for a while it sends a ping. It needs h.mu.
func (e *Endpoint) hearOf(h *hostPulse, now time.Time) {
	if e.sightings != nil {
		e.sightings.Saw(h.key.id(), now.Sub(h.heard))
		if ago, ok := e.sightings.Seen(h.key.id()); ok && now.Add(-ago).After(h.alive) {
			h.alive = now.Add(-ago)
		}
	}
	if now.Sub(h.alive) < e.pingAfter() || now.Sub(h.pinged) < e.pingAfter() {
		return
	}
	for _, p := range h.pulses {
		if p.ping != nil {
			h.pinged = now
			p.ping()
			return
		}
	}
}

// ping has the peer's system acknowledge something, if nothing waits for that already.
func (l *link) ping() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closing && !l.queue.draining {
		l.enqueueLocked(queued{h: Header{Type: typePing}})
	}
}

// monitor looks at all hosts, and ends when there are none.
func (e *Endpoint) monitor() {
	every := max(e.grace/8, 10*time.Millisecond)
	last := time.Now()
	for sleep(e.ctx, every) == nil {
		e.mu.Lock()
		if len(e.hosts) == 0 {
			e.watching = false
			e.mu.Unlock()
			return
		}
		all := slices.Collect(maps.Values(e.hosts))
		e.mu.Unlock()
		now := time.Now()
		// If it was this process that was stopped, peers have had no chance to show themselves.
		slept := now.Sub(last) > 3*every+100*time.Millisecond
		last = now
		for _, h := range all {
			e.check(h, now, slept)
		}
	}
}

// check looks at one host.
func (e *Endpoint) check(h *hostPulse, now time.Time, slept bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, p := range h.pulses {
		if i == 0 || now.Sub(h.alive) >= e.grace/4 {
			h.seen(p.conn, now)
		}
		if p.probe != nil && !h.seen(p.probe, now) {
			p.dropProbe()
		}
	}
	if e.pings() {
		e.hearOf(h, now)
	}
	if slept && now.Sub(h.alive) > e.grace/2 {
		h.alive = now.Add(-e.grace / 2)
	}
	age := now.Sub(h.alive)
	if age >= e.grace/4 {
		e.takeTurns(h)
	}
	for _, p := range h.pulses {
		switch {
		case p.stopped:
		case age >= e.grace:
			p.giveUp(fmt.Errorf("host of %s has acknowledged nothing for %v", p.who,
				age.Round(100*time.Millisecond)))
		case age >= e.grace/2 && !p.probing && p.target != "":
			p.dropProbe()
			p.probing = e.spawn("liveness probe", func() { e.probe(p, e.grace-age) })
		case age < e.grace/4:
			p.dropProbe()
		}
	}
}

// takeTurns has the next connection to a host send keepalives often. It needs h.mu.
func (e *Endpoint) takeTurns(h *hostPulse) {
	if len(h.pulses) < 2 {
		return
	}
	h.pulses[0].conn.keepAliveEvery(e.rarely())
	h.pulses = append(h.pulses[1:], h.pulses[0])
	h.pulses[0].conn.keepAliveEvery(e.often())
}

// seen notes when a connection was last acknowledged. It tells whether the connection stands. It
// needs h.mu.
func (h *hostPulse) seen(s *conn, now time.Time) bool {
	var info *unix.TCPInfo
	err := errors.New("no descriptor")
	s.raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	})
	if err != nil {
		return false
	}
	t := now.Add(-time.Duration(min(info.Last_ack_recv, info.Last_data_recv)) * time.Millisecond)
	if t.After(h.heard) {
		h.heard = t
	}
	if t.After(h.alive) {
		h.alive = t
	}
	return info.State == unix.BPF_TCP_ESTABLISHED
}

// giveUp needs hostPulse.mu.
func (p *pulse) giveUp(err error) {
	p.stopped = true
	p.dropProbe()
	p.fail(err)
}

// probe asks a silent peer's host whether it is there.
func (e *Endpoint) probe(p *pulse, limit time.Duration) {
	ctx, cancel := context.WithTimeout(e.ctx, limit)
	defer cancel()
	d := net.Dialer{KeepAliveConfig: e.keepAlive()}
	d.SetMultipathTCP(false) // liveness reads plain TCP's state
	c, err := d.DialContext(ctx, "tcp", p.target)
	var s *conn
	if err == nil {
		s = e.newConn(c)
		s.keepAliveEvery(e.often())
		h := hello{purpose: purposeProbe, from: e.id}
		b := h.bytes()
		s.SetWriteDeadline(time.Now().Add(time.Second))
		s.Write(b[:]) // only so that the peer does not log a stranger
	}
	p.host.mu.Lock()
	defer p.host.mu.Unlock()
	p.probing = false
	switch {
	case p.stopped:
		if s != nil {
			s.Close()
		}
	case err == nil:
		p.host.alive, p.probe = time.Now(), s
		p.host.heard = p.host.alive
	case errors.Is(err, syscall.ECONNREFUSED):
		p.giveUp(fmt.Errorf("its process has ended: %w", errtext.Error(err)))
	}
}
