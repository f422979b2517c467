package bootstrap

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccl/goccl/core/pending"
)

func newRoot(t *testing.T) *Root {
	t.Helper()
	r, err := NewRoot("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func dial(t *testing.T, id [IDSize]byte) Store {
	t.Helper()
	s, c, err := DialRoot(within(t, limit), id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return s
}

func TestRootOnNoHost(t *testing.T) {
	_, err := NewRoot("no\x1b[2J\nhost")
	if !errors.Is(err, ErrInvalid) || strings.ContainsAny(err.Error(), "\x1b\n") {
		t.Errorf("%q", err)
	}
}

func TestRootStore(t *testing.T) {
	r := newRoot(t)
	a, b := dial(t, r.ID()), dial(t, r.ID())
	if _, ok, err := a.Get("k"); ok || err != nil {
		t.Fatal(ok, err)
	}
	big := bytes.Repeat([]byte("0123456789"), 100_000)
	for _, v := range [][]byte{[]byte("v"), {}, big} {
		if err := a.Set("k", v); err != nil {
			t.Fatal(err)
		}
		for _, s := range []Store{b, r.Store()} {
			if got, ok, err := s.Get("k"); err != nil || !ok || !bytes.Equal(got, v) {
				t.Fatalf("%d bytes, %v, %v", len(got), ok, err)
			}
		}
	}
	if err := r.Store().Set("own", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if got, _, _ := b.Get("own"); string(got) != "x" {
		t.Fatal(got)
	}
}

func TestRootWatch(t *testing.T) {
	r := newRoot(t)
	for _, s := range []Watcher{dial(t, r.ID()).(Watcher), r.Store().(Watcher)} {
		type seen struct {
			value string
			ok    bool
		}
		watch := func(old string, most time.Duration) chan seen {
			c := make(chan seen, 1)
			go func() {
				v, ok, err := s.Watch("k", []byte(old), most)
				if err != nil {
					t.Error(err)
				}
				c <- seen{string(v), ok}
			}()
			return c
		}
		if got := <-watch("", time.Millisecond); got.ok {
			t.Errorf("%+v, want nothing", got)
		}
		waiting := watch("", limit)
		for _, v := range []string{"a", "b"} {
			if err := r.set("k", []byte(v)); err != nil {
				t.Fatal(err)
			}
			if got := <-waiting; got != (seen{v, true}) {
				t.Errorf("%+v, want %q", got, v)
			}
			waiting = watch(v, limit)
		}
		if err := r.set("other", []byte("c")); err != nil {
			t.Fatal(err)
		}
		if err := r.set("k", []byte("c")); err != nil {
			t.Fatal(err)
		}
		if got := <-waiting; got != (seen{"c", true}) {
			t.Errorf("%+v, want c", got)
		}
		if got := <-watch("c", time.Millisecond); got != (seen{"c", true}) {
			t.Errorf("%+v, want c, which has not changed", got)
		}
		r.mu.Lock()
		delete(r.values, "k")
		r.mu.Unlock()
	}
	done := make(chan struct{})
	go func() { r.watch("k", nil, limit); close(done) }()
	r.Close()
	<-done
}

// TestRootForgetsWhatNobodyWatches: keys that never get a value take no memory.
func TestRootForgetsWhatNobodyWatches(t *testing.T) {
	r := newRoot(t)
	first := make(chan struct{})
	go func() { r.watch("k", nil, limit); close(first) }()
	for i := range 100 {
		r.watch(fmt.Sprint(i), nil, time.Microsecond)
		r.watch("k", nil, time.Microsecond) // which another one watches meanwhile
	}
	if err := r.set("k", []byte("v")); err != nil { // what is empty would be no news
		t.Fatal(err)
	}
	<-first
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waits) > 0 {
		t.Errorf("%d keys are kept", len(r.waits))
	}
}

func TestRootJoin(t *testing.T) {
	r := newRoot(t)
	configs := ranks(5)
	secret, err := IDSecret(r.ID())
	if err != nil {
		t.Fatal(err)
	}
	results := make([]result, len(configs))
	ctx := within(t, limit)
	var wg sync.WaitGroup
	for i, c := range configs {
		c.Secret = secret
		wg.Go(func() {
			s, closer, err := DialRoot(ctx, r.ID())
			if err != nil {
				results[i].err = err
				return
			}
			defer closer.Close()
			o, err := Join(ctx, s, c)
			results[i] = result{c.Rank, o, err}
			if c.Rank == 0 {
				// The others may still be reading.
				r.Drain(limit)
			}
		})
	}
	wg.Wait()
	agree(t, configs, results)
	r.serving.Wait()
}

func TestRootWrongSecret(t *testing.T) {
	r := newRoot(t)
	id := r.ID()
	id[5] ^= 1
	if _, _, err := DialRoot(within(t, limit), id); !errors.Is(err, ErrInvalid) {
		t.Fatal("a damaged id:", err)
	}
	binary.LittleEndian.PutUint32(id[idBody:], crc32.ChecksumIEEE(id[:idBody]))
	if _, _, err := DialRoot(within(t, limit), id); !errors.Is(err, ErrRefused) {
		t.Fatal("another secret:", err)
	}
	// The root still serves those who hold its secret.
	dial(t, r.ID())
}

func TestRootClientRefusesImpostor(t *testing.T) {
	answers := map[string]func(c net.Conn){
		"another service": func(c net.Conn) {
			_, _ = c.Write(bytes.Repeat([]byte("HTTP/1.1 400 Bad Request\r\n"), 10))
		},
		"no secret": func(c net.Conn) {
			_, _ = c.Write(append([]byte(greeting), make([]byte, secretSize)...))
			_, _ = io.ReadFull(c, make([]byte, 2*secretSize))
			_, _ = c.Write(make([]byte, secretSize))
		},
		// Sending the client's own proof back is no proof.
		"mirror": func(c net.Conn) {
			_, _ = c.Write(append([]byte(greeting), make([]byte, secretSize)...))
			b := make([]byte, 2*secretSize)
			_, _ = io.ReadFull(c, b)
			_, _ = c.Write(b[secretSize:])
		},
	}
	for name, answer := range answers {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				if c, err := l.Accept(); err == nil {
					answer(c)
					_, _ = io.Copy(io.Discard, c)
					_ = c.Close()
				}
			}()
			r := newRoot(t)
			r.addresses = []netip.AddrPort{netip.MustParseAddrPort(l.Addr().String())}
			if _, _, err := DialRoot(within(t, limit), r.ID()); !errors.Is(err, ErrRefused) {
				t.Fatal(err)
			}
		})
	}
}

