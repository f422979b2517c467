package core

import (
	"testing"
	"time"
)

// A plan's connections are made at once, in no order of need.
func TestConnectionsOfAPlan(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			const size = 5
			w := newWorld(t, transport, size, time.Minute)
			e := w.comms[0].present.Load()
			<-e.connect(1, 1, 2, 3, 4)
			for peer := 1; peer < size; peer++ {
				if !e.group.Connected(peer) {
					<-e.connect(peer)
				}
				if !e.group.Connected(peer) {
					t.Errorf("no connection to rank %d", peer)
				}
			}
		})
	}
}

// Not more are made than there is room for, but for those that are waited for. As they end, the
// next begin.
func TestDialsAreBounded(t *testing.T) {
	const size = 4
	w := newWorld(t, "tcp", size, time.Minute)
	e := w.comms[0].present.Load()
	d := &e.dialer
	d.busy = mostDials
	<-e.connect(1, 2, 3)
	d.mu.Lock()
	if two, three := d.dials[2], d.dials[3]; two == nil || two.begun || three == nil || three.begun {
		t.Errorf("dials: %v, %v", two, three)
	}
	planned := []*dial{d.dials[2], d.dials[3]}
	d.busy -= mostDials
	d.mu.Unlock()
	<-e.connect(3)
	for _, p := range planned {
		<-p.ended
	}
	for peer := 1; peer < size; peer++ {
		if !e.group.Connected(peer) {
			t.Errorf("no connection to rank %d", peer)
		}
	}
}
