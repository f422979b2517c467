package channel

import (
	"testing"

	"github.com/goccl/goccl/core/internal/polltest"
)

// What has been got over a link is not written to a destination whose channel is closed, be a piece
// on its way or not.
func TestCloseAmidGet(t *testing.T) {
	w := joinWorld(t, 2, true)
	c := w.ranks[0].open(1, 0, "")
	w.ranks[1].open(0, 0, "")
	w.settle()
	its := w.ranks[0].imported(w.ranks[1].own, 1)
	dst := make([]byte, 300)
	if err := c.Get(dst, its, 0); err != nil {
		t.Fatal(err)
	}
	r := w.ranks[0]
	first := data(gotData, 1, 0, 0, 100)
	first.Bytes = 100
	slot, err := r.Slot(1, first.Header)
	if err != nil || &slot[0] != &dst[0] {
		t.Fatalf("a slot elsewhere, %v", err)
	}
	over := make(chan struct{})
	go func() { // it waits for the piece
		defer close(over)
		c.Close()
	}()
	awaitClosed(t, c)
	if err := r.Arrived(1, first.Header); err != nil {
		t.Fatal(err)
	}
	<-over
	for i, f := range []frame{data(gotData, 1, 100, 0, 100), data(gotData, 1, 200, 0, 100)} {
		r.take(1, f)
		if dst[100+100*i] != 0 {
			t.Fatal("the destination has changed")
		}
	}
	if len(r.gets) != 0 || r.peers[1].asking != 0 {
		t.Errorf("left: %v", r)
	}
	w.correct()
}

// awaitClosed waits until a channel is closed by its user.
func awaitClosed(t *testing.T, c *Channel) {
	t.Helper()
	polltest.Until(t, "it is closed", func() bool {
		c.e.mu.Lock()
		defer c.e.mu.Unlock()
		return c.closed
	})
}

// What a channel that is closed has asked for counts until the peer has answered, which does not
// take a correct rank for one that floods it.
func TestGetsOfClosedChannels(t *testing.T) {
	w := joinWorld(t, 2, true)
	r := w.ranks[0]
	its := r.imported(w.ranks[1].own, 1)
	for n := 1; n <= 10; n++ {
		c := r.open(1, 0, "")
		peer := w.ranks[1].open(0, 0, "")
		w.settle()
		for range 50 {
			if err := c.Get(make([]byte, 8), its, 0); err != nil {
				t.Fatal(err)
			}
		}
		c.Close()
		if got := r.peers[1].asking; got != 50 {
			t.Fatalf("%d gets of a closed channel count as asked for", got)
		}
		peer.Close()
		w.settle()
		if got := r.peers[1].asking; got != 0 || len(r.gets) != 0 {
			t.Fatalf("%d gets are left", got)
		}
	}
	w.correct()
}