func TestRootDialEnds(t *testing.T) {
	r := newRoot(t)
	r.Close()
	_, _, err := DialRoot(within(t, short), r.ID())
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "127.0.0.1") {
		t.Fatal(err)
	}
	// A root that accepts and says nothing.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r.addresses = []netip.AddrPort{netip.MustParseAddrPort(l.Addr().String())}
	if _, _, err := DialRoot(within(t, short), r.ID()); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

func TestRootSurvivesGarbage(t *testing.T) {
	r := newRoot(t)
	address := r.addresses[0].String()
	var open []net.Conn
	for i := range 50 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i%2 == 0 {
			_, _ = c.Write(bytes.Repeat([]byte{byte(i)}, i*100))
		}
		open = append(open, c)
	}
	s := dial(t, r.ID())
	if err := s.Set("k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	// Garbage long enough to be read as a proof ends the connection.
	if _, err := io.Copy(io.Discard, open[2]); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Fatal(err)
	}
}

// More silent strangers than the root bears at once, before and among the ranks: the group meets
// all the same, before any of them has been given up.
func TestRootMeetsAmongStrangers(t *testing.T) {
	r := newRoot(t)
	address := r.addresses[0].String()
	stranger := func() {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	for range 2 * maxStrangers {
		stranger()
	}
	ctx := within(t, greetingTime)
	for range 20 {
		stranger()
		s, c, err := DialRoot(ctx, r.ID())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for range maxStrangers { // a client has left their list
			stranger()
		}
		if err := s.Set("k", []byte("v")); err != nil {
			t.Fatal(err)
		}
	}
}

// A client that the root hangs up on has had to go for others: it dials again.
func TestRootDropsAndIsDialledAgain(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r := newRoot(t)
	real := r.addresses[0].String()
	r.addresses = []netip.AddrPort{netip.MustParseAddrPort(l.Addr().String())}
	go func() {
		for i := range 3 {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			if i < 2 { // before and after the client's proof
				_, _ = c.Write(append([]byte(greeting), make([]byte, secretSize)...))
				_, _ = io.ReadFull(c, make([]byte, 2*i*secretSize))
				_ = c.Close()
				continue
			}
			to, err := net.Dial("tcp", real)
			if err != nil {
				return
			}
			defer to.Close()
			go func() { _, _ = io.Copy(to, c) }()
			_, _ = io.Copy(c, to)
		}
	}()
	s := dial(t, r.ID())
	if err := s.Set("k", []byte("v")); err != nil {
		t.Fatal(err)
	}
}

func TestRootLimits(t *testing.T) {
	r := newRoot(t)
	s := dial(t, r.ID())
	if err := s.Set(strings.Repeat("k", maxKey+1), nil); !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
	if err := s.Set("", nil); !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
	fill := func(n int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.total = n
	}
	fill(maxTotal)
	if err := s.Set("k", []byte("v")); err == nil || !strings.Contains(err.Error(), "full") {
		t.Fatal(err)
	}
	fill(0)
	// A refused request does not end the connection.
	if err := s.Set("k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	// Values that are replaced do not add up.
	for range 100 {
		if err := s.Set("k", make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.total != 1001 {
		t.Fatal(r.total)
	}
}

func TestRootCloseEndsClients(t *testing.T) {
	r := newRoot(t)
	s := dial(t, r.ID())
	r.Close()
	if _, _, err := s.Get("k"); err == nil {
		t.Fatal("a closed root answers")
	}
	if err := s.Set("k", nil); err == nil || !strings.Contains(err.Error(), "127.0.0.1") {
		t.Fatal(err)
	}
}

// A root listens on the interfaces that a text allows.
func TestRootOnInterfaces(t *testing.T) {
	r, err := NewRootOn("nosuch,lo")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, a := range r.addresses {
		if !a.Addr().IsLoopback() {
			t.Errorf("it listens on %v", a)
		}
	}
	for _, text := range []string{"=nosuch", "^"} {
		if _, err := NewRootOn(text); !errors.Is(err, ErrInvalid) ||
			!strings.Contains(err.Error(), "GOCCL_SOCKET_IFNAME") {
			t.Errorf("%q: %v", text, err)
		}
	}
	any, err := NewRootOn("")
	if err != nil {
		t.Fatal(err)
	}
	any.Close()
}

func TestListenAddresses(t *testing.T) {
	for _, h := range []string{"", "localhost", "127.0.0.1"} {
		a, err := listenAddresses(h)
		if err != nil || len(a) == 0 || len(a) > maxAddresses {
			t.Errorf("%q: %v, %v", h, a, err)
		}
	}
	if _, err := listenAddresses("no host"); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if _, err := listenAddresses("0.0.0.0"); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
}

func TestIDHoldsFourAddresses(t *testing.T) {
	r := &Root{}
	for i := range maxAddresses {
		r.addresses = append(r.addresses,
			netip.MustParseAddrPort(fmt.Sprintf("[2001:db8::%d]:%d", i+1, 1000+i)))
	}
	_, got, err := decodeID(r.ID())
	if err != nil || fmt.Sprint(got) != fmt.Sprint(r.addresses) {
		t.Fatal(got, err)
	}
}

func FuzzDecodeID(f *testing.F) {
	r := &Root{addresses: []netip.AddrPort{netip.MustParseAddrPort("10.1.2.3:4"),
		netip.MustParseAddrPort("[::1]:5")}}
	id := r.ID()
	f.Add(id[:])
	f.Add([]byte{idVersion})
	f.Fuzz(func(t *testing.T, b []byte) {
		var id [IDSize]byte
		copy(id[:], b)
		binary.LittleEndian.PutUint32(id[idBody:], crc32.ChecksumIEEE(id[:idBody]))
		_, a, err := decodeID(id)
		if err == nil && (len(a) < 1 || len(a) > maxAddresses) {
			t.Fatal(a)
		}
	})
}

func FuzzReadRequest(f *testing.F) {
	f.Add([]byte{opSet, 1, 0, 1, 0, 0, 0, 'k', 'v'})
	f.Add([]byte{opGet, 1, 0, 0, 0, 0, 0, 'k'})
	f.Add([]byte{opSet, 1, 0, 0, 0, 0, 4, 'k'})
	f.Add([]byte{opEnter, 1, 0, 1, 0, 0, 0, 'k', 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		op, key, value, err := readRequest(bytes.NewReader(b), maxValue)
		if err == nil && (op < opSet || op > opEnter || len(key) < 1 ||
			op == opWatch && len(value) < watchHead ||
			op == opEnter && len(value) > maxAddressBytes ||
			len(key)+len(value)+requestHead > len(b)) {
			t.Fatal(op, len(key), len(value))
		}
	})
}

func FuzzReadAnswer(f *testing.F) {
	f.Add([]byte{statusOK, 1, 0, 0, 0, 'v'})
	f.Add([]byte{statusAbsent, 0, 0, 0, 0})
	f.Add([]byte{statusError, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		_, v, err := readAnswer(bytes.NewReader(b), maxValue)
		if err == nil && len(v)+answerHead > len(b) {
			t.Fatal(len(v))
		}
	})
}

// FuzzMeet feeds a dialling rank what is not a root.
func FuzzMeet(f *testing.F) {
	f.Add([]byte(greeting))
	f.Add(append([]byte(greeting), make([]byte, 2*secretSize)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := struct {
			io.Reader
			io.Writer
		}{bytes.NewReader(b), io.Discard}
		if meet(c, [secretSize]byte{1}) == nil {
			t.Fatal("something without the secret was taken for the root")
		}
	})
}

// FuzzServe feeds a root what is not a client, and then what is one gone wrong.
func FuzzServe(f *testing.F) {
	f.Add(true, []byte{opSet, 1, 0, 1, 0, 0, 0, 'k', 'v', 9, 9, 9})
	f.Add(true, bytes.Repeat([]byte{opEnter, 1, 0, 1, 0, 0, 0, 'k', 9}, radix+1))
	f.Add(false, bytes.Repeat([]byte{0}, 100))
	f.Fuzz(func(t *testing.T, knows bool, b []byte) {
		r := &Root{strangers: pending.List{Most: 1}}
		r.start()
		ours, theirs := net.Pipe()
		done := make(chan struct{})
		go func() { r.serve(ours); _ = ours.Close(); close(done) }()
		_ = theirs.SetDeadline(time.Now().Add(limit))
		if knows {
			if err := meet(theirs, r.secret); err != nil {
				t.Fatal(err)
			}
		}
		drained := make(chan struct{})
		go func() { _, _ = io.Copy(io.Discard, theirs); close(drained) }()
		_, _ = theirs.Write(b)
		_ = theirs.Close()
		r.Close() // ends a watch
		<-done
		<-drained
		if !knows && len(r.values) != 0 {
			t.Fatal("a stranger has written")
		}
	})
}
