// Package p2p carries the sends and receives of one rank.
//
// An [Engine] pairs sends with receives by source and tag, in the order of their coming, at the
// receiver. A small send goes there at once with its data (eager), straight into the buffer of a
// receive that waits for it. Of a large one an RTS goes, and its data flows once a receive has met
// it (rendezvous). So a receiver never holds more than eagerBudget of data that no receive has
// asked for, and a receive of one tag is not held up by data of another. Neither does it hold more
// than so many sends: see held.go.
//
// The engine decides, and a wire, chosen once for each peer, carries frames and large data: a link,
// or the mailboxes of ranks that share memory. What the engine has no power over it asks of the
// communicator, by the interface [Face]: it is the communicator that fails, and that dials.
//
// Locks: Engine.mu is a leaf but for the locks of serial queues. No work ends, and
// nothing is sent, with it held.
package p2p

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/tune"
	"github.com/goccl/goccl/core/work"
)

// Face is what an engine asks of its communicator. The methods may be called from any goroutine
// that does not hold Engine.mu.
type Face interface {
	// Failed is the first cause of the communicator's failure; nil while it works.
	Failed() *fault.Error
	// Fail fails the communicator, and has all ranks told. It calls Engine.Fail, unless the
	// communicator has failed before.
	Fail(cause *fault.Error)
	// PeerError is the failure to reach a peer, or that of the communicator.
	PeerError(peer int, err error) *fault.Error
	// RunError is why a run cannot go on, whose message is m.
	RunError(run *exec.Run, m plan.Message, s exec.Status) *fault.Error
	// Departure is how a peer has ended.
	Departure(peer int) (d membership.Departure, gone bool)
	// Timeout is how long an answer to a peer may take.
	Timeout() time.Duration
	// Dial has a connection to a peer made, if there is none.
	Dial(peer int)
}

// Links carry frames to peers. [transport.Group] says what the methods do.
type Links interface {
	Connected(peer int) bool
	Connect(ctx context.Context, peer int) error
	Send(ctx context.Context, peer int, h transport.Header, payload ...[]byte) error
	TrySend(peer int, h transport.Header, payload ...[]byte) bool
	Notify(peer int, h transport.Header, payload []byte) (attached bool)
	Advertises(peer int, payload []byte) bool
	Advertise(ctx context.Context, reading bool, peer int, h transport.Header,
		payload ...[]byte) (advertised bool, err error)
	Pump(peer int)
}

// Reader reads links. [transport.Poller] says what the methods do.
type Reader interface {
	Token() chan struct{}
	Take() bool
	Leave()
	Wait(most time.Duration)
	Kick()
	StartProgress()
	StopProgress()
	YieldProgress()
}

// Config says what an engine works with.
type Config struct {
	Rank    int
	Members *fault.Group
	Group   uint64 // of the plans' messages, as is Epoch
	Epoch   uint32
	Ports   []bool      // by rank: whether a link joins it to this one, and no memory
	Shape   *tune.Shape // agreed before the first use
	Waiting exec.Waiting

	Works    *work.Group
	Window   *exec.Window
	Lane     *exec.Lane // for plans; the last of the window
	FastPath *exec.FastPath
	Reader   Reader // nil where there are no links
	// Traced tells that each call is logged, so that none may be made without the engine.
	Traced bool
}

// String tells what the engine keeps, for tests.
func (e *Engine) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	text := fmt.Sprintf("%d unexpected", len(e.match.unexpected))
	if e.open {
		text += ", open"
	}
	var rest []string
	for peer := range e.gone {
		rest = append(rest, fmt.Sprintf(", %d is gone", peer))
	}
	for b := range e.all() {
		rest = append(rest, ", "+b.String())
	}
	slices.Sort(rest)
	return text + strings.Join(rest, "")
}
