package core

import (
	"os"
	"sync"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/exec"
)

// lives are the life words of an endpoint's peers on this host.
type lives struct {
	mu      sync.Mutex // guards what follows
	watched map[address.ProcessID]*exec.Life
	stopped bool
}

// hold keeps what the kernel tells of a process of this host until release: see
// [transport.Endpoint.Hold]. Links to it end as soon as the kernel knows of its end. Where its life
// word cannot be seen they do when its sockets are closed.
func (e *sharedEndpoint) hold(a *address.Address) (pidfd int) {
	e.lives.mu.Lock()
	defer e.lives.mu.Unlock()
	pidfd = e.Hold(a)
	e.watch(a)
	return pidfd
}

// release gives back one hold of a process.
func (e *sharedEndpoint) release(process address.ProcessID) {
	e.lives.mu.Lock()
	defer e.lives.mu.Unlock()
	if !e.Release(process) {
		return
	}
	if life, ok := e.watched[process]; ok {
		life.Stop()
		delete(e.watched, process)
	}
}

// watch needs lives.mu.
func (e *sharedEndpoint) watch(a *address.Address) {
	if _, ok := e.watched[a.Process]; ok || e.stopped || a.Life == 0 || a.PID == os.Getpid() {
		return
	}
	process := a.Process
	life, err := exec.WatchLife(a.PID, a.Life, exec.Mark(a.Mark), func() { e.Ended(process) })
	if err != nil {
		return
	}
	if e.watched == nil {
		e.watched = map[address.ProcessID]*exec.Life{}
	}
	e.watched[process] = life
}

// stop ends all watches.
func (l *lives) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, life := range l.watched {
		life.Stop()
	}
	l.watched, l.stopped = nil, true
}
