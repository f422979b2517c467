package core

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/internal/polltest"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
)

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

// What a rank has offered ends with it, for who receives it and for nobody else. The receive may
// come before or after the rank has left.
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
					// a sender that leaves may not have been told that all was read
					case err == nil && (sendErr == nil || !late):
						if !slices.Equal(got, original) {
							t.Error("what has been received is not what was sent")
						}
					case sendErr == nil:
						t.Errorf("what was sent to the end is not received: %v", err)
					case !errors.Is(err, ErrAborted) || !strings.HasPrefix(err.Error(),
						fmt.Sprintf(`communicator "test": receive of %d bytes`, 4*n)) ||
						!strings.Contains(err.Error(), "has left") ||
						strings.Contains(err.Error(), hintOf(ErrAborted)):
						t.Errorf("receive: %v", err)
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
				if err := <-received; !errors.Is(err, ErrAborted) ||
					!strings.Contains(err.Error(), "all other ranks have left") {
					t.Errorf("receive: %v", err)
				}
			})
		}
	}
}

// A receive from any rank may wait for one whose process has ended without a goodbye, and then ends
// at once. It goes on where a rank has said goodbye, as far as what that has sent. Neither touches
// what others do.
func TestReceiveFromAnyWhenOneIsGone(t *testing.T) {
	for _, tr := range transports {
		for _, goodbye := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/%v", tr, goodbye), func(t *testing.T) {
				w := newWorldOf(t, tr, 3, Config{Timeout: time.Minute})
				around(t, w, 3, 10)
				c := w.comms[1]
				pending, err := c.Start(CallOptions{}, recvOp(buffer(t, 1), AnySource, 7))
				if err != nil {
					t.Fatal(err)
				}
				for _, tag := range []int{8, 9} { // the second comes behind the first
					if err := run(w.comms[2], sendOp(buffer(t, 1), 1, tag)); err != nil {
						t.Fatal(err)
					}
				}
				if err := run(c, recvOp(buffer(t, 1), 2, 9)); err != nil {
					t.Fatal(err)
				}
				if goodbye {
					w.comms[0].Destroy()
					awaitLeft(t, c, 0)
				} else {
					w.end(0)
					_, err := pending.Wait(-1)
					namesTheEnded(t, 0, err)
					namesTheEnded(t, 0, run(c, recvOp(buffer(t, 1), AnySource, 7)))
				}
				if err := run(c, recvOp(buffer(t, 1), AnySource, 8)); err != nil {
					t.Errorf("what had come before: %v", err)
				}
				othersGoOn(t, w, 1<<19)
				if goodbye {
					if err := run(w.comms[2], sendOp(buffer(t, 1), 1, 7)); err != nil {
						t.Error(err)
					}
					if _, err := pending.Wait(-1); err != nil {
						t.Error(err)
					}
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
		return Operation{Collective: plan.Broadcast, DType: reduce.Int32, In: apart.In, Out: apart.In,
			InCounts: apart.InCounts, OutCounts: apart.InCounts, Root: root}
	}
	for _, tr := range transports {
		for want, op := range map[string]Operation{
			"#1 allreduce(int32, 1048576 elements, SUM) by two_shot failed. Its output holds no usable " +
				"data, its input is as it was": apart,
			"#1 allreduce(int32, 1048576 elements, SUM) by two_shot failed. Its buffer, into which the " +
				"result was to come in place, holds no usable data": inPlace,
			"#1 broadcast(int32, 1048576 elements, root 1) by flat failed. Its buffer, into which the " +
				"result was to come in place, holds no usable data": broadcast(1),
			"#1 broadcast(int32, 1048576 elements, root 0) by flat failed. It has not changed its " +
				"buffers": broadcast(0),
			"#1 barrier failed": {Collective: plan.Barrier},
		} {
			t.Run(tr+"/"+want, func(t *testing.T) {
				w := newWorldOf(t, tr, 2, Config{Timeout: time.Minute})
				around(t, w, 2, 10)
				c := w.comms[0]
				works := map[*Work]string{} // what failed, and what has become of its buffers
				for i, next := range []struct {
					op   Operation
					want string
				}{
					{op, want},
					{apart, "#2 allreduce(int32, 1048576 elements, SUM) failed. It has not changed its buffers"},
					{recvOp(b, 1, 7), fmt.Sprintf("receive of 4194304 bytes with tag 7 from rank 1 (pid %d) "+
						"failed", pidOf(c, 1))},
				} {
					work, err := c.Start(CallOptions{WaitSoon: i == 0}, next.op) // then it has begun
					if err != nil {
						t.Fatal(err)
					}
					works[work] = next.want
				}
				w.comms[1].Abort("enough")
				for work, want := range works {
					what, state, _ := strings.Cut(want, " failed")
					text := fmt.Sprintf("communicator \"test\": %s failed: rank 1 (pid %d) aborted it: "+
						"enough%s. %s", what, os.Getpid(), state, hintOf(ErrAborted))
					_, err := work.Wait(time.Minute)
					if !errors.Is(err, ErrAborted) || err.Error() != text {
						t.Errorf("%v\nwant %s", err, text)
					}
				}
			})
		}
	}
}

// namesTheEnded checks the error of an operation that needs a rank whose process has ended.
func namesTheEnded(t *testing.T, rank int, err error) {
	t.Helper()
	if !errors.Is(err, ErrPeerFailed) || !strings.Contains(err.Error(),
		fmt.Sprintf("rank %d (pid", rank)) {
		t.Errorf("%v\nwas to name rank %d, whose process has ended", err, rank)
	}
}

// The first cause of a failure reaches a rank that had no connection to anybody, and that comes
// when those who knew of the failure have left.
func TestCauseReachesWhoComesLate(t *testing.T) {
	const size, late = 4, 3
	for _, tr := range transports {
		for _, how := range []string{"death", "abort"} {
			t.Run(tr+"/"+how, func(t *testing.T) {
				w := newWorldOf(t, tr, size, Config{Timeout: time.Minute})
				names := func(err error) {
					t.Helper()
					if how == "death" {
						namesTheEnded(t, 1, err)
					} else if !errors.Is(err, ErrAborted) || !strings.Contains(err.Error(), "tired of it") {
						t.Errorf("%v\nwas to name the abort", err)
					}
				}
				if how == "death" {
					w.endFor(0, 1) // the others would find it when they need it
					names(run(w.comms[0], allReduce(t, 100)))
				} else {
					w.comms[1].Abort("tired of it")
					w.comms[1].Destroy()
					awaitFailure(w.comms[0])
				}
				w.comms[0].Destroy()
				awaitFailure(w.comms[2])
				w.comms[2].Destroy()
				names(run(w.comms[late], allReduce(t, 100)))
			})
		}
	}
}

// A process that ends without a goodbye harms those only who need it. It may have done its part.
func TestProcessThatEndsHarmsOnlyWhoNeedsIt(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr, func(t *testing.T) {
			w := newWorldOf(t, tr, 3, Config{Timeout: time.Minute})
			around(t, w, 3, 10)
			pending, err := w.comms[1].Start(CallOptions{}, recvOp(buffer(t, 1), 2, 7))
			if err != nil {
				t.Fatal(err)
			}
			w.end(0)
			othersGoOn(t, w, 1<<19)
			if err := run(w.comms[2], sendOp(buffer(t, 1), 1, 7)); err != nil {
				t.Error(err)
			}
			if _, err := pending.Wait(-1); err != nil {
				t.Error(err)
			}
			// A rank is idle, and has a receive that it may get. Another comes to a collective.
			idle, err := w.comms[2].Start(CallOptions{}, recvOp(buffer(t, 1), 1, 8))
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range w.comms[1:] { // who asks is told before
				awaitLeft(t, c, 0)
				namesTheEnded(t, 0, c.Err())
			}
			namesTheEnded(t, 0, run(w.comms[1], allReduce(t, 8)))
			_, err = idle.Wait(-1)
			namesTheEnded(t, 0, err)
			namesTheEnded(t, 0, run(w.comms[2], allReduce(t, 8)))
		})
	}
}

