package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/internal/polltest"
)

// More ranks than the endpoint has places for, and as many silent strangers, wait for a rank that
// is late for the group. All come through, and nobody is taken for dead.
func TestManyDialALateRank(t *testing.T) {
	for _, kind := range []string{address.Shm, address.TCP} {
		t.Run(kind, func(t *testing.T) {
			const dialers, strangers = 600, maxHandshakes + 44
			var here sockets
			late := listen(t, Config{OnFD: here.note})
			others, end := crowd(t, dialers)
			t.Cleanup(end)
			eps := append([]*Endpoint{late}, others...)
			network, target := "tcp", late.Address().TCP[0]
			if kind == address.Shm {
				network, target = "unix", late.Address().Unix
			}
			base, _ := here.seen()
			for range strangers {
				c, err := net.Dial(network, target)
				ok(t, err)
				t.Cleanup(func() { c.Close() })
			}
			c := groupConfig(eps, kind, 1, 0)
			ctx := within(t)
			var connecting sync.WaitGroup
			var handlers []*recorder
			for i, e := range eps[1:] {
				c := c
				c.Rank = i + 1
				c.Kinds = append([]string(nil), c.Kinds...)
				c.Kinds[0], c.Kinds[i+1] = kind, address.Mem
				h := newRecorder()
				handlers = append(handlers, h)
				g := attach(t, e, c, h)
				connecting.Go(func() {
					if err := g.Connect(ctx, 0); err != nil {
						t.Error(err)
					}
				})
			}
			polltest.Until(t, "a dialer that has been told to try again", func() bool {
				opened, _ := here.seen()
				return opened-base > dialers+strangers
			})
			attach(t, late, c, newRecorder())
			connecting.Wait()
			for i, h := range handlers {
				h.mu.Lock()
				if err := h.down[0]; err != nil {
					t.Errorf("rank %d: %v", i+1, err)
				}
				h.mu.Unlock()
			}
		})
	}
}

// A pending connection that has to go, in whatever part of the handshake, is told to try again.
func TestPendingConnectionsAreToldToTryAgain(t *testing.T) {
	e := listen(t, Config{})
	dial := func(said []byte) net.Conn {
		c, err := net.Dial("unix", e.Address().Unix)
		ok(t, err)
		t.Cleanup(func() { c.Close() })
		_, err = c.Write(said)
		ok(t, err)
		return c
	}
	from := address.ProcessID{1}
	c := groupConfig([]*Endpoint{e}, address.Shm, 1, 0)
	c.Peers = append(c.Peers, address.Address{Process: from, Unix: "@nobody", Host: e.Address().Host})
	c.Kinds = append(c.Kinds, address.Shm)
	attach(t, e, c, newRecorder())
	known := hello{purpose: purposeLink, job: 1, group: 1, from: from, to: e.id}
	unknown := known
	unknown.group = 2
	helloKnown, helloUnknown := known.bytes(), unknown.bytes()
	proving, waiting, silent := dial(helloKnown[:]), dial(helloUnknown[:]), dial(nil)
	var answer [challengeSize]byte
	_, err := io.ReadFull(proving, answer[:])
	ok(t, err)
	for range maxHandshakes {
		dial(nil)
	}
	for name, c := range map[string]net.Conn{"proving": proving, "waiting": waiting,
		"silent": silent} {
		c.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.ReadFull(c, answer[:]); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if st, err := parseAnswerHead(answer[:]); err != nil || st != statusLater {
			t.Errorf("%s: status %d, %v", name, st, err)
		}
		if _, err := c.Read(answer[:]); err == nil {
			t.Errorf("%s is kept", name)
		}
	}
}

