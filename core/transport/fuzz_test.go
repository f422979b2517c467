package transport

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/internal/printable"
	"github.com/goccl/goccl/rdma"
)

func FuzzHeader(f *testing.F) {
	for _, h := range []Header{
		{Type: Data, Bytes: MaxData},
		{Type: ControlBase, Bytes: MaxControl, Seq: 1 << 63, Arg: [2]uint64{1, 2}},
		{Type: typeAttach, Bytes: macSize, Flags: 1}, {Type: typeBye},
		{Type: typePing},
		{Type: typeRefused, Src: 1, Dst: 2},
		{Type: Data, Bytes: 100, advertised: true},
	} {
		var b [headerSize]byte
		h.put(&b)
		f.Add(b[:])
	}
	f.Add(make([]byte, headerSize))
	f.Fuzz(func(t *testing.T, in []byte) {
		var b, again [headerSize]byte
		copy(b[:], in)
		h, err := parseHeader(&b)
		if err != nil {
			return
		}
		if h.Bytes > MaxData || h.Type != Data && h.Bytes > MaxControl {
			t.Fatalf("%+v is let through", h)
		}
		if h.put(&again); again != b {
			t.Fatalf("% x became % x", b, again)
		}
	})
}

// FuzzNote reads what comes beside a verbs link.
func FuzzNote(f *testing.F) {
	for _, n := range []note{{ok: true, record: [rdma.RecordSize]byte{1, 2, 3}}, {why: "no way"},
		{why: "two\nlines \x1b[0m"}, {}} {
		b := n.bytes()
		f.Add(b[:])
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var b [noteSize]byte
		copy(b[:], in)
		n, err := parseNote(&b)
		if err != nil {
			return
		}
		for _, r := range n.why {
			if !unicode.IsPrint(r) {
				t.Fatalf("%q would be logged", n.why)
			}
		}
		again := n.bytes()
		back, err := parseNote(&again)
		if err != nil || back.ok != n.ok || back.record != n.record ||
			back.why != printable.Text(n.why, noteText) {
			t.Fatalf("%+v became %+v, %v", n, back, err)
		}
	})
}

// FuzzAddress reads what two processes publish of themselves, and joins them.
func FuzzAddress(f *testing.F) {
	a := address.Address{Process: address.ProcessID{1}, PID: 7, Name: "a", Host: "h", Unix: "@a",
		TCP: []string{"127.0.0.1:1"}}
	b := a
	b.Process, b.Host = address.ProcessID{2}, "other"
	text := func(a address.Address) []byte {
		b, err := json.Marshal(a)
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	f.Add(text(a), text(b), "")
	b.Host, b.ShmProblem = "h", "no memfd"
	f.Add(text(a), text(b), address.Shm)
	f.Fuzz(func(t *testing.T, first, second []byte, forced string) {
		var a, b address.Address
		if json.Unmarshal(first, &a) != nil || json.Unmarshal(second, &b) != nil {
			return
		}
		there, err := address.Decide(a, b, forced)
		back, errBack := address.Decide(b, a, forced)
		if there != back || (err == nil) != (errBack == nil) {
			t.Fatalf("%q (%v) from one side, %q (%v) from the other", there, err, back, errBack)
		}
		switch {
		case err != nil:
			return
		case forced != "" && there != forced && there != address.Mem,
			there == address.Mem && a.Process != b.Process,
			there == address.Shm && (a.Host != b.Host || a.Unix == "" || b.Unix == ""),
			there == address.TCP && (len(a.Reachable(&b)) == 0 || len(b.Reachable(&a)) == 0):
			t.Fatalf("%q joins %+v and %+v", there, a, b)
		}
	})
}

// script plays the other side of a handshake.
type script struct {
	io.Reader
	said bytes.Buffer
}

func (s *script) Write(b []byte) (int, error) { return s.said.Write(b) }

func FuzzAdmit(f *testing.F) {
	h := hello{purpose: purposeLink, job: 1, group: 1, from: address.ProcessID{1},
		to: address.ProcessID{2}}
	b := h.bytes()
	f.Add(append(b[:], make([]byte, proofSize)...))
	h.purpose = purposeProbe
	b = h.bytes()
	f.Add(b[:])
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		s := &script{Reader: bytes.NewReader(in)}
		err := admit(s, admission{
			self: address.ProcessID{2},
			find: func(h hello) ([]byte, status, error) {
				if h.group != 1 {
					return nil, statusLater, errQuiet
				}
				return secret, statusOK, nil
			},
			decide: func(hello, [2][nonceSize]byte, func(status) error) error {
				t.Error("let in without the secret")
				return nil
			},
		})
		if err == nil {
			t.Fatal("no error")
		}
	})
}

