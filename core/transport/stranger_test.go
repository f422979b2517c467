package transport

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/goccl/goccl/core/address"
)

func TestWrongSecret(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			l := newLogbook()
			eps := pair(t, kind, Config{Logger: l.logger()})
			for group := uint64(1); group <= 2; group++ { // 1: no link yet; 2: over a link
				c := groupConfig(eps, kind, group, 0)
				c.Secret = bytes.Repeat([]byte{8}, 32)
				bad := attach(t, eps[0], c, newRecorder())
				h := newRecorder()
				attach(t, eps[1], groupConfig(eps, kind, group, 1), h)
				wants(t, bad.Connect(within(t), 1), ErrRefused)
				if len(h.order) > 0 {
					t.Fatalf("the refused rank has come through: %v", h.order)
				}
				if kind != address.Mem {
					l.wait(t, 1)
				}
				w := newWorld(t, eps, kind, group+10) // harms nobody else
				ok(t, w.groups[0].Connect(within(t), 1))
			}
		})
	}
}

func TestWrongJob(t *testing.T) {
	eps := pair(t, address.TCP, Config{Grace: time.Second})
	c := groupConfig(eps, address.TCP, 1, 0)
	c.Job = 99
	g := attach(t, eps[0], c, newRecorder())
	h := newRecorder()
	attach(t, eps[1], groupConfig(eps, address.TCP, 1, 1), h)
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	wants(t, g.Connect(ctx, 1), context.DeadlineExceeded) // it might yet come
	if len(h.order) > 0 {
		t.Fatalf("events: %v", h.order)
	}
}

func TestNotAMember(t *testing.T) {
	l := newLogbook()
	eps := []*Endpoint{listen(t, Config{}), listen(t, Config{Logger: l.logger()}),
		listen(t, Config{})}
	attach(t, eps[1], groupConfig(eps[:2], address.TCP, 1, 1), newRecorder())
	outsider := attach(t, eps[2], groupConfig([]*Endpoint{eps[2], eps[1]}, address.TCP, 1, 0),
		newRecorder())
	wants(t, outsider.Connect(within(t), 1), ErrRefused)
	l.wait(t, 1)
}

// Strangers on the port: garbage, silence, scanners, half handshakes. All are dropped, one line is
// logged for the lot, and a rank that comes meanwhile is served.
func TestStrangers(t *testing.T) {
	for _, kind := range []string{address.Shm, address.TCP} {
		t.Run(kind, func(t *testing.T) {
			l := newLogbook()
			a, b := listen(t, Config{}), listen(t, Config{Logger: l.logger()})
			network, target := "tcp", b.Address().TCP[0]
			if kind == address.Shm {
				network, target = "unix", b.Address().Unix
			}
			eps := []*Endpoint{a, b}
			w := newWorld(t, eps, kind, 1)
			dial := func() net.Conn {
				c, err := net.Dial(network, target)
				ok(t, err)
				t.Cleanup(func() { c.Close() })
				return c
			}
			gone := func(c net.Conn) { // the other side has closed it
				c.SetReadDeadline(time.Now().Add(patience))
				if _, err := io.Copy(io.Discard, c); errors.Is(err, context.DeadlineExceeded) {
					t.Fatal("a stranger is kept")
				}
			}
			for range 20 {
				dial().Close() // a scanner
			}
			silent := dial()
			for _, s := range []string{"GET / HTTP/1.1\r\nHost: x\r\n\r\n" +
				strings.Repeat("x", 200), strings.Repeat("\x00", 96),
				strings.Repeat("\xff", 5000)} {
				c := dial()
				c.Write([]byte(s))
				gone(c)
			}
			// A hello for the right group by the right process, and then no proof.
			h := hello{purpose: purposeLink, job: 1, group: 1, from: a.id, to: b.id}
			hb := h.bytes()
			c := dial()
			c.Write(hb[:])
			var challenge [challengeSize]byte
			_, err := io.ReadFull(c, challenge[:])
			ok(t, err)
			c.Write(bytes.Repeat([]byte{1}, proofSize))
			gone(c)
			h.to = address.ProcessID{1}
			hb = h.bytes()
			c = dial()
			c.Write(hb[:])
			gone(c)
			// More silent ones than are borne: the oldest goes.
			for range maxHandshakes {
				dial()
			}
			gone(silent)
			ok(t, w.groups[0].Connect(within(t), 1))
			if lines := l.wait(t, 1); len(lines) != 1 || !strings.Contains(lines[0], "refused") {
				t.Fatalf("log: %q", lines)
			}
		})
	}
}