// A peer that dials for an epoch that has been left here is told so. It waits for one that is still
// to come.
func TestEpochOfAConnection(t *testing.T) {
	e := listen(t, Config{})
	from := address.ProcessID{1}
	c := groupConfig([]*Endpoint{e}, address.Shm, 1, 0)
	c.Peers = append(c.Peers, address.Address{Process: from, Unix: "@nobody", Host: e.Address().Host})
	c.Kinds = append(c.Kinds, address.Shm)
	attach(t, e, c, newRecorder()).Detach()
	dial := func(epoch uint32) net.Conn {
		g, err := net.Dial("unix", e.Address().Unix)
		ok(t, err)
		t.Cleanup(func() { g.Close() })
		h := hello{purpose: purposeLink, epoch: epoch, job: 1, group: 1, from: from, to: e.id}
		b := h.bytes()
		_, err = g.Write(b[:])
		ok(t, err)
		g.SetReadDeadline(time.Now().Add(patience))
		return g
	}
	waiting := dial(c.Epoch + 1)
	for _, part := range []struct {
		dialed net.Conn
		want   status
		begin  bool
	}{{dial(c.Epoch), statusGone, false}, {waiting, statusOK, true}} {
		if part.begin {
			next := c
			next.Epoch++
			attach(t, e, next, newRecorder())
		}
		var answer [challengeSize]byte
		if _, err := io.ReadFull(part.dialed, answer[:]); err != nil {
			t.Fatal(err)
		}
		if st, err := parseAnswerHead(answer[:]); err != nil || st != part.want {
			t.Errorf("status %d, %v, want %d", st, err, part.want)
		}
	}
}

// A peer is dead where nothing or another process listens in its place, or its host has been silent
// for the grace; not because it is busy, or closes what it accepts.
func TestDoubt(t *testing.T) {
	const grace = time.Second
	closed, full := fmt.Errorf("closed during the handshake: %w", io.EOF),
		&net.OpError{Err: syscall.EAGAIN}
	refused, files := &net.OpError{Err: syscall.ECONNREFUSED}, &net.OpError{Err: syscall.EMFILE}
	silent := context.DeadlineExceeded
	anything := errors.New("")
	for _, c := range []struct {
		name  string
		errs  []error
		tries int // one in each half grace
		shows bool
		want  error // nil: it goes on
	}{
		{"busy", []error{errLater}, 100, true, nil},
		{"closes", []error{closed}, 100, true, nil},
		{"makes the link itself", []error{errDuplicate}, 100, true, nil},
		{"full backlog", []error{full}, 100, false, nil},
		{"refused", []error{refused}, 1, false, ErrEnded},
		{"another process", []error{errStranger}, 1, true, ErrEnded},
		{"one address refused", []error{refused, errLater}, 100, true, nil},
		{"all addresses refused", []error{refused, errStranger}, 1, false, ErrEnded},
		{"silent for a moment", []error{silent}, 2, false, nil},
		{"silent", []error{silent}, 3, false, ErrPeerDown},
		{"peer has no files for a moment", []error{errUnable}, 2, false, nil},
		{"peer has no files", []error{errUnable}, 3, false, ErrPeerDown},
		{"no files for a moment", []error{files}, 2, false, nil},
		{"no files", []error{files}, 3, false, anything},
		{"no files, and a peer that shows itself", []error{files}, 4, true, anything},
		{"not admitted", []error{ErrRefused}, 1, true, ErrRefused},
		{"has left", []error{ErrPeerLeft}, 1, true, ErrPeerLeft},
	} {
		now := time.Now()
		d := doubt{grace: grace, since: now}
		var err error
		for i := 0; i < c.tries && err == nil; i++ {
			now = now.Add(grace / 2)
			if c.shows {
				d.since = now
			}
			err = d.judge(c.errs, now)
		}
		switch {
		case c.want == anything:
			if err == nil || errors.Is(err, ErrPeerDown) {
				t.Errorf("%s: %v", c.name, err)
			}
		case !errors.Is(err, c.want), c.want == ErrPeerDown && errors.Is(err, ErrEnded):
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

// TestDoubtOfAnotherHost is for what refuses connections to another host: its system, or a
// firewall.
func TestDoubtOfAnotherHost(t *testing.T) {
	refused := &net.OpError{Err: syscall.ECONNREFUSED}
	for _, c := range []struct {
		apart    bool
		err      error
		firewall bool
	}{{false, refused, false}, {true, refused, true}, {true, errStranger, false}} {
		d := doubt{grace: time.Second, since: time.Now(), apart: c.apart}
		err := d.judge([]error{c.err}, time.Now())
		if !errors.Is(err, ErrPeerDown) || errors.Is(err, ErrEnded) == c.apart ||
			strings.Contains(err.Error(), "firewall") != c.firewall {
			t.Errorf("apart %v, %v: %v", c.apart, c.err, err)
		}
	}
}
