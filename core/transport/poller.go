package transport

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Poller reads the links of an endpoint. The holder of its token does so: a waiter, on its own
// thread, so that no other thread need be woken to bring it what it waits for; or else the progress
// goroutine, which exists for nothing but this, and leaves the links to waiters while these keep
// coming.
type Poller struct {
	e      *Endpoint
	epoll  int
	bell   int           // an eventfd: it wakes the token's holder
	token  chan struct{} // to put something into it is to take it
	state  pollState
	calls  chan struct{} // the progress goroutine shall read again
	urgent atomic.Int32  // see Attend
	ending chan struct{} // closed when it shall end

	// The token's holder's.
	events [64]unix.EpollEvent
	pumped int // how often the token was given back since all links were looked at

	mu      sync.Mutex      // guards what follows, and linkWatch of all links
	links   map[int32]*link // by descriptor
	unread  []*link         // those that may have more, which no descriptor reports
	others  map[int32]func()
	started bool // the progress goroutine is there
	closed  bool
}

const (
	// lull is how long no waiter must have read before the progress goroutine reads again; longLull
	// where waiters read all along, or where ranks outnumber the CPUs.
	lull     = time.Millisecond
	longLull = 16 * time.Millisecond
	// shortLull is how long it rests at most where peers may want something of a rank that is in no
	// call.
	shortLull = 200 * time.Microsecond
	// readMost is how much of one link is read before the others get their turn, in bytes.
	readMost = 4 << 20
	// pumpedMost is how often in succession waiters may look at no links but those that they wait
	// for.
	pumpedMost = 16
)

func newPoller(e *Endpoint) (*Poller, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create1: %w", err)
	}
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, bell,
			&unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(bell)})
		if err != nil {
			unix.Close(bell)
		}
	}
	if err != nil {
		unix.Close(epoll)
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	e.onFD(epoll, true)
	e.onFD(bell, true)
	return &Poller{
		e: e, epoll: epoll, bell: bell,
		token: make(chan struct{}, 1), calls: make(chan struct{}, 1), ending: make(chan struct{}),
		links: map[int32]*link{}, others: map[int32]func(){},
	}, nil
}

// Token is held by the goroutine that reads: to put something into it is to take it.
func (p *Poller) Token() chan struct{} { return p.token }

// Take makes the caller the one that reads, until Leave, unless another does.
func (p *Poller) Take() bool {
	select {
	case p.token <- struct{}{}:
		return true
	default:
		return false
	}
}

// Leave gives the token back.
func (p *Poller) Leave() {
	p.state.read()
	if p.pumped++; p.pumped > pumpedMost {
		p.Wait(0)
	}
	<-p.token
	if p.state.waiting() > 0 {
		p.call()
	}
}

// StartProgress has another goroutine read, until StopProgress.
func (p *Poller) StartProgress() {
	p.state.start()
	if len(p.token) == 0 {
		p.call()
	}
}

// StopProgress undoes StartProgress. The next waiter can read by itself.
func (p *Poller) StopProgress() { p.ringIf(p.state.stop()) }

// YieldProgress has the progress goroutine leave the links to waiters, if it reads.
func (p *Poller) YieldProgress() { p.ringIf(p.state.yield()) }

// Yielding tells whether the progress goroutine reads, and is about to leave that to waiters.
func (p *Poller) Yielding() bool { return p.state.yielding() }

// Attend adds to the count of those who may be sent something that no waiter waits for: while it is
// not 0 the links are read soon, whatever waiters do.
func (p *Poller) Attend(n int) {
	if p.urgent.Add(int32(n)) == int32(n) && n > 0 {
		p.call() // it may rest for long
	}
}

// SetOversubscribed is for where ranks outnumber the CPUs: whenever the progress goroutine is
// woken, it takes one from the waiters.
func (p *Poller) SetOversubscribed() { p.state.word.Or(pollOversubscribed) }

