package core

import (
	"testing"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/p2p"
	"github.com/goccl/goccl/core/tune"
)

// Staging memory stays within what is promised: inboxes and scratch of both lanes, mailboxes, and
// eager sends that nobody has asked for.
func TestStagingIsBounded(t *testing.T) {
	const promised, smallestChunk = 17 << 20, 4 << 10
	for size := 2; size <= 256; size++ {
		for _, at := range []tune.Topology{{Memory: true}, {Ports: true, Memory: true},
			{Ports: true}, {Memory: true, Oversubscribed: true}} {
			at.Size = size
			s, err := tune.New(at, 0, tune.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if s.Chunk == smallestChunk {
				continue // so many ranks that the smallest chunks need more
			}
			scratch := s.Chunk
			perPeer := int64(s.Slots) * s.Chunk
			if at.Memory {
				mail := exec.MailboxFor(s.EagerMax) + s.EagerMax // in bounce buffers
				perPeer = tune.Lanes*perPeer + mail
			}
			eager := int64(p2p.EagerBudget) * 9 / 8 // buffers are up to an eighth longer
			stage := int64(0)                       // of collectives
			if at.Memory && !at.Ports && size > 2 {
				stage = int64(s.Slots) * s.Chunk
			}
			held := int64(size-1)*perPeer + stage + scratch + eager
			if held > promised {
				t.Errorf("%d ranks, %+v: %d bytes", size, at, held)
			}
		}
	}
}
