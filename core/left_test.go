package core

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
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

// othersGoOn has ranks 1 and 2 exchange something after rank 0 has left.
func othersGoOn(t *testing.T, w *world, n int) {
	t.Helper()
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
					sent, got := buffer(t, n), buffer(t, n)
					for i := range sent {
						sent[i] = int32(i) + 1
					}
					send, err := w.comms[0].Start(CallOptions{}, sendOp(sent, 1, 0))
					if err != nil {
						t.Fatal(err)
					}
					begun := time.Now()
					received := make(chan error, 1)
					receive := func() { received <- run(w.comms[1], recvOp(got, 0, 0)) }
					if !late {
						go receive()
					}
					w.comms[0].Destroy()
					_, sendErr := send.Wait(time.Minute)
					original := slices.Clone(sent)
					clear(sent) // the sender has its buffer back
					if sendErr != nil && !errors.Is(sendErr, ErrAborted) {
						t.Errorf("send: %v", sendErr)
					}
					if late {
						awaitLeft(t, w.comms[1], 0)
						receive()
					}
					switch err := <-received; {
					case err == nil && (sendErr == nil || !late): // a sender that leaves may not have been told that all was read
						if !slices.Equal(got, original) {
							t.Error("what has been received is not what was sent")
						}
					case sendErr == nil:
						t.Errorf("what was sent to the end is not received: %v", err)
					case !errors.Is(err, ErrAborted) || !strings.Contains(err.Error(), "has left"):
						t.Errorf("receive: %v", err)
					}
					if took := time.Since(begun); took > 30*time.Second {
						t.Errorf("it took %v", took)
					}
					othersGoOn(t, w, n)
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

// A failure names what it has ended, and tells what has become of its buffers.
func TestFailureNamesWhatItEnded(t *testing.T) {
	const n = 1 << 20
	b := buffer(t, n)
	inPlace := allReduce(t, n)
	inPlace.Out = inPlace.In
	apart := inPlace
	apart.Out = []unsafe.Pointer{ptr(b)}
	broadcast := func(root int) Operation {
		return Operation{Collective: plan.Broadcast, DType: reduce.Int32, In: apart.In, Out: apart.In, InCounts: apart.InCounts, OutCounts: apart.InCounts, Root: root}
	}
	for _, tr := range transports {
		for want, op := range map[string]Operation{
			"allreduce(int32, 1048576 elements, SUM). Its output holds no usable data, its input is as it was":                         apart,
			"allreduce(int32, 1048576 elements, SUM). Its buffer, into which the result was to come in place, holds no usable data":    inPlace,
			"broadcast(int32, 1048576 elements, root 1). Its buffer, into which the result was to come in place, holds no usable data": broadcast(1),
			"broadcast(int32, 1048576 elements, root 0). It has not changed its buffers":                                               broadcast(0),
			"barrier": {Collective: plan.Barrier},
		} {
			t.Run(tr+"/"+want, func(t *testing.T) {
				w := newWorldOf(t, tr, 2, Config{Timeout: time.Minute})
				around(t, w, 2, 10)
				c := w.comms[0]
				works := map[*Work]string{}
				for i, next := range []struct {
					op   Operation
					want string
				}{
					{op, "enough. It ended #1 " + want},
					{apart, "enough. It ended #2 allreduce(int32, 1048576 elements, SUM). It has not changed its buffers"},
					{recvOp(b, 1, 7), fmt.Sprintf("enough. It ended the receive of 4194304 bytes with tag 7 from rank 1 (pid %d)", c.addresses[1].PID)},
				} {
					work, err := c.Start(CallOptions{WaitSoon: i == 0}, next.op) // then it has begun
					if err != nil {
						t.Fatal(err)
					}
					works[work] = next.want
				}
				w.comms[1].Abort("enough")
				for work, want := range works {
					if _, err := work.Wait(time.Minute); !errors.Is(err, ErrAborted) || !strings.HasSuffix(err.Error(), want) {
						t.Errorf("%v\nwant %s", err, want)
					}
				}
			})
		}
	}
}
