package channel

import (
	"sync"
)

// outbox runs functions one after the other, in order, in a goroutine that exists while there are
// some.
type outbox struct {
	spawn func(func())

	mu      sync.Mutex // guards what follows
	waiting []func()
	busy    bool
}

func (o *outbox) do(f func()) {
	o.mu.Lock()
	o.waiting = append(o.waiting, f)
	start := !o.busy
	o.busy = true
	o.mu.Unlock()
	if start {
		o.spawn(o.drain)
	}
}

func (o *outbox) drain() {
	for {
		o.mu.Lock()
		if len(o.waiting) == 0 {
			o.busy, o.waiting = false, nil
			o.mu.Unlock()
			return
		}
		f := o.waiting[0]
		o.waiting = o.waiting[1:]
		o.mu.Unlock()
		f()
	}
}