// Sends and receives that need an ended process fail the communicator, whenever they were started.
func TestSendsAndReceivesOfAnEndedProcess(t *testing.T) {
	const n = 1 << 20 // an offer, over each transport
	for _, tr := range transports {
		for name, op := range map[string]func() Operation{
			"send":             func() Operation { return sendOp(buffer(t, n), 0, 0) },
			"receive":          func() Operation { return recvOp(buffer(t, n), 0, 0) },
			"receive from any": func() Operation { return recvOp(buffer(t, n), AnySource, 0) },
		} {
			for _, late := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/%s/%v", tr, name, late), func(t *testing.T) {
					size := 3
					if name == "receive from any" {
						size = 2
					}
					w := newWorldOf(t, tr, size, Config{Timeout: time.Minute})
					around(t, w, size, 10)
					if late {
						w.end(0)
					}
					c := w.comms[1]
					work, err := c.Start(CallOptions{}, op())
					if err != nil {
						t.Fatal(err)
					}
					if !late {
						w.end(0)
					}
					_, err = work.Wait(-1)
					namesTheEnded(t, 0, err)
					for _, c := range w.comms[1:] {
						awaitFailure(c)
						namesTheEnded(t, 0, c.Err())
					}
				})
			}
		}
	}
}

// A collective that an ended process has been through, and whose messages from it have all come,
// needs it no more.
func TestCollectiveThatIsCompleteWithoutAnEndedProcess(t *testing.T) {
	for _, tr := range transports {
		for _, left := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/%v", tr, left), func(t *testing.T) {
				w := newWorldOf(t, tr, 3, Config{Timeout: time.Minute})
				around(t, w, 3, 10)
				late := w.comms[1]
				letGo := holdQueue(t, late)
				work, err := late.Start(CallOptions{}, allReduce(t, 8))
				if err != nil {
					t.Fatal(err)
				}
				sendsItsPart(t, late, work)
				w.each(func(rank int) error {
					if rank == 1 {
						return nil
					}
					return run(w.comms[rank], allReduce(t, 8))
				})
				w.each(func(rank int) error { // which comes behind all of the collective
					switch rank {
					case 0:
						return run(w.comms[0], sendOp(buffer(t, 1), 1, 9))
					case 1:
						return run(late, recvOp(buffer(t, 1), 0, 9))
					}
					return nil
				})
				if left {
					w.comms[0].Destroy()
					awaitLeft(t, late, 0)
				} else {
					w.end(0)
				}
				letGo()
				if _, err := work.Wait(-1); err != nil {
					t.Error(err)
				}
				err = run(late, allReduce(t, 8))
				if want := map[bool]error{true: ErrAborted, false: ErrPeerFailed}[left]; !errors.Is(err, want) {
					t.Errorf("a collective that rank 0 has not come to: %v", err)
				}
			})
		}
	}
}

