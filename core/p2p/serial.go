package p2p

import "github.com/goccl/goccl/core/internal/serial"

// queued runs functions one after the other, each with callers in C kept out: see Engine.enter.
type queued struct{ serial.Queue }

func (q *queued) do(e *Engine, f func()) {
	e.enter()
	q.Do(func() {
		f()
		e.exit()
	})
}