// clocked is a connection that notes how long it may be read.
type clocked struct {
	net.Conn
	until []time.Time
}

func (c *clocked) SetDeadline(t time.Time) error {
	c.until = append(c.until, t)
	return c.Conn.SetDeadline(t)
}

// A stranger that says something now and then has no more time than one that is silent.
func TestStrangersHaveOneTime(t *testing.T) {
	e := listen(t, Config{})
	w := newWorld(t, []*Endpoint{listen(t, Config{}), e}, address.TCP, 1)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	defer l.Close()
	stranger, err := net.Dial("tcp", l.Addr().String())
	ok(t, err)
	defer stranger.Close()
	c, err := l.Accept()
	ok(t, err)
	s := e.newConn(c)
	conn := &clocked{Conn: c}
	s.Conn = conn
	since := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.welcome(e.pending.Enter(e.ctx), s, address.TCP)
	}()
	h := hello{purpose: purposeLink, job: 1, group: 1, from: w.groups[0].e.id, to: e.id}
	hb := h.bytes()
	for _, b := range [][]byte{hb[:], make([]byte, proofSize)} {
		_, err = stranger.Write(b)
		ok(t, err)
		_, err = io.ReadFull(stranger, make([]byte, challengeSize))
		ok(t, err)
	}
	<-done
	if n := len(conn.until); n != 1 || conn.until[0].Sub(since) > handshakeTimeout+patience {
		t.Errorf("%d times are given, the last until %v", n, conn.until[n-1].Sub(since))
	}
	waits, cancel := context.WithCancel(e.ctx)
	cancel()
	if _, st := e.hold(waits, hello{group: 99}); st != statusLater {
		t.Errorf("one whose time is over is told %v", st)
	}
}

// A peer that has proved itself and then breaks the rules.
func TestViolations(t *testing.T) {
	type breach struct {
		name string
		h    Header
		n    int
	}
	good := Header{Type: ControlBase, Job: 1, Group: 1, Epoch: 5, Src: 0, Dst: 1}
	with := func(f func(*Header)) Header { h := good; f(&h); return h }
	for _, b := range []breach{
		{"unknown group", with(func(h *Header) { h.Group = 9 }), 0},
		{"another job", with(func(h *Header) { h.Job = 9 }), 0},
		{"a source that lives elsewhere", with(func(h *Header) { h.Src = 1 }), 0},
		{"a source out of range", with(func(h *Header) { h.Src = 1 << 31 }), 0},
		{"a destination out of range", with(func(h *Header) { h.Dst = 77 }), 0},
		{"an epoch to come", with(func(h *Header) { h.Epoch = 6 }), 0},
		{"a control frame too long", with(func(h *Header) { h.Bytes = MaxControl + 1 }), 0},
		{"data too long", with(func(h *Header) { h.Type, h.Bytes = Data, MaxData+1 }), 0},
		{"an unknown type", with(func(h *Header) { h.Type = 9 }), 0},
		{"a slot that is not there", with(func(h *Header) { h.Type, h.Bytes = Data, 13 }), 13},
		{"an attach twice", with(func(h *Header) { h.Type, h.Bytes = typeAttach, macSize }),
			macSize},
		{"a descriptor that is not there",
			with(func(h *Header) { h.Type, h.Bytes, h.Flags, h.Group = typeAttach, macSize, 1, 8 }),
			macSize},
	} {
		t.Run(b.name, func(t *testing.T) {
			l := newLogbook()
			eps := []*Endpoint{listen(t, Config{}), listen(t, Config{Logger: l.logger()})}
			w := newWorld(t, eps, address.TCP, 1)
			w.handlers[1].slot = func(int, Header) ([]byte, error) {
				return nil,
					errors.New("no such slot")
			}
			ok(t, w.groups[0].Connect(within(t), 1))
			k := w.groups[0].members[1].ready.Load().link
			var raw [headerSize]byte
			b.h.put(&raw)
			_, err := k.conn.Write(append(raw[:], make([]byte, b.n)...))
			ok(t, err)
			err = w.handlers[1].untilDown(t, 0)
			wants(t, err, ErrPeerDown)
			if !strings.Contains(err.Error(), "protocol violation") || len(l.wait(t, 1)) != 1 {
				t.Fatalf("error %v, log %q", err, l.lines)
			}
			theirs := w.handlers[0].untilDown(t, 1)
			wants(t, theirs, ErrPeerDown)
			if errors.Is(err, ErrEnded) || errors.Is(theirs, ErrEnded) {
				t.Errorf("both live: %v; %v", err, theirs)
			}
		})
	}
}

