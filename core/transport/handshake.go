package transport

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/internal/errtext"
	"github.com/goccl/goccl/core/pending"
)

var (
	errStranger  = errors.New("another process listens there now")
	errDuplicate = errors.New("the peer is making this link itself")
	errLater     = errors.New("the peer is busy, or has not come to the group yet")
	errUnable    = errors.New("its process can open no more files; raise their limit (ulimit -n)")
	errQuiet     = errors.New("in good order: nothing to log")
)

// attempt is a dial to a peer that several may wait for.
type attempt struct {
	done      chan struct{}
	cancel    context.CancelFunc
	connected bool  // the connection stands; guarded by Endpoint.mu
	err       error // after done; final if it speaks of the peer and not of the dialer
	final     bool
}

// reach returns the link to a member's process, and makes it where there is none. It ends with the
// endpoint, whose devices it may use.
func (e *Endpoint) reach(ctx context.Context, g *Group, m *member) (*link, error) {
	if !e.enter() {
		return nil, ErrClosed
	}
	defer e.running.Done()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(e.ctx, func() { end(ErrClosed) })()
	key := peerKey{m.addr.Process, m.kind}
	for {
		e.mu.Lock()
		if err := e.unusable(); err != nil {
			e.mu.Unlock()
			return nil, err
		}
		p := e.peers[key]
		if p == nil {
			p = &peer{}
			e.peers[key] = p
		}
		if l := p.link; l != nil {
			e.mu.Unlock()
			return l, nil
		}
		if a := p.dial; a != nil {
			e.mu.Unlock()
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-a.done:
				if a.final {
					return nil, a.err
				}
				continue
			}
		}
		dctx, cancel := context.WithCancel(ctx)
		a := &attempt{done: make(chan struct{}), cancel: cancel}
		p.dial = a
		e.mu.Unlock()
		l, err := e.dial(dctx, a, g, m)
		overtaken := err != nil && dctx.Err() != nil && ctx.Err() == nil
		cancel()
		e.mu.Lock()
		p.dial = nil
		if p.link != nil { // made from the other side meanwhile
			l, err = p.link, nil
		} else if err != nil {
			delete(e.peers, key)
		}
		a.err, a.final = err, errors.Is(err, ErrPeerDown)
		close(a.done)
		e.mu.Unlock()
		if err != nil && overtaken {
			continue // by a link that has ended again
		}
		return l, err
	}
}

// unusable needs e.mu.
func (e *Endpoint) unusable() error {
	if e.closed {
		return ErrClosed
	}
	return e.failure
}

// dial tries a member's addresses until a link stands, the peer is known to be dead, or the context
// ends: a peer may come to the group as late as the caller's patience allows.
func (e *Endpoint) dial(ctx context.Context, a *attempt, g *Group, m *member) (*link, error) {
	network, targets := "tcp", m.addr.Reachable(&e.address)
	if m.kind == address.Shm {
		network, targets = "unix", []string{m.addr.Unix}
	}
	d := doubt{grace: e.grace, since: time.Now(),
		apart: network == "tcp" && m.addr.Host != e.address.Host}
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		e.mu.Lock()
		err := e.unusable()
		dead := e.dead[m.addr.Process]
		e.mu.Unlock()
		if err != nil {
			return nil, err
		}
		if dead {
			return nil, errDead
		}
		errs := make([]error, 0, len(targets))
		for _, t := range targets {
			limit := time.Until(d.since.Add(e.grace))
			if len(targets) > 1 { // one that swallows packets must not use up the time of the next
				limit = min(limit, max(e.grace/4, time.Second))
			}
			l, shook, err := e.dialOne(ctx, a, g, m, network, t, max(limit, 100*time.Millisecond))
			if err == nil {
				return l, nil
			}
			if ctx.Err() != nil {
				return nil, d.interrupted(ctx)
			}
			if shook {
				d.since = time.Now()
			}
			errs = append(errs, err)
		}
		if err := d.judge(errs, time.Now()); err != nil {
			return nil, err
		}
		if sleep(ctx, pause) != nil {
			return nil, d.interrupted(ctx)
		}
	}
}

// doubt is that of a dialer whether its peer lives. A peer whose process accepts a connection does,
// whatever becomes of the handshake.
type doubt struct {
	grace time.Duration
	since time.Time // when the peer has last shown itself, or the dialing has begun
	short time.Time // when this process could first open no more files; zero: it has not come to that
	apart bool      // the peer is on another host, and a firewall may speak for it
	last  error
}