// Wait reads what comes, and returns when something has, or the poller is kicked, or after a time
// (negative: no sooner), or at a signal. The caller has the token.
func (p *Poller) Wait(most time.Duration) {
	p.pumped = 0
	ms := -1
	if most >= 0 {
		ms = int((most + time.Millisecond - 1) / time.Millisecond)
	}
	if ms != 0 && !p.state.sleep() {
		ms = 0
	}
	n, err := p.wait(ms)
	if ms != 0 {
		p.state.woke()
	}
	if err != nil { // EINTR
		return
	}
	for i := range p.events[:n] {
		p.handle(&p.events[i])
	}
	p.mu.Lock()
	unread := p.unread
	p.unread = nil
	p.mu.Unlock()
	for _, l := range unread {
		l.pump()
	}
}

// wait is epoll_wait. Go's scheduler is not told of a look that never waits: its monitor, which is
// about after a pause, would take the caller's processor away meanwhile.
func (p *Poller) wait(ms int) (int, error) {
	if ms != 0 {
		return unix.EpollWait(p.epoll, p.events[:], ms)
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.epoll),
		uintptr(unsafe.Pointer(&p.events[0])), uintptr(len(p.events)), 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// revisit has a link read soon: no descriptor may report what its reader has left.
func (p *Poller) revisit(l *link) {
	p.mu.Lock()
	p.unread = append(p.unread, l)
	p.mu.Unlock()
	p.Kick()
}

// Kick has Wait return: what its caller waits for may have come about in another way.
func (p *Poller) Kick() { p.ringIf(p.state.kick()) }

// ringIf rings the bell, if it is needed.
func (p *Poller) ringIf(needed bool) {
	if !needed {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		one := binary.NativeEndian.AppendUint64(nil, 1)
		_, _ = unix.Write(p.bell, one) // it fails only where it has been rung 2^64 times
	}
}

func (p *Poller) handle(ev *unix.EpollEvent) {
	if int(ev.Fd) == p.bell {
		var count [8]byte
		_, _ = unix.Read(p.bell, count[:]) // it does not block; another look finds the rest
		return
	}
	p.mu.Lock()
	l, other := p.links[ev.Fd], p.others[ev.Fd]
	p.mu.Unlock()
	if other != nil {
		other()
	}
	if l == nil {
		return
	}
	read, room := l.wire.ready(int(ev.Fd), ev.Events)
	if room {
		l.makeRoom()
	}
	if read {
		l.pump()
	}
}

// call has the progress goroutine read again at once.
func (p *Poller) call() {
	select {
	case p.calls <- struct{}{}:
	default:
	}
}

// progress is the progress goroutine.
func (p *Poller) progress() {
	for {
		select {
		case p.token <- struct{}{}:
		case <-p.ending:
			return
		}
		p.duty()
		p.rest()
	}
}

// duty reads until the progress goroutine is to yield. It has the token, and gives it back.
func (p *Poller) duty() {
	defer func() {
		<-p.token
		p.state.end()
	}()
	select {
	case <-p.calls: // it has come
	default:
	}
	p.state.begin()
	for !p.over() && p.state.goOn() {
		p.Wait(-1)
	}
}

func (p *Poller) over() bool {
	select {
	case <-p.ending:
		return true
	default:
		return false
	}
}

// rest lasts while waiters read. A goroutine that sleeps in Go, and not in the kernel, keeps no P
// that Go's monitor would try to retake all the time.
func (p *Poller) rest() {
	t := time.NewTimer(0)
	defer t.Stop()
	d := lull
	if p.state.has(pollOversubscribed) {
		d = longLull
	}
	for p.state.waiting() == 0 {
		p.state.looked()
		urgent := p.urgent.Load() > 0
		if urgent {
			d = shortLull
		}
		t.Reset(d)
		select {
		case <-p.calls:
			return
		case <-p.ending:
			return
		case <-t.C:
		}
		if len(p.token) == 0 && !p.state.has(pollUsed) {
			return
		}
		if urgent {
			p.glance()
		}
		d = min(2*d, longLull)
	}
}

// glance reads what has come, while waiters go on to read.
func (p *Poller) glance() {
	if p.Take() {
		p.Wait(0)
		<-p.token
	}
}

// add begins to read a link. It tells whether it could.
func (p *Poller) add(l *link) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.over() {
		return ErrClosed
	}
	if !p.started {
		if !p.e.spawn("progress", p.progress) {
			return ErrClosed
		}
		p.started = true
	}
	if l.over.Load() {
		return ErrClosed
	}
	l.watch = linkWatch{fds: l.wire.fds(), reads: true}
	l.watch.armed = make([]uint32, len(l.watch.fds))
	if err := p.arm(&l.watch); err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	for _, w := range l.watch.fds {
		p.links[int32(w.fd)] = l
	}
	return nil
}

