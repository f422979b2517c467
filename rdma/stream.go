package rdma

/*
#cgo noescape goccl_stream_read
#cgo nocallback goccl_stream_read
#include <stdlib.h>
#include "stream.h"
*/
import "C"

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Stream is one end of an ordered stream of bytes between two processes, each way, over a reliable
// connection (RC).
//
// Each side has a ring of registered memory. The other writes into it (RDMA WRITE WITH IMMEDIATE:
// the data, and in the immediate how much of it, and its number), as far as the ring is known to
// have room, and what is read gives room back (a write of nothing, whose immediate says up to
// where). So no receive is matched with a buffer: receives are of zero length and only tell. A
// shared receive queue would save nothing, therefore, and would let one peer use up what all need.
//
// Memory that is registered need not go through the rings: one side tells of it, by bytes of the
// stream, and the other reads it (RDMA READ) to where it belongs, or through a little staging
// memory where that is not registered ([Stream.Fetch]), and answers ([Stream.Answer]).
//
// What is written lies in a copy of the peer's ring, at the same places, until the peer has read
// it, for it may have to be sent again. Both sides get ready ([Stream.Offer]), tell each other how,
// over whatever channel they have, and join ([Stream.Join]), once: a connection that breaks ends
// the stream.
//
// No method waits, but for Offer and Join, which may take a second each. One goroutine may write
// while another reads; the other methods may be called at any time.
type Stream struct {
	device     *Device
	ring, copy *Region // of memory
	memory     []byte

	life         sync.RWMutex // held for writing where the queue pair goes
	closed       bool
	c            *C.struct_goccl_stream
	mine, theirs C.struct_goccl_record

	fetching [2][]byte // C writes there between calls, which Go is not told of
}

// Errors of streams, by errors.Is.
var (
	// ErrBroken: the connection is broken; see Stream.Fault.
	ErrBroken = errors.New("the connection is broken")
	// ErrClosed: the stream has been closed.
	ErrClosed = errors.New("the stream is closed")
	// ErrProtocol: what the peer says of the stream, or what an adapter makes of that, contradicts it.
	ErrProtocol = errors.New("the peer, or an adapter, breaks the protocol")
)

const (
	// LeastRing and MostRing are the smallest and the largest ring, in bytes; rings are powers of two.
	LeastRing = 64 << 10
	MostRing  = 1 << 20

	// A request that is not acknowledged is sent again after 4.096 us * 2^timeout (1.07 s; adapters
	// may take up to four times as long), and given up after so many tries: a cable that is out for
	// some seconds, or a host that is overloaded, breaks nothing. Retries must be finite: nobody else
	// would tell that the peer's adapter is gone.
	ackTimeout = 18
	retries    = 6
)

// RecordSize is the length of what Offer tells, in bytes.
const RecordSize = 64

// NewStream makes a stream of rings of the given size, connected to nobody. Each stream takes two
// and a quarter times that of locked memory.
func (d *Device) NewStream(ring int) (*Stream, error) {
	if ring < LeastRing || ring > MostRing || ring&(ring-1) != 0 {
		return nil, fmt.Errorf("a ring of %d bytes: allowed are powers of two from %d to %d", ring,
			LeastRing, MostRing)
	}
	memory, err := unix.Mmap(-1, 0, 2*ring+ring/4, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("mmap of %d bytes for a stream: %w", 2*ring+ring/4, err)
	}
	s := &Stream{device: d, memory: memory, c: (*C.struct_goccl_stream)(C.calloc(1,
		C.sizeof_struct_goccl_stream))}
	if s.c == nil {
		_ = unix.Munmap(memory) // fails only for what was not mapped
		return nil, errors.New("out of memory for a stream")
	}
	if s.ring, err = d.Register(unsafe.Pointer(&memory[0]), ring, LocalWrite|RemoteWrite); err == nil {
		s.copy, err = d.Register(unsafe.Pointer(&memory[ring]), len(memory)-ring, LocalWrite)
	}
	if err == nil && C.goccl_stream_open(s.c, d.lib.verbs, d.pd, s.ring.mr, s.copy.mr,
		C.uint64_t(ring)) != 0 {
		err = s.Fault()
	}
	if err != nil {
		_ = s.Close() // the first error counts
		return nil, err
	}
	return s, nil
}