// judge returns the error that the dialing ends with after each of the peer's addresses has been
// tried; nil if it goes on.
func (d *doubt) judge(errs []error, now time.Time) error {
	dead, own := 0, false
	for _, err := range errs {
		d.last = err
		switch {
		case errors.Is(err, ErrRefused), errors.Is(err, ErrPeerLeft), errors.Is(err, errNoVerbs):
			return err
		case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, errStranger):
			dead++
		// a Unix socket on which more wait than are let in at once
		case errors.Is(err, syscall.EAGAIN):
			d.since = now
		case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
			own = true
			if d.short.IsZero() {
				d.short = now
			}
		}
	}
	switch late := now.Sub(d.since) > d.grace; {
	case dead == len(errs) && d.apart && errors.Is(d.last, syscall.ECONNREFUSED):
		return down(fmt.Errorf("its process has ended, or a firewall rejects connections to it: %w",
			d.last))
	case dead == len(errs) && d.apart:
		return down(fmt.Errorf("its process has ended: %w", d.last))
	case dead == len(errs):
		return ended(fmt.Errorf("its process has ended: %w", d.last))
	// No fault of the peer, which may show itself now and then: it answers what it dials itself.
	case own && (late || now.Sub(d.short) > d.grace):
		return fmt.Errorf("this process can open no more files; raise their limit (ulimit -n): %w",
			d.last)
	case late:
		return down(fmt.Errorf("not reachable for %v: %w", d.grace, d.last))
	}
	return nil
}

// interrupted is what the dialing ends with when its context has ended.
func (d *doubt) interrupted(ctx context.Context) error {
	if d.last == nil {
		return errtext.Error(context.Cause(ctx))
	}
	return fmt.Errorf("%w: %w", errtext.Error(context.Cause(ctx)), d.last)
}

// dialOne tries one address. shook tells that the peer has shown itself: a connection stood, and
// not only files are missing at one of its ends.
func (e *Endpoint) dialOne(ctx context.Context, a *attempt, g *Group, m *member,
	network, target string, limit time.Duration) (l *link, shook bool, err error) {
	d := net.Dialer{Timeout: limit, KeepAliveConfig: e.keepAlive()}
	d.SetMultipathTCP(false) // liveness reads plain TCP's state
	if network == "tcp" && m.addr.Host == e.address.Host {
		d.Control = unpaced
	}
	c, err := d.DialContext(ctx, network, target)
	if err != nil {
		return nil, false, errtext.Error(err)
	}
	s := e.newConn(c)
	key := peerKey{m.addr.Process, m.kind}
	e.mu.Lock()
	taken := e.peers[key].link != nil
	a.connected = !taken
	e.mu.Unlock()
	if taken {
		s.Close()
		return nil, true, errDuplicate
	}
	if m.kind == address.Shm {
		if err := e.peerOf(s, &m.addr); err != nil {
			s.Close()
			return nil, true, fmt.Errorf("%w: %w", errStranger, err)
		}
	}
	// A peer may be stopped: the handshake waits for it as long as the caller does, and as long as
	// its host is there.
	var dead error
	pulse := e.watch(s, m.kind, &m.addr, func(err error) { dead = err; s.Close() })
	stop := context.AfterFunc(ctx, func() { s.Close() })
	h := hello{purpose: purposeLink, epoch: g.epoch, job: g.key.job, group: g.key.group, from: e.id,
		to: m.addr.Process}
	nonces, err := introduce(s, "group "+g.name, g.secret, &h)
	var w wire
	if err == nil {
		l = newLink(e, s, key, nonces)
		w, err = l.newWire(ctx, &m.addr, len(g.members))
	}
	interrupted := !stop()
	e.unwatch(pulse)
	e.mu.Lock()
	a.connected = false
	if dead != nil {
		err = dead
	} else if err == nil && interrupted {
		err = errtext.Error(context.Cause(ctx))
	}
	if err == nil {
		err = e.unusable()
	}
	if err == nil {
		if err = l.start(w, &m.addr); err == nil {
			e.adopt(l)
		}
	}
	e.mu.Unlock()
	if err != nil {
		s.Close()
		if w != nil {
			w.close()
		}
		unable := errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) ||
			errors.Is(err, errUnable)
		return nil, dead == nil && !unable, err
	}
	return l, true, nil
}

