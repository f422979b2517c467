package work

import (
	"time"

	"github.com/goccl/goccl/core/exec"
)

// driver is what the work needs now, and its token; nil if it needs nothing.
func (w *Work) driver() (Driver, Token) {
	if len(w.parts) > 0 {
		if token := w.group.Queue.Token(w); token != nil {
			return w.group.Queue, token
		}
	}
	if w.transit != nil {
		if token := w.transit.Token(w); token != nil {
			return w.transit, token
		}
	}
	return nil, nil
}

// drive drives what the work needs, unless another thread does. It reports whether there is
// anything left to wait for.
func (w *Work) drive(until time.Duration) (more bool) {
	driver, token := w.driver()
	if token == nil {
		return true
	}
	select {
	case token <- struct{}{}:
		return driver.Drive(w, until)
	default:
		return true
	}
}

// help waits for the end of the work until a time, and drives what the work needs where no other
// thread does.
func (w *Work) help(until time.Duration) {
	if !w.drive(until) {
		return
	}
	if w.transit != nil {
		defer w.transit.Relieve()
	}
	if w.yield(until) {
		return
	}
	driver, token := w.driver()
	timer := time.NewTimer(until - exec.Now())
	defer timer.Stop()
	for {
		select {
		case <-w.closed():
			return
		case <-timer.C:
			return
		case token <- struct{}{}: // given back unused, it would go to another waiter, and so on
			if !driver.Drive(w, until) {
				return
			}
			driver, token = w.driver()
		}
	}
}

// soonTime is for how long a start waits for a work whose caller is about to wait: a caller that
// starts a work on each of several communicators before it waits for the first loses no more.
const soonTime = time.Millisecond

// HelpAtOnce is Wait for a little while. It does not sleep where another thread drives.
func (w *Work) HelpAtOnce() {
	until := exec.Now() + soonTime
	if w.Ended() || !w.drive(until) {
		return
	}
	w.yield(until)
	if w.transit != nil {
		w.transit.Relieve()
	}
}

// yieldTime bounds how long a waiter gives the CPU away: on a busy host each yield may take
// milliseconds, and a sleeper is woken sooner.
const yieldTime = time.Millisecond

// yield gives the CPU away for a while, in the hope that another thread ends the work. It tells
// whether there is nothing left to wait for, or no time.
func (w *Work) yield(until time.Duration) bool {
	enough := exec.Now() + yieldTime
	for range w.group.Yields {
		if w.Ended() {
			return true
		}
		exec.YieldCPU()
		if exec.Now() >= enough {
			break
		}
	}
	return w.Ended() || exec.Now() >= until
}
