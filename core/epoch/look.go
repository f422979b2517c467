package epoch

import (
	"context"
	"fmt"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/transport"
)

// peers are those of an epoch as package status asks them. They answer while a thread stands in a
// collective: neither takes Epoch.mu, and the frames are of those that wait for nobody.
type peers struct{ e *Epoch }

// Linked implements status.Links.
func (p peers) Linked(peer int) bool { return p.e.group.Connected(peer) }

// Ask implements status.Links.
func (p peers) Ask(peer int) {
	p.e.group.Notify(peer, transport.Header{Type: frameLook}, nil)
}

// Connect implements status.Links.
func (p peers) Connect(ctx context.Context, peer int) error { return p.e.group.Connect(ctx, peer) }

// onLook takes a peer's question what this rank does, or its answer to that.
func (e *Epoch) onLook(src int, h transport.Header, payload []byte) error {
	if h.Type == frameReport {
		if err := e.config.Peers.Hear(src, payload); err != nil {
			return fmt.Errorf("%w: %w", exec.ErrProtocol, err)
		}
		return nil
	}
	if len(payload) > 0 {
		return fmt.Errorf("%w: a question of %d bytes", exec.ErrProtocol, len(payload))
	}
	if report := e.config.Peers.Answer(src, e.fast.Trace()); report != nil {
		e.group.Notify(src, transport.Header{Type: frameReport}, report)
	}
	return nil
}
