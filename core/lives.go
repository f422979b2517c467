package core

import (
	"os"
	"sync"
	"time"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/transport"
)

// lives are the life words of an endpoint's peers on this host.
type lives struct {
	mu      sync.Mutex // guards what follows
	watched map[transport.ProcessID]*exec.Life
	stopped bool
}

// watch has links to a process of this host end as soon as the kernel knows of its end. Where its
// life word cannot be seen they do when its sockets are closed.
func (e *sharedEndpoint) watch(a *transport.Address) {
	e.lives.mu.Lock()
	defer e.lives.mu.Unlock()
	if _, ok := e.watched[a.Process]; ok || e.stopped || a.Life == 0 || a.PID == os.Getpid() {
		return
	}
	process := a.Process
	life, err := exec.WatchLife(a.PID, a.Life, exec.Mark(a.Mark), func() { e.Ended(process) })
	if err != nil {
		return
	}
	if e.watched == nil {
		e.watched = map[transport.ProcessID]*exec.Life{}
	}
	e.watched[process] = life
}

// dropEnded gives back what is held of processes that have ended, and are members of no group here.
func (e *sharedEndpoint) dropEnded() {
	ended := e.DropEnded()
	e.lives.mu.Lock()
	defer e.lives.mu.Unlock()
	for _, process := range ended {
		if life, ok := e.watched[process]; ok {
			life.Stop()
			delete(e.watched, process)
		}
	}
}

// fencePatience is how long a process that is killed may take to end: it may be in the kernel.
const fencePatience = time.Second

// Fence kills a process of this host that is suspected to have ended, as one that is only stopped
// would write to memory of its peers when it goes on. It tells whether it is proved that it has
// ended; links to it end then. It kills no process but the one that has published the address.
func (e *sharedEndpoint) Fence(a *transport.Address) bool {
	return a.PID != os.Getpid() && e.Kill(a, fencePatience, func() bool {
		return exec.IsProcess(a.PID, a.Life, exec.Mark(a.Mark)) ||
			exec.CanGet(exec.Process{PID: a.PID, FD: -1}, exec.Mark(a.Mark)) == nil
	})
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
