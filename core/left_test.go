package core

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
)

// awaitLeft waits until a rank knows that a peer has left.
func awaitLeft(t *testing.T, c *Comm, peer int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() {
		c.p2p.mu.Lock()
		gone := c.p2p.gone[peer]
		c.p2p.mu.Unlock()
		if gone {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("rank %d has not heard that rank %d left", c.rank, peer)
		}
	}
}

// What a rank has offered ends with it, for who receives it and for nobody else: at once, whether the receive comes before or after the rank has left.
func TestSendsOfWhoHasLeft(t *testing.T) {
	const n = 1 << 19
	for _, thresholds := range []string{"", "send_get_min=0"} {
		for _, tr := range transports {
			for _, late := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/%s/%v", thresholds, tr, late), func(t *testing.T) {
					w := newWorldOf(t, tr, 3, Config{Timeout: time.Minute, Thresholds: thresholds})
					around(t, w, 3, 10)
					send, err := w.comms[0].Start(CallOptions{}, sendOp(buffer(t, n), 1, 0))
					if err != nil {
						t.Fatal(err)
					}
					begun := time.Now()
					received := make(chan error, 1)
					receive := func() { received <- run(w.comms[1], recvOp(buffer(t, n), 0, 0)) }
					if !late {
						go receive()
					}
					w.comms[0].Destroy()
					if _, err := send.Wait(time.Minute); err != nil && !errors.Is(err, ErrAborted) {
						t.Errorf("send: %v", err)
					}
					if late {
						awaitLeft(t, w.comms[1], 0)
						receive()
					}
					if err := <-received; (late || err != nil) && (!errors.Is(err, ErrAborted) || !strings.Contains(err.Error(), "has left")) {
						t.Errorf("receive: %v", err)
					}
					if took := time.Since(begun); took > 30*time.Second {
						t.Errorf("it took %v", took)
					}
					errs := w.try(func(rank int) error {
						switch rank {
						case 1:
							return run(w.comms[1], sendOp(buffer(t, n), 2, 0))
						case 2:
							return run(w.comms[2], recvOp(buffer(t, n), 1, 0))
						}
						return nil
					})
					if err := errors.Join(errs...); err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
}

// A receive from any rank ends when there is none left that could send.
func TestReceiveFromAnyWhenAllHaveLeft(t *testing.T) {
	for _, tr := range transports {
		for _, late := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/%v", tr, late), func(t *testing.T) {
				w := newWorldOf(t, tr, 3, Config{Timeout: time.Minute})
				around(t, w, 3, 10)
				received := make(chan error, 1)
				receive := func() { received <- run(w.comms[0], recvOp(buffer(t, 1), AnySource, 0)) }
				if !late {
					go receive()
				}
				w.comms[1].Destroy()
				w.comms[2].Destroy()
				if late {
					awaitLeft(t, w.comms[0], 1)
					awaitLeft(t, w.comms[0], 2)
					receive()
				}
				if err := <-received; !errors.Is(err, ErrAborted) || !strings.Contains(err.Error(), "all other ranks have left") {
					t.Errorf("receive: %v", err)
				}
			})
		}
	}
}
