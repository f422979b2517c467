package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/internal/plain"
)

// Liveness over TCP. The kernel tells how long ago the peer's host has acknowledged or sent
// anything; keepalives see to it that a host which is there does so at all times. But one whose
// process is stopped with its buffers full may, for long, acknowledge nothing on that connection.
// So before a host is given up, its process is dialed: the kernel of a stopped process accepts,
// that of a dead one refuses, and a host that is gone says nothing. The probing connection is kept
// while the doubt lasts, as one that carries nothing is always acknowledged.

// pulse watches one TCP connection.
type pulse struct {
	conn   *conn
	target string // where the peer's process listens
	who    string

	mu      sync.Mutex
	stopped bool
	fail    func(error)
	alive   time.Time // when the host has last shown itself
	probing bool
	probe   *conn
}

// watch begins to watch a connection; fail is called at most once, and not after unwatch. It
// returns nil where there is nothing to watch.
func (e *Endpoint) watch(s *conn, kind string, peer *Address, fail func(error)) *pulse {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.watchLocked(s, kind, peer, fail)
}

// watchLocked needs e.mu.
func (e *Endpoint) watchLocked(s *conn, kind string, peer *Address, fail func(error)) *pulse {
	if !IsPort(kind) {
		return nil
	}
	p := &pulse{conn: s, who: peer.who(), fail: fail, alive: time.Now()}
	for _, t := range peer.reachable(&e.address) {
		if p.target == "" || sameHost(s.RemoteAddr(), t) {
			p.target = t
		}
	}
	e.pulses[p] = struct{}{}
	if !e.watching {
		e.watching = e.spawn("liveness", e.monitor)
	}
	return p
}

func (e *Endpoint) unwatch(p *pulse) {
	if p == nil {
		return
	}
	e.mu.Lock()
	delete(e.pulses, p)
	e.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	p.dropProbe()
}

// dropProbe needs p.mu.
func (p *pulse) dropProbe() {
	if p.probe != nil {
		p.probe.Close()
		p.probe = nil
	}
}

// keepAlive lets an idle connection be acknowledged several times in a grace. The kernel's own
// verdict is to come after the monitor's.
func (e *Endpoint) keepAlive(c *net.TCPConn) {
	every := min(max(e.grace/5, time.Second), time.Hour)
	count := int(min(2*e.grace/every+4, 127))
	// Where an option is not to be had, the probe still is.
	_ = c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: every, Interval: every,
		Count: count})
}

// monitor looks at all pulses, and ends when there are none.
func (e *Endpoint) monitor() {
	every := max(e.grace/8, 10*time.Millisecond)
	last := time.Now()
	for sleep(e.ctx, every) == nil {
		e.mu.Lock()
		if len(e.pulses) == 0 {
			e.watching = false
			e.mu.Unlock()
			return
		}
		all := make([]*pulse, 0, len(e.pulses))
		for p := range e.pulses {
			all = append(all, p)
		}
		e.mu.Unlock()
		now := time.Now()
		// If it was this process that was stopped, peers have had no chance to show themselves.
		slept := now.Sub(last) > 3*every+100*time.Millisecond
		last = now
		for _, p := range all {
			e.check(p, now, slept)
		}
	}
}

// check looks at one pulse.
func (e *Endpoint) check(p *pulse, now time.Time, slept bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	p.seen(p.conn, now)
	if p.probe != nil && !p.seen(p.probe, now) {
		p.dropProbe()
	}
	if slept && now.Sub(p.alive) > e.grace/2 {
		p.alive = now.Add(-e.grace / 2)
	}
	switch age := now.Sub(p.alive); {
	case age >= e.grace:
		p.giveUp(&silentError{fmt.Errorf("host of %s has acknowledged nothing for %v", p.who,
			age.Round(100*time.Millisecond))})
	case age >= e.grace/2 && !p.probing && p.target != "":
		p.dropProbe()
		p.probing = e.spawn("liveness probe", func() { e.probe(p, e.grace-age) })
	case age < e.grace/4:
		p.dropProbe()
	}
}

// seen notes when a connection was last acknowledged. It tells whether the connection stands. It
// needs p.mu.
func (p *pulse) seen(s *conn, now time.Time) bool {
	var info *unix.TCPInfo
	err := errors.New("no descriptor")
	s.raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	})
	if err != nil {
		return false
	}
	t := now.Add(-time.Duration(min(info.Last_ack_recv, info.Last_data_recv)) * time.Millisecond)
	if t.After(p.alive) {
		p.alive = t
	}
	return info.State == unix.BPF_TCP_ESTABLISHED
}

// giveUp needs p.mu.
func (p *pulse) giveUp(err error) {
	p.stopped = true
	p.dropProbe()
	p.fail(err)
}

// probe asks a silent peer's host whether it is there.
func (e *Endpoint) probe(p *pulse, limit time.Duration) {
	ctx, cancel := context.WithTimeout(e.ctx, limit)
	defer cancel()
	var d net.Dialer
	d.SetMultipathTCP(false) // liveness reads plain TCP's state
	c, err := d.DialContext(ctx, "tcp", p.target)
	var s *conn
	if err == nil {
		s = e.newConn(c)
		h := hello{purpose: purposeProbe, from: e.id}
		b := h.bytes()
		s.SetWriteDeadline(time.Now().Add(time.Second))
		s.Write(b[:]) // only so that the peer does not log a stranger
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.probing = false
	switch {
	case p.stopped:
		if s != nil {
			s.Close()
		}
	case err == nil:
		p.alive, p.probe = time.Now(), s
	case errors.Is(err, syscall.ECONNREFUSED):
		p.giveUp(fmt.Errorf("its process has ended: %w", plain.Error(err)))
	}
}