// Close ends the stream and gives its memory back.
func (s *Stream) Close() error {
	s.life.Lock()
	defer s.life.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	var err error
	if s.c.verbs != nil {
		if errno := C.goccl_stream_close(s.c); errno != 0 {
			err = newError("destroying a queue pair", s.device.Choice.Device, syscall.Errno(errno))
		}
	}
	C.free(unsafe.Pointer(s.c))
	for _, r := range []*Region{s.ring, s.copy} {
		if r == nil {
			continue
		}
		if e := r.Close(); err == nil {
			err = e
		}
	}
	if err == nil { // else the device may still write there
		err = unix.Munmap(s.memory)
	}
	return err
}

// enter keeps the queue pair until life is unlocked. It tells whether there is one.
func (s *Stream) enter() bool {
	s.life.RLock()
	if s.closed {
		s.life.RUnlock()
	}
	return !s.closed
}

// FD becomes readable when something has come, after Read has found nothing, or when room has been
// made, after Ask. Wake undoes it.
func (s *Stream) FD() int { return int(s.c.channel.fd) }

func (s *Stream) path() C.struct_goccl_path {
	c := &s.device.Choice
	p := C.struct_goccl_path{port: C.uint8_t(c.Port), gid_index: C.uint8_t(c.GIDIndex),
		timeout: ackTimeout, retries: retries}
	if c.LinkLayer == Ethernet {
		p.global = 1
	}
	return p
}

// Offer gets ready for a connection, and returns what the peer's Join needs.
func (s *Stream) Offer() ([RecordSize]byte, error) {
	var b [RecordSize]byte
	if !s.enter() {
		return b, ErrClosed
	}
	defer s.life.RUnlock()
	c := &s.device.Choice
	var number [4]byte
	rand.Read(number[:])
	r := &s.mine
	*r = C.struct_goccl_record{psn: C.uint32_t(binary.NativeEndian.Uint32(number[:]) & 0xffffff),
		mtu: C.uint32_t(mtuCode(c.MTU)), lid: C.uint16_t(c.LID),
		reads: C.uint8_t(s.device.reads)}
	for i, v := range c.GID {
		r.gid[i] = C.uint8_t(v)
	}
	path := s.path()
	if C.goccl_stream_offer(s.c, &path, r) != 0 {
		return b, s.fault()
	}
	le := binary.LittleEndian
	le.PutUint64(b[0:], uint64(r.ring))
	le.PutUint64(b[8:], uint64(r.size))
	le.PutUint32(b[16:], uint32(r.key))
	le.PutUint32(b[20:], uint32(r.qpn))
	le.PutUint32(b[24:], uint32(r.psn))
	le.PutUint32(b[28:], uint32(r.mtu))
	le.PutUint16(b[32:], uint16(r.lid))
	b[34] = byte(r.reads)
	copy(b[48:], c.GID[:])
	return b, nil
}

// Join connects to the peer whose Offer it is given, after this side's own. When the peer has
// joined, too, bytes can be written: earlier ones would be lost, and sent again only after a while.
func (s *Stream) Join(peers [RecordSize]byte) error {
	if !s.enter() {
		return ErrClosed
	}
	defer s.life.RUnlock()
	var err error
	if s.theirs, err = parseRecord(peers, int(s.c.size)); err != nil {
		return err
	}
	path := s.path()
	if C.goccl_stream_join(s.c, &path, &s.mine, &s.theirs) != 0 {
		return s.fault()
	}
	return nil
}