// introduce is the dialer's side of the handshake, for what is named in texts.
func introduce(rw io.ReadWriter, name string, secret []byte, h *hello) (
	nonces [2][nonceSize]byte, err error) {
	rand.Read(h.nonce[:])
	hb := h.bytes()
	if _, err = rw.Write(hb[:]); err != nil {
		return nonces, errtext.Error(err)
	}
	var challenge [challengeSize]byte
	if _, err = io.ReadFull(rw, challenge[:]); err != nil {
		return nonces, fmt.Errorf("during the handshake: %w", errtext.Error(err))
	}
	st, err := parseAnswerHead(challenge[:])
	if err != nil {
		return nonces, fmt.Errorf("%w: %w", errStranger, err)
	}
	switch st {
	case statusOK:
	case statusStranger:
		return nonces, errStranger
	case statusLater:
		return nonces, errLater
	case statusGone:
		return nonces, ErrPeerLeft
	default:
		return nonces, fmt.Errorf("%w: the peer does not count this process among %s", ErrRefused,
			name)
	}
	nonce := challenge[8:]
	proof := proofMAC(secret, hb[:], nonce)
	if _, err = rw.Write(proof[:]); err != nil {
		return nonces, errtext.Error(err)
	}
	var verdict [verdictSize]byte
	if _, err = io.ReadFull(rw, verdict[:]); err != nil {
		return nonces, fmt.Errorf("during the handshake: %w", errtext.Error(err))
	}
	if st, err = parseAnswerHead(verdict[:]); err != nil {
		return nonces, fmt.Errorf("%w: %w", errStranger, err)
	}
	switch st {
	case statusLater:
		return nonces, errLater
	case statusRefused:
		return nonces, fmt.Errorf(
			"%w: the peer does not accept this side's proof: the secrets of %s differ",
			ErrRefused, name)
	}
	want := verdictMAC(secret, hb[:], nonce, st)
	if !hmac.Equal(want[:], verdict[8:]) {
		return nonces, fmt.Errorf("%w: the peer cannot prove the secret of %s", ErrRefused, name)
	}
	switch st {
	case statusOK:
	case statusUnable:
		return nonces, errUnable
	default:
		return nonces, errDuplicate
	}
	nonces[0] = h.nonce
	copy(nonces[1][:], nonce)
	return nonces, nil
}

// admission is what the acceptor's handshake asks of the endpoint.
type admission struct {
	self address.ProcessID
	// find returns the secret for a hello, or the status to refuse with, and why if that is to be
	// logged.
	find func(hello) ([]byte, status, error)
	// decide is asked once the dialer has proved itself, and sees the verdict sent before anything
	// else is.
	decide func(hello, [2][nonceSize]byte, func(status) error) error
}

// admit is the acceptor's side of the handshake.
func admit(rw io.ReadWriter, a admission) error {
	var hb [helloSize]byte
	switch _, err := io.ReadFull(rw, hb[:]); {
	case err == io.EOF: // a probe of this host, or a peer that dials no more
		return errQuiet
	case err != nil:
		return fmt.Errorf("no handshake: %w", errtext.Error(err))
	}
	h, err := parseHello(&hb)
	if err != nil {
		return err
	}
	if h.purpose == purposeProbe {
		return errQuiet
	}
	var challenge [challengeSize]byte
	answerHead(challenge[:], statusOK)
	secret, st, why := []byte(nil), statusStranger, errors.New("it means another process")
	if h.to == a.self {
		secret, st, why = a.find(h)
	}
	if st != statusOK {
		answerHead(challenge[:], st)
		rw.Write(challenge[:]) // it is refused anyway
		return why
	}
	rand.Read(challenge[8:])
	nonces := [2][nonceSize]byte{h.nonce, [nonceSize]byte(challenge[8:])}
	var proof [proofSize]byte
	_, err = rw.Write(challenge[:])
	if err == nil {
		_, err = io.ReadFull(rw, proof[:])
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("no proof of the secret: %w", errtext.Error(err))
	}
	if err != nil {
		return errQuiet // a member that dials gives up when the link comes from the other side
	}
	verdict := func(st status) error {
		var b [verdictSize]byte
		answerHead(b[:], st)
		if st == statusOK || st == statusDuplicate || st == statusUnable {
			m := verdictMAC(secret, hb[:], nonces[1][:], st)
			copy(b[8:], m[:])
		}
		_, err := rw.Write(b[:])
		return err
	}
	want := proofMAC(secret, hb[:], nonces[1][:])
	if !hmac.Equal(want[:], proof[:]) {
		verdict(statusRefused)
		return errors.New("its proof of the group's secret is wrong")
	}
	return a.decide(h, nonces, verdict)
}

