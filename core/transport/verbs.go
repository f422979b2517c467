package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/internal/plain"
	"github.com/goccl/goccl/core/internal/printable"
	"github.com/goccl/goccl/rdma"
)

// A verbs link begins as a TCP connection. When the two processes have proved themselves, they tell each other of a queue pair, try it, and
// move the frames over to it, if it works on both sides. From then on the connection tells whether the peer lives, as that of a
// TCP link does; a queue pair with nothing under way tells nothing. A queue pair that breaks ends its link.

// VerbsConfig says how RDMA devices are to be used.
type VerbsConfig struct {
	Off      string // why not at all; "" where they may be used
	HCA      string // which: see rdma.Want
	GIDIndex int    // negative: the endpoint chooses
	Library  string // the path of libibverbs; "" is the system's
	// Memory is what peers may read, and what is read of them may come into, without a copy. It outlives the endpoint.
	Memory *rdma.Memory
}

// verbsEnd is an endpoint's RDMA port.
type verbsEnd struct {
	e       *Endpoint
	library *rdma.Library
	choice  rdma.Choice
	memory  *rdma.Memory
	copies  sync.Once // it has been said that memory cannot be registered

	mu     sync.Mutex
	device *rdma.Device // opened by the first link
	told   map[ProcessID]bool
}

const (
	// tryTimeout is how long a queue pair may take to carry its first message: some retries.
	tryTimeout = 5 * time.Second
	tryBytes   = 4096
	// ringBudget is how much locked memory the links of one group take, about: the first group that joins two processes chooses.
	ringBudget = 16 << 20
)

// findPort chooses the RDMA port.
func (e *Endpoint) findPort(c Config) {
	library, choice, err := choosePort(c, e.tcpAddrs())
	if err != nil {
		e.address.VerbsProblem = err.Error()
		return
	}
	e.verbs = &verbsEnd{e: e, library: library, choice: choice, memory: c.Verbs.Memory, told: map[ProcessID]bool{}}
	if e.verbs.memory == nil {
		e.verbs.memory = &rdma.Memory{}
	}
	e.address.Verbs = network(&choice)
}

// choosePort chooses the RDMA port of an endpoint that listens on the given addresses.
func choosePort(c Config, addrs []netip.Addr) (library *rdma.Library, choice rdma.Choice, err error) {
	if c.Verbs.Off != "" {
		return nil, choice, errors.New(c.Verbs.Off)
	}
	if library, err = rdma.Load(c.Verbs.Library); err != nil {
		return nil, choice, err
	}
	if why := library.ForkProblem(); why != "" {
		return nil, choice, errors.New(why)
	}
	ports, err := library.Ports()
	if err != nil {
		return nil, choice, err
	}
	choice, err = rdma.Choose(ports, rdma.Want{HCA: c.Verbs.HCA, GIDIndex: c.Verbs.GIDIndex, Interface: c.Interface, NetAddr: addrs})
	return library, choice, err
}

// network is the kind of network that a port is in.
func network(c *rdma.Choice) string {
	addr := rdma.GID{Raw: c.GID}.Addr()
	switch {
	case c.LinkLayer == rdma.InfiniBand:
		return "infiniband"
	case c.GIDType != rdma.GIDRoCEv2:
		return "roce1"
	case addr.IsLinkLocalUnicast():
		return "roce2, link-local"
	case addr.Is4():
		return "roce2, ipv4"
	}
	return "roce2, ipv6"
}

// tcpAddrs are the addresses that the endpoint listens on.
func (e *Endpoint) tcpAddrs() []netip.Addr {
	var addrs []netip.Addr
	for _, t := range e.address.TCP {
		if p, err := netip.ParseAddrPort(t); err == nil {
			addrs = append(addrs, p.Addr())
		}
	}
	return addrs
}

// RDMAPort tells which RDMA port the endpoint uses, if any.
func (e *Endpoint) RDMAPort() (rdma.Choice, bool) {
	if e.verbs == nil {
		return rdma.Choice{}, false
	}
	return e.verbs.choice, true
}

// open opens the device, once.
func (v *verbsEnd) open() (*rdma.Device, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.device != nil {
		return v.device, nil
	}
	d, err := v.library.Open(v.choice)
	if err != nil {
		return nil, err
	}
	if err := v.e.poller.listen(d.AsyncFD(), func() { v.hear(d) }); err != nil {
		_ = d.Close() // there is a better reason
		return nil, err
	}
	v.device = d
	for _, fd := range d.FDs() {
		v.e.onFD(fd, true)
	}
	return d, nil
}

// stream makes one end of a stream for a link of a group of so many ranks. Links to several peers are made at once.
func (v *verbsEnd) stream(ranks int) (*rdma.Stream, error) {
	d, err := v.open()
	if err != nil {
		return nil, err
	}
	ring := rdma.MostRing
	for ring > rdma.LeastRing && 2*ring*(ranks-1) > ringBudget {
		ring /= 2
	}
	s, err := d.NewStream(ring)
	if err == nil {
		v.e.onFD(s.FD(), true)
	}
	return s, err
}