// parseRecord reads what a peer has offered.
func parseRecord(b [RecordSize]byte, ring int) (C.struct_goccl_record, error) {
	le := binary.LittleEndian
	r := C.struct_goccl_record{
		ring: C.uint64_t(le.Uint64(b[0:])), size: C.uint64_t(le.Uint64(b[8:])),
		key: C.uint32_t(le.Uint32(b[16:])), qpn: C.uint32_t(le.Uint32(b[20:])),
		psn: C.uint32_t(le.Uint32(b[24:])), mtu: C.uint32_t(le.Uint32(b[28:])),
		lid:   C.uint16_t(le.Uint16(b[32:])),
		reads: C.uint8_t(b[34]),
	}
	for i, v := range b[48:] {
		r.gid[i] = C.uint8_t(v)
	}
	if r.size != C.uint64_t(ring) || r.qpn > 0xffffff || r.psn > 0xffffff || r.mtu < 1 || r.mtu > 5 {
		return r,
			fmt.Errorf("%w: its ring is of %d bytes, its queue pair number %d, with packets from %d on, "+
				"of MTU code %d",
				ErrProtocol, r.size, r.qpn, r.psn, r.mtu)
	}
	return r, nil
}

// Number is that of the queue pair; 0 where there is none any more.
func (s *Stream) Number() uint32 {
	if !s.enter() {
		return 0
	}
	defer s.life.RUnlock()
	return uint32(s.c.qp.qp_num)
}

// Write takes bytes of n pieces of memory, as many as there is room for. They may be changed when
// it has returned.
func (s *Stream) Write(iov *unix.Iovec, n int) (int, error) {
	if !s.enter() {
		return 0, ErrClosed
	}
	defer s.life.RUnlock()
	wrote := s.write(uintptr(unsafe.Pointer(iov)), n)
	if wrote < 0 {
		return 0, s.fault()
	}
	return wrote, nil
}

//go:uintptrescapes
func (s *Stream) write(iov uintptr, n int) int {
	return int(C.goccl_stream_write(s.c, C.uintptr_t(iov), C.int(n)))
}

// Read reads what has come into n pieces of memory. Room tells that the peer has made room for more
// to be written. Where nothing has come, FD will tell when something has.
func (s *Stream) Read(iov *unix.Iovec, n int) (got int, room bool, err error) {
	if !s.enter() {
		return 0, false, ErrClosed
	}
	defer s.life.RUnlock()
	if got, room = s.read(uintptr(unsafe.Pointer(iov)), n); got < 0 {
		return 0, false, s.fault()
	}
	return got, room, nil
}

//go:uintptrescapes
func (s *Stream) read(iov uintptr, n int) (got int, room bool) {
	var more C.int
	got = int(C.goccl_stream_read(s.c, C.uintptr_t(iov), C.int(n), &more))
	return got, more != 0
}

// Wake makes FD unreadable until the next event.
func (s *Stream) Wake() {
	if s.enter() {
		defer s.life.RUnlock()
		C.goccl_stream_wake(s.c)
	}
}

// Ask tells whether there is room for bytes to be written. If not, FD will tell when there may be.
func (s *Stream) Ask() bool {
	if !s.enter() {
		return true
	}
	defer s.life.RUnlock()
	return C.goccl_stream_ask(s.c) != 0
}

// Nudge sends the peer a message of so many bytes (at most 4096) that mean nothing, before anything
// has been written. It tells whether there was room for it.
func (s *Stream) Nudge(bytes int) bool {
	if !s.enter() {
		return false
	}
	defer s.life.RUnlock()
	return C.goccl_stream_nudge(s.c, C.uint32_t(bytes)) == 0
}

// Flush tells whether all that has been sent has reached the peer's memory, though the peer may not
// have read it. If not, FD will tell when it may have. It comes to an end: what does not reach the
// peer breaks the connection some time.
func (s *Stream) Flush() (bool, error) {
	if !s.enter() {
		return false, ErrClosed
	}
	defer s.life.RUnlock()
	switch C.goccl_stream_flush(s.c) {
	case 1:
		return true, nil
	case 0:
		return false, nil
	}
	return false, s.fault()
}

// MostLoans is of how much memory, in pieces, a peer may have been told that has not answered for
// it.
const MostLoans = C.GOCCL_STREAM_LOANS

