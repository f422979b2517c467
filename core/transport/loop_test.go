package transport

import "testing"

// What a sender waits to send does not crowd out what others are told.
func TestFullInboxIsTold(t *testing.T) {
	g := &Group{}
	b := inbox{bytes: maxInbox, draining: true}
	if b.post(g, item{payload: make([]byte, 1)}, maxInbox) {
		t.Error("there was room for data")
	}
	if !b.post(g, item{payload: make([]byte, MaxControl)}, maxTold) {
		t.Error("there was no room to tell of a failure")
	}
}
