package transport

import (
	"bytes"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/address"
)

// drip is a wire that carries a few bytes at a time, and has no room every other time.
type drip struct {
	wire
	most  uint64
	sends int
}

func (d *drip) cut(iov []unix.Iovec) []unix.Iovec {
	return []unix.Iovec{{Base: iov[0].Base, Len: min(iov[0].Len, d.most)}}
}

func (d *drip) recv(into []unix.Iovec) (received, error) { return d.wire.recv(d.cut(into)) }

func (d *drip) send(from []unix.Iovec, rights []byte) (int, error) {
	if d.sends++; d.sends%2 == 0 {
		return 0, nil
	}
	return d.wire.send(d.cut(from), rights)
}

func (d *drip) askRoom() bool { return d.sends%4 == 0 }

// joinBy makes a link between two endpoints by hand, over a Unix socket and the wires that wrap
// makes.
func joinBy(t *testing.T, eps []*Endpoint, wrap func(wire) wire) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
		0)
	ok(t, err)
	for i, e := range eps {
		file := os.NewFile(uintptr(fds[i]), "")
		c, err := net.FileConn(file)
		ok(t, err)
		file.Close()
		peer := eps[1-i].Address()
		e.mu.Lock()
		l := newLink(e, e.newConn(c), peerKey{peer.Process, address.Shm}, [2][nonceSize]byte{})
		e.adopt(l)
		err = l.start(wrap(newSocket(l.conn, address.Shm)), &peer)
		e.mu.Unlock()
		ok(t, err)
	}
}

// A link needs no more of its wire than what the interface promises: whatever a call carries, and
// whether or not a descriptor reports the rest, frames and descriptors come whole and in order.
func TestWiresThatCarryLittle(t *testing.T) {
	for _, most := range []uint64{1, 7, headerSize + 1, 5000} {
		eps := pair(t, address.Shm, Config{})
		joinBy(t, eps, func(w wire) wire { return &drip{wire: w, most: most} })
		var groups []*Group
		var handlers []*recorder
		for rank, e := range eps {
			c := groupConfig(eps, address.Shm, 1, rank)
			c.Share = []int{memfd(t, "window"), memfd(t, "memory")}
			handlers = append(handlers, newRecorder())
			groups = append(groups, attach(t, e, c, handlers[rank]))
		}
		ctx := within(t)
		size := min(int(most)*2000, longRead+1)
		for i, h := range []Header{{Type: Data}, {Type: ControlBase}, {Type: Data},
			{Type: QuickBase}} {
			p := bytes.Repeat([]byte{byte(i + 1)}, min(size+i, MaxControl))
			for rank, g := range groups {
				ok(t, g.Send(ctx, 1-rank, h, p[:i], p[i:]))
			}
		}
		for rank, h := range handlers {
			for i, f := range h.untilFrames(t, 4) {
				if !bytes.Equal(f.payload,
					bytes.Repeat([]byte{byte(i + 1)}, min(size+i, MaxControl))) {
					t.Errorf("%d bytes at a time: frame %d of rank %d is another", most, i, rank)
				}
			}
			if n := len(h.attached[1-rank]); n != 2 {
				t.Errorf("%d bytes at a time: rank %d has got %d descriptors", most, rank, n)
			}
			for _, fd := range h.attached[1-rank] {
				unix.Close(fd)
			}
		}
	}
}
