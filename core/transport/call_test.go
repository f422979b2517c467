package transport

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccl/goccl/core/address"
)

func TestCall(t *testing.T) {
	for _, kind := range []string{address.Shm, address.TCP} {
		t.Run(kind, func(t *testing.T) {
			listen := func() *Endpoint {
				e, err := Listen(Config{})
				ok(t, err)
				t.Cleanup(func() { e.Close() })
				return e
			}
			a, b := listen(), listen()
			to := b.Address()
			if kind == address.TCP {
				to.Unix = ""
			}
			call := func(service, topic uint64, secret, request string) (string, error) {
				reply, err := a.Call(within(t), &to, service, topic, []byte(secret), []byte(request))
				return string(reply), err
			}
			if _, err := call(1, 2, "s", "x"); !errors.Is(err, ErrPeerLeft) {
				t.Error(err)
			}
			here, gone := make(chan bool), make(chan bool)
			stop := b.Serve(Service{ID: 1, Secret: []byte("s"),
				Answer: func(ctx context.Context, topic uint64, request []byte) []byte {
					if topic == 3 {
						here <- true
						<-ctx.Done() // the caller has gone
						gone <- true
					}
					return bytes.Repeat(append([]byte{byte(topic)}, request...), int(topic)-1)
				}})
			long := strings.Repeat("y", maxRequest)
			for _, request := range []string{"", "x", long} {
				if reply, err := call(1, 2, "s", request); err != nil || reply != "\x02"+request {
					t.Errorf("%d bytes come back: %v", len(reply), err)
				}
			}
			if _, err := call(1, 2, "s", long+"y"); err == nil {
				t.Error("a request that is too long")
			}
			part := maxReply/16 - 1
			if reply, err := call(1, 17, "s", long[:part]); err != nil || len(reply) != maxReply {
				t.Errorf("of a long reply come %d bytes: %v", len(reply), err)
			}
			if _, err := call(1, 18, "s", long[:part]); !errors.Is(err, ErrProtocol) {
				t.Errorf("a reply that is too long: %v", err)
			}
			if _, err := call(1, 2, "other", "x"); !errors.Is(err, ErrRefused) {
				t.Error(err)
			}
			ctx, cancel := context.WithCancel(within(t))
			go func() {
				_, err := a.Call(ctx, &to, 1, 3, []byte("s"), nil)
				if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				gone <- true
			}()
			<-here
			cancel()
			<-gone
			<-gone
			stop()
			if _, err := call(1, 2, "s", "x"); !errors.Is(err, ErrPeerLeft) {
				t.Error(err)
			}
			b.Close()
			if _, err := call(1, 2, "s", "x"); !errors.Is(err, ErrPeerDown) {
				t.Error(err)
			}
		})
	}
}

// Who stands between caller and service, and hands the handshake on, reads neither request nor
// reply, and cannot change them.
func TestCallThroughAnother(t *testing.T) {
	a, err := Listen(Config{})
	ok(t, err)
	t.Cleanup(func() { a.Close() })
	b, err := Listen(Config{})
	ok(t, err)
	t.Cleanup(func() { b.Close() })
	const request, reply = "what is asked, in clear", "what is answered, in clear"
	asked := make(chan string, 10)
	b.Serve(Service{ID: 1, Secret: []byte("s"),
		Answer: func(_ context.Context, _ uint64, request []byte) []byte {
			asked <- string(request)
			return []byte(reply)
		}})
	for _, c := range []struct {
		what       string
		there, way int // the byte that is changed on each way, from the message's length on; -1: none
		kind       error
	}{
		{"as it is", -1, -1, nil},
		{"the request", 4, -1, context.DeadlineExceeded}, // it is not answered
		{"the request's end", 4 + len(request) + 15, -1, context.DeadlineExceeded},
		{"the reply", -1, 4, ErrProtocol},
		{"the reply's end", -1, 4 + len(reply) + 15, ErrProtocol},
		{"the reply's length", -1, 3, ErrProtocol},
	} {
		t.Run(c.what, func(t *testing.T) {
			to := b.Address()
			to.Unix = ""
			seen := relay(t, &to, helloSize+proofSize+c.there, c.there >= 0, challengeSize+verdictSize+c.way,
				c.way >= 0)
			ctx, cancel := context.WithCancel(within(t))
			if c.kind == context.DeadlineExceeded {
				ctx, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
			}
			defer cancel()
			got, err := a.Call(ctx, &to, 1, 2, []byte("s"), []byte(request))
			if !errors.Is(err, c.kind) || c.kind == nil && string(got) != reply {
				t.Errorf("%q, %v", got, err)
			}
			for len(asked) > 0 {
				if text := <-asked; text != request {
					t.Errorf("asked %q", text)
				}
			}
			if text := seen(); strings.Contains(text, "clear") {
				t.Errorf("in clear: %q", text)
			}
		})
	}
}

// relay puts itself between callers and an address. It changes the bytes at two places, if it is
// to, and tells what it has seen.
func relay(t *testing.T, to *address.Address, there int, changesThere bool, back int,
	changesBack bool) (seen func() string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	t.Cleanup(func() { l.Close() })
	target := to.TCP[0]
	to.TCP = []string{l.Addr().String()}
	var mu sync.Mutex
	var all []byte
	pass := func(from, to net.Conn, at int, changes bool) {
		defer to.Close()
		b := make([]byte, 1)
		for i := 0; ; i++ {
			if _, err := io.ReadFull(from, b); err != nil {
				return
			}
			mu.Lock()
			all = append(all, b...)
			mu.Unlock()
			if changes && i == at {
				b[0] ^= 1
			}
			if _, err := to.Write(b); err != nil {
				return
			}
		}
	}
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", target)
			if err != nil {
				in.Close()
				return
			}
			go pass(in, out, there, changesThere)
			go pass(out, in, back, changesBack)
		}
	}()
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return string(all)
	}
}
