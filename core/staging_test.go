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
			at.Size, at.Sharing = size, 1
			if at.Memory {
				at.Sharing = size
			}
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

// A rank's windows take no more address space than is promised, however many ranks there are, and
// those that exchange in levels have long slots.
func TestWindowsAreBounded(t *testing.T) {
	const leastChunk = 128 << 10
	for _, each := range []int{1, 8, 64} { // ranks a host
		for _, size := range []int{16, 64, 100, 128, 512, 1000, 4096, 16384} {
			at := tune.Topology{Size: size, Sharing: min(each, size), Ports: size > each,
				Memory: each > 1, MultiHost: size > each}
			if each > 1 && size > each {
				at.Group = each
			}
			s, err := tune.New(at, size/2, tune.Options{})
			if err != nil {
				t.Fatal(err)
			}
			l := exec.Layout{Ranks: size, Lanes: tune.Lanes, Slots: s.Slots, Chunk: s.Chunk,
				LaterChunk: s.SendChunk, Near: s.Near(), NearChunk: s.NearChunk,
				Mailbox: exec.MailboxFor(s.EagerMax),
				Bounce:  exec.BounceFor(s.EagerMax),
				Pipe:    s.Pipe}
			if size > each {
				for peer := size / 2 / each * each; peer < min(size, size/2/each*each+each); peer++ {
					l.Sharing = append(l.Sharing, peer)
				}
			}
			promised := int64(46 << 20)
			if size > 1000 {
				promised = 50 << 20
			}
			window, private := l.Size(size / 2)
			if window+private > promised {
				t.Errorf("%d ranks, %d a host: windows of %d and %d bytes", size, each, window, private)
			}
			if max(s.Chunk, s.NearChunk) < leastChunk {
				t.Errorf("%d ranks, %d a host: chunks of %d and %d bytes", size, each, s.Chunk, s.NearChunk)
			}
		}
	}
}