// Reads tells whether the two sides can read each other's memory. They have joined.
func (s *Stream) Reads() bool { return s.mine.reads > 0 && s.theirs.reads > 0 }

// Fetch begins to read memory of the peer's into two pieces of memory, one after the other; either
// may be empty. Of a piece that is registered the use is given. They stay as they are until Fetched
// tells that all has come. The last fetch has ended. Then a word of the peer's is read, of which
// Fetched tells.
func (s *Stream) Fetch(from, stopped Remote, to [2][]byte, uses [2]*Use) error {
	if !s.enter() {
		return ErrClosed
	}
	defer s.life.RUnlock()
	s.fetching = to
	var places [2]C.struct_goccl_place
	for i, b := range to {
		places[i] = C.struct_goccl_place{at: C.uintptr_t(uintptr(unsafe.Pointer(unsafe.SliceData(b)))),
			bytes: C.uint64_t(len(b)), staged: 1}
		if u := uses[i]; u != nil {
			places[i].at, places[i].key, places[i].staged = C.uintptr_t(uintptr(u.at)),
				C.uint32_t(u.r.region.LKey), 0
		}
	}
	C.goccl_stream_fetch(s.c, C.uint64_t(from.Addr), C.uint32_t(from.Key), C.uint64_t(stopped.Addr),
		C.uint32_t(stopped.Key), &places[0])
	return nil
}

// ErrWithdrawn tells that the peer had stopped before it had been read to the end: what has come
// may be something else by then.
var ErrWithdrawn = errors.New("the peer has taken back what it had lent")

// Fetched carries the fetch on, and tells whether all has come. If not, FD will tell when more has.
// Where the peer's word is not 0 the error is ErrWithdrawn.
func (s *Stream) Fetched() (bool, error) {
	if !s.enter() {
		return false, ErrClosed
	}
	defer s.life.RUnlock()
	all := C.goccl_stream_fetched(s.c)
	if all != 0 {
		s.fetching = [2][]byte{}
	}
	switch all {
	case 2:
		return true, ErrWithdrawn
	case 1:
		return true, nil
	case 0:
		return false, nil
	}
	return false, s.fault()
}

// Forgo cancels the fetch. What is under way still arrives: the destination may be written to until
// Fetched reports the end, or the stream is closed.
func (s *Stream) Forgo() {
	if s.enter() {
		defer s.life.RUnlock()
		C.goccl_stream_forgo(s.c)
	}
}

// Answer tells the peer that the oldest of its memory that has not been answered for is not read,
// or not any more.
func (s *Stream) Answer() {
	if s.enter() {
		defer s.life.RUnlock()
		C.goccl_stream_answer(s.c)
	}
}

// Served is how often the peer has answered. Read learns of it.
func (s *Stream) Served() uint32 {
	if !s.enter() {
		return 0
	}
	defer s.life.RUnlock()
	return atomic.LoadUint32((*uint32)(&s.c.served))
}

// Fault is why the connection is broken.
func (s *Stream) Fault() error {
	if !s.enter() {
		return ErrClosed
	}
	defer s.life.RUnlock()
	return s.fault()
}

func (s *Stream) fault() error {
	var f C.struct_goccl_fault
	C.goccl_stream_fault(s.c, &f)
	switch {
	case f.verb == nil:
		return ErrBroken
	case syscall.Errno(f.error) == syscall.EPROTO:
		return fmt.Errorf("%w: %s does not fit; SoftRoCE may do a message twice where packets are lost",
			ErrProtocol, C.GoString(f.verb))
	}
	e := newError(C.GoString(f.verb), s.device.Choice.Device, syscall.Errno(f.error))
	e.Status, e.Vendor = int(f.status), uint32(f.vendor)
	return fmt.Errorf("%w: %w", ErrBroken, e)
}

// mtuCode is the enum ibv_mtu of a number of bytes.
func mtuCode(bytes int) int {
	code := C.IBV_MTU_256
	for code < C.IBV_MTU_4096 && 256<<code <= bytes {
		code++
	}
	return code
}
