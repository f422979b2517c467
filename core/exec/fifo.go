package exec

import (
	"fmt"
	"math/bits"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What a trigger asks for. A put may be added to a signal and a flush, a get to a flush.
const (
	TriggerPut    = 1
	TriggerSignal = 2
	TriggerFlush  = 4
	TriggerGet    = 8
)

// Trigger is a goccl_trigger of capi/goccl_fifo.h, which says what the fields mean.
type Trigger struct {
	Op        uint32
	Signals   uint32
	Channel   uint64
	Dst       uint64
	Src       uint64
	DstOffset uint64
	SrcOffset uint64
	Bytes     uint64
	sequence  uint64
}

// fifoHead is a goccl_fifo.
type fifoHead struct {
	size       uint64
	ended      uint32
	asleep     uint32
	bell       int32
	_          [108]byte
	head       uint64
	cachedTail uint64
	_          [112]byte
	tail       uint64
	_          [120]byte
}

// The sizes that a FIFO may have, which are powers of two.
const (
	FIFOSizeLeast = 64
	FIFOSizeMost  = 1 << 16
)

// FIFOSizeFits reports whether a FIFO may have so many places.
func FIFOSizeFits(size uint64) bool {
	return size >= FIFOSizeLeast && size <= FIFOSizeMost && bits.OnesCount64(size) == 1
}

// FIFOBytes is what a FIFO of a size takes of memory.
func FIFOBytes(size uint64) int64 {
	return int64(unsafe.Sizeof(fifoHead{})) +
		int64(size)*int64(unsafe.Sizeof(Trigger{})+unsafe.Sizeof(uint64(0)))
}

// FIFO carries triggers from any number of producers to one consumer, in memory that both share:
// see capi/goccl_fifo.h. What producers write is foreign.
type FIFO struct {
	at       *fifoHead
	triggers []Trigger
	done     []uint64 // what producers are told
	finished []uint64 // the same, where they cannot write
	next     uint64   // the position to be taken: the consumer's
	bell     *os.File // an eventfd: who sleeps by it keeps no thread
	fd       int      // of the bell; what the memory says of it is foreign
}

// NewFIFO makes a FIFO in memory of FIFOBytes. Close ends its use.
func NewFIFO(memory unsafe.Pointer, size uint64) (*FIFO, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	clear(unsafe.Slice((*byte)(memory), FIFOBytes(size)))
	at := (*fifoHead)(memory)
	at.size, at.bell = size, int32(fd)
	triggers := unsafe.Slice((*Trigger)(unsafe.Add(memory, unsafe.Sizeof(*at))), size)
	words := unsafe.Add(memory, unsafe.Sizeof(*at)+uintptr(size)*unsafe.Sizeof(Trigger{}))
	return &FIFO{at: at, triggers: triggers, done: unsafe.Slice((*uint64)(words), size),
		finished: make([]uint64, size),
		bell:     os.NewFile(uintptr(fd), "the bell of a FIFO"), fd: fd}, nil
}

// Close gives the bell back, once nobody uses the FIFO.
func (f *FIFO) Close() { _ = f.bell.Close() }

// Memory is where it lies.
func (f *FIFO) Memory() unsafe.Pointer { return unsafe.Pointer(f.at) }

// Size is how many triggers it holds.
func (f *FIFO) Size() uint64 { return uint64(len(f.triggers)) }

func (f *FIFO) place(position uint64) uint64 { return position & (f.Size() - 1) }

// TryPush pushes a trigger if there is room, and returns its position.
func (f *FIFO) TryPush(t Trigger) (position uint64, ok bool) {
	size := int64(f.Size())
	for {
		position = atomic.LoadUint64(&f.at.head)
		if int64(position-atomic.LoadUint64(&f.at.cachedTail)) >= size {
			tail := atomic.LoadUint64(&f.at.tail)
			if int64(position-tail) >= size {
				return 0, false
			}
			atomic.StoreUint64(&f.at.cachedTail, tail)
		}
		if atomic.CompareAndSwapUint64(&f.at.head, position, position+1) {
			break
		}
	}
	place := &f.triggers[f.place(position)]
	sequence := &place.sequence
	place.Op, place.Signals, place.Channel = t.Op, t.Signals, t.Channel
	place.Dst, place.Src, place.Bytes = t.Dst, t.Src, t.Bytes
	place.DstOffset, place.SrcOffset = t.DstOffset, t.SrcOffset
	atomic.StoreUint64(sequence, position+1)
	f.Ring()
	return position, true
}

// Take takes the next trigger, if a producer has pushed it. Only the consumer calls it.
func (f *FIFO) Take() (t Trigger, position uint64, ok bool) {
	position = f.next
	place := &f.triggers[f.place(position)]
	if atomic.LoadUint64(&place.sequence) != position+1 {
		return t, position, false
	}
	t = Trigger{place.Op, place.Signals, place.Channel, place.Dst, place.Src, place.DstOffset,
		place.SrcOffset, place.Bytes, 0}
	f.next++
	atomic.StoreUint64(&f.at.tail, f.next)
	return t, position, true
}

// Coming reports whether a producer has begun to push what Take waits for. Only the consumer calls
// it.
func (f *FIFO) Coming() bool { return atomic.LoadUint64(&f.at.head) != f.next }

// Head is the next position to be pushed.
func (f *FIFO) Head() uint64 { return atomic.LoadUint64(&f.at.head) }

// Finish tells that the trigger of a position is done. That of the same place before it was.
func (f *FIFO) Finish(position uint64) {
	atomic.StoreUint64(&f.finished[f.place(position)], position+1)
	atomic.StoreUint64(&f.done[f.place(position)], position+1)
}

// Done reports whether the trigger of a position is done.
func (f *FIFO) Done(position uint64) bool {
	return atomic.LoadUint64(&f.finished[f.place(position)]) > position
}

// End has producers push no more.
func (f *FIFO) End() { atomic.StoreUint32(&f.at.ended, 1) }

// Ended reports whether End was called.
func (f *FIFO) Ended() bool { return atomic.LoadUint32(&f.at.ended) != 0 }

// Ring wakes the consumer if it sleeps.
func (f *FIFO) Ring() {
	if atomic.LoadUint32(&f.at.asleep) != 0 && atomic.SwapUint32(&f.at.asleep, 0) != 0 {
		one := [8]byte{1}
		// Where somebody has filled it, it rings already; bell.Write would wait for room.
		_, _ = unix.Write(f.fd, one[:])
	}
}

// Sleep waits for the bell, or for so long at most, where until reports false. Who changes what
// that says rings afterwards. Only the consumer calls it. A ring that it has not heard ends the
// next one.
func (f *FIFO) Sleep(most time.Duration, until func() bool) {
	atomic.StoreUint32(&f.at.asleep, 1)
	if !until() {
		var rings [8]byte
		_ = f.bell.SetReadDeadline(time.Now().Add(most))
		_, _ = f.bell.Read(rings[:]) // the caller looks what has come
	}
	atomic.StoreUint32(&f.at.asleep, 0)
}

// Nap waits for a little while, as no timer of Go can.
func Nap(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&t, nil) // a signal may end it
}