// A barrier of six passes no message between ranks 0 and 3. It ends at once all the same where rank
// 3 is gone, also if rank 0 does not know it, and only a rank that does not come to the barrier
// does.
func TestBarrierMissesARankThatItDoesNotHearFrom(t *testing.T) {
	barrier := Operation{Collective: plan.Barrier}
	for _, before := range []bool{true, false} {
		for _, known := range []int{0, 4} {
			t.Run(fmt.Sprintf("%v/%d", before, known), func(t *testing.T) {
				w := newWorldOf(t, "shm", 6, Config{Timeout: time.Minute})
				w.each(func(rank int) error { return run(w.comms[rank], barrier) })
				if before {
					w.endFor(known, 3)
				}
				work, err := w.comms[0].Start(CallOptions{}, barrier)
				if err != nil {
					t.Fatal(err)
				}
				if !before {
					polltest.Until(t, "rank 4 knows what rank 0 waits in", func() bool {
						return hasAnnounced(w.comms[4], 0)
					})
					w.endFor(4, 3)
				}
				_, err = work.Wait(-1)
				namesTheEnded(t, 3, err)
			})
		}
	}
}

// Of several ranks that are gone the error names the first, on every run.
func TestMonitoredBarrierNamesTheFirstOfTheGone(t *testing.T) {
	for range 5 {
		w := newWorldOf(t, "mem", 6, Config{Timeout: time.Minute})
		c := w.comms[0]
		for rank := 2; rank < 6; rank++ {
			w.endFor(0, rank)
		}
		goneSince(c, 1)
		namesTheEnded(t, 2, run(c, Operation{Collective: plan.MonitoredBarrier}))
	}
}

func TestMonitoredBarrierMissesAnEndedProcess(t *testing.T) {
	barrier := Operation{Collective: plan.MonitoredBarrier}
	for _, ended := range []int{0, 2} {
		for _, late := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d/%v", ended, late), func(t *testing.T) {
				w := newWorldOf(t, "shm", 3, Config{Timeout: time.Minute})
				around(t, w, 3, 10)
				if late {
					w.end(ended)
				}
				var works []*Work
				for rank, c := range w.comms {
					if rank == ended {
						continue
					}
					work, err := c.Start(CallOptions{}, barrier)
					if err != nil && !late { // the failure of another may have come already
						t.Fatal(err)
					}
					if err == nil {
						works = append(works, work)
					}
				}
				if !late {
					w.end(ended)
				}
				for _, work := range works {
					_, err := work.Wait(-1)
					namesTheEnded(t, ended, err)
				}
			})
		}
	}
}