// Frames of an epoch that has passed, and of a group that has been left here, are dropped.
func TestStaleFramesAreDropped(t *testing.T) {
	for _, kind := range []string{address.Shm, address.TCP} {
		t.Run(kind, func(t *testing.T) {
			eps := pair(t, kind, Config{})
			w, left := newWorld(t, eps, kind, 1), newWorld(t, eps, kind, 2)
			ctx := within(t)
			ok(t, w.groups[0].Connect(ctx, 1))
			ok(t, left.groups[0].Connect(ctx, 1))
			k := w.groups[0].members[1].ready.Load().link
			left.groups[1].Detach()
			for _, h := range []Header{
				{Type: Data, Job: 1, Group: 1, Epoch: 4, Dst: 1, Bytes: 100_000},
				{Type: ControlBase, Job: 1, Group: 1, Epoch: 4, Dst: 1, Bytes: 10},
				{Type: Data, Job: 1, Group: 2, Epoch: 5, Dst: 1, Bytes: 100_000},
				{Type: ControlBase, Job: 1, Group: 2, Epoch: 5, Dst: 1, Bytes: 10},
			} {
				_, err := k.send(ctx, w.groups[0], &h, [][]byte{make([]byte, h.Bytes)}, manner{})
				ok(t, err)
			}
			ok(t, w.groups[0].Send(ctx, 1, Header{Type: ControlBase, Seq: 1}))
			if f := w.handlers[1].untilFrames(t, 1); len(f) != 1 || f[0].h.Seq != 1 {
				t.Fatalf("got %+v", f)
			}
			if n := len(left.handlers[1].frames); n != 0 {
				t.Fatalf("%d frames after Detach", n)
			}
		})
	}
}

// What a peer says of a group that it does not know to have been left here is dropped, and harms no
// other group.
func TestFramesBehindAnAttachThatComesTooLate(t *testing.T) {
	for _, kind := range []string{address.Shm, address.TCP} {
		t.Run(kind, func(t *testing.T) {
			eps := pair(t, kind, Config{})
			w := newWorld(t, eps, kind, 1)
			ctx := within(t)
			ok(t, w.groups[0].Connect(ctx, 1))
			attach(t, eps[1], groupConfig(eps, kind, 2, 1), newRecorder()).Detach()
			k := w.groups[0].members[1].ready.Load().link
			for _, h := range []Header{
				{Type: typeAttach, Job: 1, Group: 2, Epoch: 5, Dst: 1, Bytes: macSize},
				{Type: ControlBase, Job: 1, Group: 2, Epoch: 5, Dst: 1, Bytes: 10},
				{Type: QuickBase, Job: 1, Group: 2, Epoch: 5, Dst: 1},
				{Type: Data, Job: 1, Group: 2, Epoch: 5, Dst: 1, Bytes: 100_000},
				{Type: typeBye, Job: 1, Group: 2, Epoch: 5, Dst: 1},
			} {
				_, err := k.send(ctx, w.groups[0], &h, [][]byte{make([]byte, h.Bytes)}, manner{})
				ok(t, err)
			}
			ok(t, w.groups[0].Send(ctx, 1, Header{Type: ControlBase, Seq: 1}))
			if f := w.handlers[1].untilFrames(t, 1); len(f) != 1 || f[0].h.Seq != 1 {
				t.Fatalf("got %+v", f)
			}
		})
	}
}
