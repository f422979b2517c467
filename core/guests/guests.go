// Package guests bounds what strangers cost a listener.
package guests

import (
	"context"
	"sync"
)

// List holds the connections that a listener has accepted and that have proved nothing yet. Beyond
// Most the oldest has to go: so neither the silent nor the many keep out one that proves itself.
type List struct {
	Most int

	mu     sync.Mutex
	guests []*Guest // the oldest first
}

// Guest is a connection on a list. Its context ends when it has to go.
type Guest struct {
	context.Context
	cancel context.CancelFunc
	list   *List
}

// Enter puts a guest on the list. Its context ends with parent at the latest.
func (l *List) Enter(parent context.Context) *Guest {
	g := &Guest{list: l}
	g.Context, g.cancel = context.WithCancel(parent)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.guests) >= l.Most {
		l.guests[0].cancel()
		l.guests = l.guests[1:]
	}
	l.guests = append(l.guests, g)
	return g
}

// Leave takes a guest that has proved itself off the list. It reports whether the guest was still
// on it: the list does not end the context of one that was.
func (g *Guest) Leave() bool {
	l := g.list
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, o := range l.guests {
		if o == g {
			l.guests = append(l.guests[:i:i], l.guests[i+1:]...)
			return true
		}
	}
	return false
}

// Close takes a guest off the list, if it is on it, and ends its context.
func (g *Guest) Close() {
	g.Leave()
	g.cancel()
}
