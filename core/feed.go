package core

import (
	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
)

// Feeder has the inputs of an operation come, and its outputs go, while it runs.
type Feeder = exec.Feeder

// NewFeed makes the feed of a feeder, for an [Operation] of this communicator. It holds the feeder
// until release is called, once the work has ended.
func (c *Comm) NewFeed(f Feeder) (feed *call.Feed, release func()) {
	made, release := exec.NewFeed(f, func(why string) {
		e := c.present.Load()
		e.Fail(e.Members.Errorf(fault.ErrInternal, "a feed of %s has failed: %s",
			e.Members.Names(e.Rank), why).Blaming(e.Rank), true)
	})
	return new(call.Feed(made)), release
}
