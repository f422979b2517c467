package pending

import (
	"context"
	"testing"
)

func TestList(t *testing.T) {
	l := List{Most: 2}
	ctx, cancel := context.WithCancel(context.Background())
	a, b := l.Enter(ctx), l.Enter(ctx)
	if !a.Leave() || a.Leave() {
		t.Fatal("a connection leaves once")
	}
	c, d := l.Enter(ctx), l.Enter(ctx)
	if b.Err() == nil || b.Leave() {
		t.Fatal("beyond the most the oldest has to go")
	}
	if a.Err() != nil || c.Err() != nil || d.Err() != nil {
		t.Fatal("only the oldest has to go, and only from the list")
	}
	c.Close()
	e := l.Enter(ctx)
	if c.Err() == nil || d.Err() != nil || e.Err() != nil {
		t.Fatal("one that is closed makes room")
	}
	cancel()
	if a.Err() == nil || e.Err() == nil {
		t.Fatal("connections stay longer than their host")
	}
}