// welcome runs the handshake with a pending connection, which has one time for all of it. One that
// has to go is told to try again: it may be a member.
func (e *Endpoint) welcome(g *pending.Conn, s *conn, kind string) {
	defer g.Close()
	until := time.Now().Add(handshakeTimeout)
	s.SetDeadline(until)
	stop := context.AfterFunc(g, func() { s.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	waits, cancel := context.WithDeadline(g, until.Add(-answerTime))
	defer cancel()
	var from address.Address
	ranks := 0
	var called *service
	err := admit(s, admission{
		self: e.id,
		find: func(h hello) ([]byte, status, error) {
			if h.purpose == purposeCall {
				if called = e.serviceOf(&h); called == nil {
					return nil, statusGone, errQuiet
				}
				return called.Secret, statusOK, nil
			}
			local, st := e.hold(waits, h)
			if local == nil {
				return nil, st, errQuiet
			}
			for _, m := range local.members {
				if m == nil || m.addr.Process != h.from || (m.kind == address.Shm) != (kind == address.Shm) {
					continue
				}
				if kind == address.Shm {
					if err := e.peerOf(s, &m.addr); err != nil {
						return nil, statusRefused, err
					}
				}
				from, kind, ranks = m.addr, m.kind, len(local.members)
				return local.secret, statusOK, nil
			}
			return nil, statusRefused, fmt.Errorf("process %v is no member of the group", h.from)
		},
		decide: func(h hello, nonces [2][nonceSize]byte, verdict func(status) error) error {
			if !g.Leave() {
				verdict(statusLater)
				return errQuiet
			}
			stop() // from now on the end of the connection is the link's
			if called != nil {
				if err := verdict(statusOK); err != nil {
					return errQuiet
				}
				e.answer(s, called, &h, &nonces)
				return nil
			}
			return e.decide(s, peerKey{h.from, kind}, nonces, &from, ranks, verdict)
		},
	})
	if err == nil {
		return
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		var later [challengeSize]byte // as long as a verdict
		answerHead(later[:], statusLater)
		s.SetWriteDeadline(time.Now().Add(handshakeTimeout))
		s.Write(later[:])
	}
	s.Close()
	if !errors.Is(err, errQuiet) && !errors.Is(err, errDuplicate) && g.Err() == nil {
		e.refuse(s.remote(), err)
	}
}

// hold waits until a group is attached here: ranks do not all come at once, neither to a group nor
// to its next epoch.
func (e *Endpoint) hold(ctx context.Context, h hello) (*Group, status) {
	for {
		e.mu.Lock()
		for k, g := range e.groups {
			if k.job == h.job && k.group == h.group {
				e.mu.Unlock()
				return g, statusOK
			}
		}
		for k, last := range e.gone {
			if k.job == h.job && k.group == h.group && last >= h.epoch {
				e.mu.Unlock()
				return nil, statusGone
			}
		}
		changed := e.changed
		e.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil, statusLater
		case <-changed:
		}
	}
}

// decide accepts an authenticated connection as the link, unless there is one. Where both sides
// dial at once, the dial of the lower process id wins; but one that stands wins over one that does
// not, because perhaps only one direction can be dialed.
func (e *Endpoint) decide(s *conn, key peerKey, nonces [2][nonceSize]byte, from *address.Address,
	ranks int, verdict func(status) error) error {
	e.mu.Lock()
	p := e.peers[key]
	duplicate := p != nil && (p.link != nil ||
		p.dial != nil && p.dial.connected && string(e.id[:]) < string(key.process[:]))
	if err := e.unusable(); err != nil || duplicate {
		e.mu.Unlock()
		if duplicate {
			verdict(statusDuplicate)
		}
		return errDuplicate
	}
	l := newLink(e, s, key, nonces)
	l.writing.lock <- struct{}{} // nothing may overtake the verdict
	var err error
	if key.kind != address.Verbs {
		s.SetDeadline(time.Time{})
		err = l.start(newSocket(s, key.kind), from)
	}
	if err == nil {
		e.adopt(l)
		if p != nil && p.dial != nil {
			p.dial.cancel()
		}
	}
	e.mu.Unlock()
	if err != nil {
		verdict(statusUnable)
		return err
	}
	_ = verdict(statusOK) // the reader sees a failure to write, too
	if key.kind == address.Verbs {
		if err := l.raise(from, ranks); err != nil {
			l.end(err) // the link's users are told
			return errQuiet
		}
	}
	l.endTurn()
	return nil
}

// raise starts a verbs link that has been accepted.
func (l *link) raise(from *address.Address, ranks int) error {
	e := l.e
	l.conn.SetDeadline(time.Now().Add(handshakeTimeout))
	w, err := l.newWire(e.ctx, from, ranks)
	if err != nil {
		return err
	}
	l.conn.SetDeadline(time.Time{})
	e.mu.Lock()
	err = l.start(w, from)
	e.mu.Unlock()
	if err != nil {
		w.close()
	}
	return err
}

// adopt makes a link the one to its peer. It needs e.mu.
func (e *Endpoint) adopt(l *link) {
	p := e.peers[l.key]
	if p == nil {
		p = &peer{}
		e.peers[l.key] = p
	}
	p.link = l
	e.links[l] = struct{}{}
	e.prove(l)
}

// sameHost tells whether a connection goes to the IP address of target.
func sameHost(remote net.Addr, target string) bool {
	p, err := netip.ParseAddrPort(target)
	return err == nil && addrOf(remote) == p.Addr().Unmap()
}
