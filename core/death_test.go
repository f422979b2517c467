package core

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// openSockets are those that a runtime has open, as its OnFD.
type openSockets struct {
	mu  sync.Mutex
	fds map[int]bool
}

func (s *openSockets) note(fd int, open bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fds == nil {
		s.fds = map[int]bool{}
	}
	s.fds[fd] = open
}

// kill ends all connections, and lets no more in, as the end of a process does.
func (s *openSockets) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for fd, open := range s.fds {
		if open {
			_ = unix.Shutdown(fd, unix.SHUT_RDWR) // fails for what is no socket
		}
	}
}

// mortal makes a world whose ranks can be killed, four on a host.
func mortal(t *testing.T, size int) (*world, []openSockets) {
	t.Helper()
	sockets := make([]openSockets, size)
	w, errs := tryWorld(t, size, func(rank int, r *RuntimeConfig, c *Config) {
		r.host, r.OnFD = fmt.Sprint("host ", rank/4), sockets[rank].note
		c.Transport, c.Timeout, c.Thresholds = "tcp", time.Minute, "one_shot_max=0"
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return w, sockets
}

// Most ranks have no connection to the one that dies. Those that have one tell theirs, and these
// theirs, wherever the dead rank had its place, and whether it dies before the collective or in it.
func TestDeathAmongSparseConnections(t *testing.T) {
	const size = 16
	for _, linked := range []bool{true, false} {
		for victim := range size {
			t.Run(fmt.Sprintf("%v/%d", linked, victim), func(t *testing.T) {
				w, sockets := mortal(t, size)
				if linked {
					w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, 1000)) })
				} else {
					sockets[victim].kill()
				}
				works := make([]*Work, size)
				for rank, c := range w.comms {
					if rank == victim {
						continue
					}
					var err error
					if works[rank], err = c.Start(CallOptions{}, allReduce(t, 1000)); err != nil {
						namesTheEnded(t, victim, err) // another has told it
					}
				}
				if linked {
					sockets[victim].kill()
				}
				for _, work := range works {
					if work != nil {
						_, err := work.Wait(-1)
						namesTheEnded(t, victim, err)
					}
				}
			})
		}
	}
}

// Ranks in a chain, of which each knows its neighbours only, all hear of a failure, though nothing
// makes them read or connect.
func TestDeathInAChain(t *testing.T) {
	const size = 8
	for victim := range size {
		t.Run(fmt.Sprint(victim), func(t *testing.T) {
			w, sockets := mortal(t, size)
			w.each(func(rank int) error {
				if rank > 0 {
					if err := run(w.comms[rank], recvOp(buffer(t, 1), rank-1, 0)); err != nil {
						return err
					}
				}
				if rank == size-1 {
					return nil
				}
				return run(w.comms[rank], sendOp(buffer(t, 1), rank+1, 0))
			})
			sockets[victim].kill()
			for _, rank := range []int{victim - 1, victim + 1} {
				if 0 <= rank && rank < size {
					namesTheEnded(t, victim, run(w.comms[rank], recvOp(buffer(t, 1), victim, 1)))
				}
			}
			for rank, c := range w.comms {
				if rank != victim {
					awaitFailure(c)
					namesTheEnded(t, victim, c.Err())
				}
			}
		})
	}
}
