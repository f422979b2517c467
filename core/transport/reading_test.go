package transport

import (
	"testing"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/internal/polltest"
)

// Links that are idle hold no memory to read into, whatever they have carried.
func TestReadBufferComesWithUse(t *testing.T) {
	for _, kind := range []string{address.Shm, address.TCP, address.Verbs} {
		t.Run(kind, func(t *testing.T) {
			eps := pair(t, kind, Config{})
			w := newWorld(t, eps, kind, 1)
			ok(t, w.groups[0].Connect(within(t), 1))
			for _, h := range []Header{{Type: ControlBase}, {Type: QuickBase}, {Type: Data}} {
				ok(t, w.groups[0].Send(within(t), 1, h, make([]byte, 100_000)))
			}
			w.handlers[1].untilFrames(t, 3)
			for i, g := range w.groups {
				in := &g.members[1-i].ready.Load().link.reading
				polltest.Until(t, "the end of reading", func() bool {
					in.lock.Lock()
					defer in.lock.Unlock()
					return in.in.bytes == nil
				})
			}
		})
	}
}
