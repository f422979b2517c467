package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/internal/errtext"
	"github.com/goccl/goccl/core/internal/interfaces"
	"github.com/goccl/goccl/core/internal/printable"
	"github.com/goccl/goccl/rdma"
)

// A verbs link begins as a TCP connection. When the two processes have proved themselves, they tell
// each other of a queue pair, try it, and move the frames over to it, if it works on both sides.
// From then on the connection tells whether the peer lives, as that of a TCP link does; a queue
// pair with nothing under way tells nothing. A queue pair that breaks ends its link.

// VerbsConfig says how RDMA devices are to be used.
type VerbsConfig struct {
	Off      string // why not at all; "" where they may be used
	HCA      string // which: see rdma.Want
	GIDIndex int    // negative: the endpoint chooses
	Library  string // the path of libibverbs; "" is the system's
	// Memory is what peers may read, and what is read of them may come into, without a copy. It
	// outlives the endpoint.
	Memory *rdma.Memory
}

// verbsEnd is an endpoint's RDMA port.
type verbsEnd struct {
	e       *Endpoint
	library *rdma.Library
	choice  rdma.Choice
	memory  *rdma.Memory
	copies  sync.Once // it has been said that memory cannot be registered

	mu     sync.Mutex                 // guards what follows
	device *rdma.Device               // opened by the first link
	warned map[address.ProcessID]bool // of these it has been logged that TCP stands in
	pairs  map[*queuePair]struct{}    // those that are not closed
}

const (
	// tryTimeout is how long a queue pair may take to carry its first message: some retries.
	tryTimeout = 5 * time.Second
	tryBytes   = 4096
	// ringBudget is how much locked memory the links of one group take, about: the first group that
	// joins two processes chooses.
	ringBudget = 16 << 20
)

// findPort chooses the RDMA port.
func (e *Endpoint) findPort(c Config) {
	library, choice, err := choosePort(c, e.TCPAddrs())
	if err != nil {
		e.address.VerbsProblem = err.Error()
		return
	}
	e.verbs = &verbsEnd{e: e, library: library, choice: choice, memory: c.Verbs.Memory,
		warned: map[address.ProcessID]bool{}, pairs: map[*queuePair]struct{}{}}
	if e.verbs.memory == nil {
		e.verbs.memory = &rdma.Memory{}
	}
	e.address.Verbs = network(&choice)
}

// choosePort chooses the RDMA port of an endpoint that listens on the given addresses.
func choosePort(c Config, addrs []netip.Addr) (library *rdma.Library, choice rdma.Choice,
	err error) {
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
	want := rdma.Want{HCA: c.Verbs.HCA, GIDIndex: c.Verbs.GIDIndex, NetAddr: addrs}
	if c.Interface != "" {
		selected, err := interfaces.Parse(c.Interface)
		if err != nil {
			return library, choice, err
		}
		want.OnTCP = selected.Allows
	}
	choice, err = rdma.Choose(ports, want)
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

// TCPAddrs are the addresses that the endpoint listens on.
func (e *Endpoint) TCPAddrs() []netip.Addr {
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

// stream makes one end of a stream for a link of a group of so many ranks. Links to several peers
// are made at once.
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
			for _, q := range v.openPairs() {
				if event.QPN == 0 || event.QPN == q.stream.Number() {
					q.fail(errors.New(event.String()))
				}
			}
		}
	}
}

// openPairs are the queue pairs that are not closed.
func (v *verbsEnd) openPairs() []*queuePair {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Collect(maps.Keys(v.pairs))
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
	if string(b[:7]) != noteMagic || b[7] != wireVersion || b[12] > 1 ||
		b[13]|b[14]|b[15]|b[noteSize-1] != 0 {
		return note{}, violation("what came beside a verbs link is no note of its peer")
	}
	why, _, _ := bytes.Cut(b[16+rdma.RecordSize:], []byte{0})
	n := note{ok: b[12] == 1, why: printable.Text(string(why), maxText)}
	copy(n.record[:], b[16:])
	return n, nil
}

// errNoVerbs: verbs are demanded, and do not work.
var errNoVerbs = errors.New("transport \"verbs\" cannot work")

// upgrade moves a new link's frames to a queue pair. The peer does the same at this moment. It
// returns nil where that does not work and need not: both sides go on over TCP then.
func (e *Endpoint) upgrade(ctx context.Context, c *conn, peer *address.Address,
	ranks int) (*rdma.Stream, error) {
	tell := func(n note) (note, error) {
		b := n.bytes()
		if _, err := c.Write(b[:]); err != nil {
			return note{}, fmt.Errorf("while the queue pairs were made: %w", errtext.Error(err))
		}
		if _, err := io.ReadFull(c, b[:]); err != nil {
			return note{}, fmt.Errorf("while the queue pairs were made: %w", errtext.Error(err))
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
	why := fmt.Sprintf("on %s: %s", peer.Who(), theirs.why)
	if mine != nil {
		why = mine.Error()
	}
	if peer.DemandsVerbs() {
		return nil, fmt.Errorf("%w: %s", errNoVerbs, why)
	}
	e.verbs.mu.Lock()
	warned := e.verbs.warned[peer.Process]
	e.verbs.warned[peer.Process] = true
	e.verbs.mu.Unlock()
	if !warned {
		e.warnf("%s is joined by TCP, for verbs do not work there: %s", peer.Who(), why)
	}
	return nil, nil
}

func (n *note) set(err error) {
	n.ok = err == nil
	if err != nil {
		n.why = err.Error()
	}
}

// try sends a first message over a queue pair, of the largest packet that there is, and waits until
// it has reached the peer.
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