// drop closes a stream.
func (v *verbsEnd) drop(s *rdma.Stream) {
	if s == nil {
		return
	}
	v.e.onFD(s.FD(), false)
	if err := s.Close(); err != nil {
		v.e.warnf("closing a stream of %s: %v", v.choice.Device, err)
	}
}

// close gives the device back. All streams have been closed.
func (v *verbsEnd) close() error {
	if v == nil || v.device == nil {
		return nil
	}
	for _, fd := range v.device.FDs() {
		v.e.onFD(fd, false)
	}
	return errors.Join(v.memory.Leave(v.device), v.device.Close())
}

// hear takes what the device reports unasked.
func (v *verbsEnd) hear(d *rdma.Device) {
	for {
		event, ok, err := d.NextEvent()
		switch {
		case err != nil:
			v.e.warnf("%v", err)
			v.e.poller.unlisten(d.AsyncFD())
			return
		case !ok:
			return
		case event.Type == rdma.EventPortError || event.Type == rdma.EventPortActive:
			v.e.warnf("%v", event)
		case event.Fatal():
			for _, l := range v.links() {
				if event.QPN == 0 || event.QPN == l.side.stream.Number() {
					l.end(errors.New(event.String()))
				}
			}
		}
	}
}

// links are those that have streams.
func (v *verbsEnd) links() []*link {
	v.e.mu.Lock()
	defer v.e.mu.Unlock()
	return slices.DeleteFunc(v.e.allLinks(), func(l *link) bool { return l.side.stream == nil })
}

// note is what the two sides of a verbs link tell each other over TCP, while it is made.
type note struct {
	ok     bool
	record [rdma.RecordSize]byte // where ok, of an offer
	why    string                // where not
}

const (
	noteSize = 256
	noteText = noteSize - 16 - rdma.RecordSize - 1 // at most, of why; a zero ends it
)

const noteMagic = "GOCCL\x00V"

func (n *note) bytes() (b [noteSize]byte) {
	copy(b[:], noteMagic)
	b[7] = wireVersion
	if n.ok {
		b[12] = 1
	}
	copy(b[16:], n.record[:])
	copy(b[16+rdma.RecordSize:], printable.Text(n.why, noteText)) // which cuts no rune in two
	return b
}

func parseNote(b *[noteSize]byte) (note, error) {
	if string(b[:7]) != noteMagic || b[7] != wireVersion || b[12] > 1 || b[13]|b[14]|b[15]|b[noteSize-1] != 0 {
		return note{}, violation("what came beside a verbs link is no note of its peer")
	}
	why, _, _ := bytes.Cut(b[16+rdma.RecordSize:], []byte{0})
	n := note{ok: b[12] == 1, why: printable.Text(string(why), maxText)}
	copy(n.record[:], b[16:])
	return n, nil
}

// errNoVerbs: verbs are demanded, and do not work.
var errNoVerbs = errors.New("transport \"verbs\" cannot work")

// upgrade moves a new link's frames to a queue pair. The peer does the same at this moment. It returns nil where that does not work and need
// not: both sides go on over TCP then.
func (e *Endpoint) upgrade(ctx context.Context, s *sock, peer *Address, ranks int) (*rdma.Stream, error) {
	tell := func(n note) (note, error) {
		b := n.bytes()
		if _, err := s.Write(b[:]); err != nil {
			return note{}, fmt.Errorf("while the queue pairs were made: %w", plain.Error(err))
		}
		if _, err := io.ReadFull(s, b[:]); err != nil {
			return note{}, fmt.Errorf("while the queue pairs were made: %w", plain.Error(err))
		}
		return parseNote(&b)
	}
	var offer note
	stream, mine := e.verbs.stream(ranks)
	if mine == nil {
		offer.record, mine = stream.Offer()
	}
	offer.set(mine)
	theirs, err := tell(offer)
	// Three times both tell how they have fared, and go on where both are well.
	for _, next := range []func() error{
		func() error { return stream.Join(theirs.record) },
		func() error { return e.try(ctx, stream) },
	} {
		if err == nil && mine == nil && theirs.ok {
			mine = next()
			var fared note
			fared.set(mine)
			theirs, err = tell(fared)
		}
	}
	if err == nil && mine == nil && theirs.ok {
		return stream, nil
	}
	e.verbs.drop(stream)
	if err != nil {
		return nil, err
	}
	why := fmt.Sprintf("on %s: %s", peer.who(), theirs.why)
	if mine != nil {
		why = mine.Error()
	}
	if peer.demandsVerbs() {
		return nil, fmt.Errorf("%w: %s", errNoVerbs, why)
	}
	e.verbs.mu.Lock()
	told := e.verbs.told[peer.Process]
	e.verbs.told[peer.Process] = true
	e.verbs.mu.Unlock()
	if !told {
		e.warnf("%s is joined by TCP, for verbs do not work there: %s", peer.who(), why)
	}
	return nil, nil
}