// remove forgets a link.
func (p *Poller) remove(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.watches(l) {
		return
	}
	l.watch.reads, l.watch.writes = false, false
	_ = p.arm(&l.watch) // fails where a descriptor is closed, which does the same
	for _, w := range l.watch.fds {
		delete(p.links, int32(w.fd))
	}
}

// watches tells whether a link has been added and not been removed. It needs p.mu.
func (p *Poller) watches(l *link) bool {
	return len(l.watch.fds) > 0 && p.links[int32(l.watch.fds[0].fd)] == l
}

// listen has a function called by the token's holder while a descriptor is readable.
func (p *Poller) listen(fd int, f func()) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	if err := p.tell(fd, new(uint32), unix.EPOLLIN); err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	p.others[int32(fd)] = f
	return nil
}

// unlisten undoes listen.
func (p *Poller) unlisten(fd int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.others, int32(fd))
	armed := uint32(unix.EPOLLIN)
	_ = p.tell(fd, &armed, 0) // fails where the descriptor is closed, which does the same
}

// linkWatch is what the kernel is asked to report of a link. It is guarded by Poller.mu.
type linkWatch struct {
	fds    []watched
	armed  []uint32 // of each of fds, the events that the kernel knows of
	reads  bool     // what comes
	writes bool     // room for a writer
}

// watchReads says whether the kernel shall report what comes over a link.
func (p *Poller) watchReads(l *link, on bool) { p.set(l, &l.watch.reads, on) }

// watchWrites says whether the kernel shall report room for a link's writer.
func (p *Poller) watchWrites(l *link, on bool) { p.set(l, &l.watch.writes, on) }

func (p *Poller) set(l *link, what *bool, on bool) {
	p.mu.Lock()
	var err error
	if p.watches(l) && !p.closed && *what != on {
		*what = on
		err = p.arm(&l.watch)
	}
	p.mu.Unlock()
	if err != nil {
		l.end(fmt.Errorf("epoll_ctl: %w", err))
	}
}

// arm needs p.mu.
func (p *Poller) arm(w *linkWatch) error {
	for i, f := range w.fds {
		events := uint32(0)
		if w.reads {
			events |= f.in
		}
		if w.writes {
			events |= f.out
		}
		if err := p.tell(f.fd, &w.armed[i], events); err != nil {
			return err
		}
	}
	return nil
}

// tell has the kernel report events at a descriptor, where it knows of the armed ones.
func (p *Poller) tell(fd int, armed *uint32, events uint32) error {
	op := unix.EPOLL_CTL_MOD
	switch {
	case events == *armed:
		return nil
	case *armed == 0:
		op = unix.EPOLL_CTL_ADD
	case events == 0: // else the kernel would still report errors
		op = unix.EPOLL_CTL_DEL
	}
	*armed = events
	return unix.EpollCtl(p.epoll, op, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

// end ends the progress goroutine.
func (p *Poller) end() {
	close(p.ending)
	p.Kick()
}

// close gives the descriptors back, once no goroutine reads.
func (p *Poller) close(deadline <-chan time.Time) error {
	select {
	case p.token <- struct{}{}: // and kept
	case <-deadline:
		return fmt.Errorf("transport: a goroutine still reads the links")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, fd := range []int{p.epoll, p.bell} {
		p.e.onFD(fd, false)
		unix.Close(fd)
	}
	return nil
}
