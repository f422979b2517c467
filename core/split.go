package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/roster"
)

// Split parts the communicator: ranks of equal color (>= 0) meet in a new one, ordered by key and
// then by rank. With a negative color a rank takes part and gets nil. A collective call: it fails
// on all ranks where one cannot make its communicator, and where the members change meanwhile.
func (c *Comm) Split(ctx context.Context, color, key int) (*Comm, error) {
	e := c.holdEpoch()
	c.changing.Unlock()
	c.mu.Lock()
	e.splits++
	n := e.splits
	c.mu.Unlock()
	all, err := c.gather(ctx, CallOptions{in: e}, true, int64(color), int64(key))
	if err != nil {
		return nil, err
	}
	var child *Comm
	var members []int // the child's
	var answers bootstrap.Answers
	if color >= 0 {
		members = splitMembers(all, int64(color))
		if child, err = e.child(n, int64(color), members); err != nil {
			c.Refuse(err.Error())
			var failure *fault.Error
			if errors.As(err, &failure) {
				return nil, failure.In(&e.Members).During(plan.Split.String(), 0)
			}
			return nil, err
		}
		answers = answersOf(&child.present.Load().Roster)
	}
	// The ranks of the child would wait for one that could not make its own.
	all, err = c.gather(ctx, CallOptions{in: e}, true, int64(answers))
	switch {
	case child == nil:
		return nil, err
	case err != nil:
		child.Destroy()
		return nil, err
	}
	unanimous := answers
	for _, r := range members {
		unanimous &= bootstrap.Answers(all[r])
	}
	child.present.Load().agree(unanimous)
	return child, nil
}

// child makes the communicator of a split. The ranks know each other already: no store is needed.
func (c *epoch) child(split uint64, color int64, members []int) (*Comm, error) {
	config := c.config
	config.Rank, config.Size = slices.Index(members, c.Rank), len(members)
	config.Timeout = c.defaultTimeout()
	config.GroupName = fmt.Sprintf("%s/split %d color %d", c.Members.Name, split, color)
	var peers roster.Peers
	config.GlobalRanks, peers = c.Part(members)
	if len(members) == 1 {
		return c.runtime.openComm(config, nil, roster.Identity{}, peers)
	}
	id := c.Identity.OfSplit(c.number, split, color)
	c.end.Share()
	comm, err := c.runtime.openComm(config, c.end, id, peers)
	if err != nil {
		c.end.Leave()
		return nil, err
	}
	return comm, nil
}

// splitMembers returns the ranks of a color, by key and rank. All holds (color, key) of each rank.
func splitMembers(all []int64, color int64) []int {
	var members []int
	for r := 0; 2*r < len(all); r++ {
		if all[2*r] == color {
			members = append(members, r)
		}
	}
	slices.SortStableFunc(members, func(a, b int) int { return cmp.Compare(all[2*a+1], all[2*b+1]) })
	return members
}