func (n *note) set(err error) {
	n.ok = err == nil
	if err != nil {
		n.why = err.Error()
	}
}

// try sends a first message over a queue pair, of the largest packet that there is, and waits until it has reached the peer.
func (e *Endpoint) try(ctx context.Context, stream *rdma.Stream) error {
	if !stream.Nudge(tryBytes) {
		return stream.Fault()
	}
	until := time.Now().Add(tryTimeout)
	fds := []unix.PollFd{{Fd: int32(stream.FD()), Events: unix.POLLIN}}
	for {
		done, err := stream.Flush()
		if done || err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		left := time.Until(until)
		if left <= 0 {
			return errors.New("the peer's adapter does not acknowledge what is sent to it")
		}
		if n, _ := unix.Poll(fds, int(min(left, readSlice).Milliseconds())+1); n > 0 {
			stream.Wake()
		}
	}
}

// side is what a verbs link has beside a TCP link. All but what is said otherwise belongs to who has locked the receiving half.
type side struct {
	stream *rdma.Stream
	rung   atomic.Bool // the stream's descriptor is readable
	spoken atomic.Bool // so is the socket's
	gone   error       // the socket has ended
	late   sync.Once   // so the link ends soon
	wants  atomic.Bool // a writer waits for room
	served uint32      // loans that the peer has answered for

	mu    sync.Mutex
	loans []*outstanding // in the order of their frames
	ended bool           // there are no more
}

// receiveStream is receive for a stream: once, into l.reading.iov.
func (l *link) receiveStream(iov []unix.Iovec) (n int, err error) {
	v := &l.side
	if v.rung.Swap(false) {
		v.stream.Wake()
		if v.wants.Load() && v.stream.Ask() {
			l.makeRoom()
		}
	}
	if v.spoken.Swap(false) && v.gone == nil {
		if v.gone = l.listen(); v.gone != nil {
			l.e.poller.deafen(l)
		}
	}
	n, room, err := v.stream.Read(&iov[0], len(iov))
	if room {
		l.makeRoom()
	}
	if err := l.settle(); err != nil {
		return 0, err
	}
	switch {
	case n > 0:
		return n, nil
	case v.gone != nil && l.reading.phase == fetching: // what the peer has said last lies behind that
		gone := v.gone
		v.late.Do(func() { time.AfterFunc(closeFlush, func() { l.end(l.cause(gone)) }) })
		return 0, nil
	case v.gone != nil: // all that it had sent before has come
		return 0, v.gone
	case err != nil:
		return 0, l.broke(err)
	}
	return 0, nil
}

// writeStream is write for a stream.
func (l *link) writeStream() {
	for len(l.rest) > 0 {
		n, err := l.side.stream.Write(&l.rest[0], min(len(l.rest), 1024))
		l.sent(n)
		switch {
		case errors.Is(err, rdma.ErrClosed):
			l.writeErr = errLinkEnded
			return
		case err != nil:
			l.writeErr = l.broke(err)
			return
		case n == 0:
			return
		}
	}
}

// askForRoom tells whether there may be room in the stream; if not, l.room will.
func (l *link) askForRoom() bool {
	l.side.wants.Store(true)
	return l.side.stream.Ask()
}

// makeRoom lets a writer who waits try again.
func (l *link) makeRoom() {
	l.side.wants.Store(false)
	select {
	case l.room <- struct{}{}:
	default:
	}
}

// listen tells why the socket beside a stream is readable: nothing is to come over it but its end.
func (l *link) listen() error {
	var b [1]byte
	n, err := 0, errNoDescriptor
	if e := l.sock.raw.Control(func(fd uintptr) { n, _, err = unix.Recvfrom(int(fd), b[:], unix.MSG_DONTWAIT) }); e != nil {
		return e
	}
	switch {
	case err == unix.EINTR || err == unix.EAGAIN:
		return nil
	case err != nil:
		return err
	case n == 0:
		return io.EOF
	}
	return violation("something came beside a verbs link")
}

// broke is why a link has to end whose queue pair is broken.
func (l *link) broke(err error) error {
	if errors.Is(err, rdma.ErrProtocol) {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	l.e.verbs.hear(l.e.verbs.device) // which says more, if all of it has failed
	return err
}

// delivers tells whether something is on its way to the peer, who may have it at the second try only.
func (l *link) delivers() bool {
	l.e.mu.Lock() // it may be about to start
	stream := l.side.stream
	l.e.mu.Unlock()
	if stream == nil {
		return false // the kernel goes on with it when the socket has been closed
	}
	all, err := stream.Flush()
	return !all && err == nil
}

// finishStream waits until all that has been written has reached the peer: then it may be told that no more comes.
func (l *link) finishStream() {
	t := time.NewTicker(time.Millisecond)
	defer t.Stop()
	for l.delivers() {
		select {
		case <-l.done:
			return
		case <-t.C:
		}
	}
}
