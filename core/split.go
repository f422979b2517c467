package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/epoch"
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
	n := e.NextSplit()
	all, err := c.gatherIn(ctx, e, int64(color), int64(key))
	if err != nil {
		return nil, err
	}
	var child *Comm
	var members []int // the child's
	var answers bootstrap.Answers
	if color >= 0 {
		members = splitMembers(all, int64(color))
		if child, err = c.child(e, n, int64(color), members); err != nil {
			e.Refuse(err.Error())
			var failure *fault.Error
			if errors.As(err, &failure) {
				return nil, failure.In(&e.Members).During(plan.Split.String(), 0)
			}
			return nil, err
		}
		answers = epoch.AnswersOf(&child.present.Load().Roster)
	}
	// Without it the ranks of the child would wait for one that could not make its own.
	all, err = c.gatherIn(ctx, e, int64(answers))
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
	child.present.Load().Agree(unanimous)
	return child, nil
}

// gatherIn returns the numbers of all ranks of an epoch. It fails where the members change first.
func (c *Comm) gatherIn(ctx context.Context, e *epoch.Epoch, mine ...int64) ([]int64, error) {
	for {
		all, err := e.ServiceOfSplit().Gather(ctx, mine...)
		if !errors.Is(err, epoch.ErrOver) {
			return all, err
		}
		c.awaitNext(e)
		if c.present.Load() != e {
			return nil, e.Members.Errorf(fault.ErrRevoked, "the members have changed").
				During(plan.Split.String(), 0)
		}
	}
}

// child makes the communicator of a split. The ranks know each other already: no store is needed.
func (c *Comm) child(e *epoch.Epoch, split uint64, color int64, members []int) (*Comm, error) {
	settings := c.shared.Settings
	settings.Rank, settings.Size = slices.Index(members, e.Rank), len(members)
	settings.Timeout = c.Timeout()
	settings.GroupName = fmt.Sprintf("%s/split %d color %d", e.Members.Name, split, color)
	var peers roster.Peers
	settings.GlobalRanks, peers = e.Part(members)
	end, id := e.Endpoint(), e.Identity.OfSplit(e.Number(), split, color)
	if len(members) == 1 {
		end, id = nil, roster.Identity{}
	}
	return c.runtime.openComm(settings, end, id,
		end.Roster(settings.GroupName, settings.Rank, settings.GlobalRanks, peers))
}

// splitMembers returns the ranks of a color, by key and rank. All has (color, key) of each rank.
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
