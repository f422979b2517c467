// Package pending bounds what strangers cost a listener.
package pending

import (
	"context"
	"sync"
)

// List holds the connections that a listener has accepted and that have proved nothing yet. Beyond
// Most the oldest has to go: so neither the silent nor the many keep out one that proves itself.
type List struct {
	Most int

	mu    sync.Mutex
	conns []*Conn // the oldest first
}

// Conn is a connection on a list. Its context ends when it has to go.
type Conn struct {
	context.Context
	cancel context.CancelFunc
	list   *List
}

// Enter puts a connection on the list. Its context ends with parent at the latest.
func (l *List) Enter(parent context.Context) *Conn {
	c := &Conn{list: l}
	c.Context, c.cancel = context.WithCancel(parent)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.conns) >= l.Most {
		l.conns[0].cancel()
		l.conns = l.conns[1:]
	}
	l.conns = append(l.conns, c)
	return c
}

// Leave takes a connection that has proved itself off the list, and reports whether it was still on
// it. The list does not end the context of one that was.
func (c *Conn) Leave() bool {
	l := c.list
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, o := range l.conns {
		if o == c {
			l.conns = append(l.conns[:i:i], l.conns[i+1:]...)
			return true
		}
	}
	return false
}

// Close takes a connection off the list, if it is on it, and ends its context.
func (c *Conn) Close() {
	c.Leave()
	c.cancel()
}
