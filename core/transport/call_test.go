package transport

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestCall(t *testing.T) {
	for _, kind := range []string{Shm, TCP} {
		t.Run(kind, func(t *testing.T) {
			listen := func() *Endpoint {
				e, err := Listen(Config{})
				ok(t, err)
				t.Cleanup(func() { e.Close() })
				return e
			}
			a, b := listen(), listen()
			to := b.Address()
			if kind == TCP {
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
					return append([]byte{byte(topic)}, request...)
				}})
			long := strings.Repeat("y", maxCall-1)
			for _, request := range []string{"", "x", long} {
				if reply, err := call(1, 2, "s", request); err != nil || reply != "\x02"+request {
					t.Errorf("%d bytes come back: %v", len(reply), err)
				}
			}
			if _, err := call(1, 2, "s", long+"yy"); err == nil {
				t.Error("a request that is too long")
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