func FuzzIntroduce(f *testing.F) {
	var b [challengeSize + verdictSize]byte
	answerHead(b[:], statusOK)
	answerHead(b[challengeSize:], statusOK)
	f.Add(b[:])
	answerHead(b[challengeSize:], statusDuplicate)
	f.Add(b[:])
	for s := statusOK; s <= statusUnable+1; s++ {
		answerHead(b[:], s)
		f.Add(b[:challengeSize])
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if _, err := introduce(&script{Reader: bytes.NewReader(in)}, "group g", secret,
			&hello{purpose: purposeLink, from: address.ProcessID{1}}); err == nil {
			t.Fatal("believed without the secret")
		}
	})
}

// sink is a handler that checks bounds and keeps nothing.
type sink struct{ t *testing.T }

func (s *sink) Slot(src int, h Header) (head, body []byte, err error) {
	if src != 1 || h.Bytes > 1<<16 {
		return nil, nil, errors.New("no such slot")
	}
	return nil, make([]byte, h.Bytes), nil
}
func (s *sink) Arrived(int, Header)       {}
func (s *sink) Dropped(int, Header)       {}
func (s *sink) Acked(int, Header, []byte) {}
func (s *sink) Control(src int, h Header, p []byte) {
	if src != 1 || len(p) != int(h.Bytes) || len(p) > MaxControl {
		s.t.Errorf("%+v is let through", h)
	}
}
func (s *sink) PeerAttached(int, []int) {}
func (s *sink) PeerDown(int, error)     {}
func (s *sink) PeerLeft(int)            {}

// FuzzLink feeds an authenticated link, before and after a right attach.
func FuzzLink(f *testing.F) {
	frame := func(h Header, n int) []byte {
		var b [headerSize]byte
		h.put(&b)
		return append(b[:], make([]byte, n)...)
	}
	at := Header{Job: 1, Group: 1, Epoch: 5, Src: 1, Dst: 0}
	with := func(ty uint8, n int) Header { h := at; h.Type, h.Bytes = ty, uint32(n); return h }
	f.Add(false, frame(with(typeAttach, macSize), macSize))
	f.Add(true, frame(with(typeAttach, macSize), macSize))
	f.Add(true, frame(with(Data, 100), 100))
	f.Add(true, append(frame(with(ControlBase, 10), 10), frame(with(typeBye, 0), 0)...))
	f.Add(true, frame(with(typeRefused, 0), 0))
	f.Add(false, frame(with(typeBye, 0), 0))
	f.Add(true, frame(Header{Type: typeAttach, Flags: 1, Bytes: macSize, Group: 7}, macSize))
	e, err := Listen(Config{StoreHost: "127.0.0.1"})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { e.Close() })
	there := e.address
	there.Process = address.ProcessID{1}
	f.Fuzz(func(t *testing.T, attached bool, in []byte) {
		g, err := e.Attach(GroupConfig{Job: 1, Group: 1, Epoch: 5, Secret: secret, Rank: 0,
			Peers: []address.Address{e.address, there}, Kinds: []string{address.Mem, address.Shm},
			Handler: &sink{t}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			g.Detach()
			e.mu.Lock() // the next one attaches anew, at the same epoch
			clear(e.gone)
			e.goneOrder = nil
			e.mu.Unlock()
		}()
		pair, err := unix.Socketpair(unix.AF_UNIX,
			unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		dialed := func(fd int) net.Conn {
			file := os.NewFile(uintptr(fd), "")
			defer file.Close()
			c, err := net.FileConn(file)
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		ours, theirs := dialed(pair[0]), dialed(pair[1])
		defer theirs.Close()
		e.mu.Lock()
		l := newLink(e, e.newConn(ours), peerKey{there.Process, address.Shm}, [2][nonceSize]byte{})
		e.adopt(l)
		err = l.start(newSocket(l.conn, address.Shm), &there)
		e.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		go io.Copy(io.Discard, theirs)
		if attached {
			var raw [headerSize]byte
			h := with(typeAttach, macSize)
			h.put(&raw)
			sum := attachMAC(secret, &l.nonces, there.Process, &raw)
			theirs.Write(append(raw[:], sum[:]...))
		}
		theirs.Write(in)
		theirs.(*net.UnixConn).CloseWrite()
		select {
		case <-l.done:
		case <-time.After(patience):
			t.Fatal("the link does not end")
		}
	})
}
