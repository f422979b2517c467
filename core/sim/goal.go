package sim

import (
	"bufio"
	"fmt"
	"io"

	"github.com/goccl/goccl/core/plan"
)

// exposures is the tag of the first thing that a rank exposes to a peer; those of messages are
// their numbers, which are smaller.
const exposures = 1 << 30

// writeGOAL writes what ranks do as LogGOPSim reads it (Hoefler, Schneider and Lumsdaine, 2010):
// messages, and the nanoseconds of copies and reductions in between. Each receive is posted at the
// beginning, and what a rank does follows the receives before it. Slots are left out.
func (s *simulation) writeGOAL(to io.Writer) error {
	w := bufio.NewWriter(to)
	fmt.Fprintf(w, "num_ranks %d\n", len(s.ranks))
	put, exposed := make([]int32, len(s.rings)), map[int32]int32{}
	taken, accessed := make([]int32, len(s.rings)), map[int32]int32{}
	for r := range s.ranks {
		fmt.Fprintf(w, "\nrank %d {\n", r)
		g := goalRank{w: w}
		k := &s.ranks[r]
		for i := range k.steps {
			p := &k.steps[i]
			switch p.op {
			case plan.Put, plan.Offer, plan.PutToAll:
				s.sends(int32(r), p, func(ring int32) {
					g.does("send %db to %d tag %d", max(p.bytes, 1), s.rings[ring].receiver, put[ring])
					put[ring]++
				})
			case plan.Wait:
				g.takes("recv %db from %d tag %d", max(p.bytes, 1), p.peer, taken[p.ring])
				taken[p.ring]++
			case plan.Expose:
				g.does("send 1b to %d tag %d", p.peer, exposures+exposed[p.ring])
				exposed[p.ring]++
			case plan.Access:
				g.takes("recv 1b from %d tag %d", p.peer, exposures+accessed[p.ring])
				accessed[p.ring]++
			case plan.Copy, plan.Combine, plan.Get:
				if takes := s.cost(int32(r), p).sum(); takes > 0 {
					g.does("calc %d", (takes+500)/1000)
				}
			}
		}
		fmt.Fprint(w, "}\n")
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// goalRank writes the operations of a rank.
type goalRank struct {
	w      *bufio.Writer
	label  int
	last   int   // what was done last; 0: nothing
	before []int // receives since then
}

func (g *goalRank) operation(format string, args ...any) {
	g.label++
	fmt.Fprintf(g.w, "l%d: ", g.label)
	fmt.Fprintf(g.w, format, args...)
	g.w.WriteByte('\n')
}

// takes writes a receive.
func (g *goalRank) takes(format string, args ...any) {
	g.operation(format, args...)
	g.before = append(g.before, g.label)
}

// does writes what follows all that is above.
func (g *goalRank) does(format string, args ...any) {
	g.operation(format, args...)
	if g.last > 0 {
		g.before = append(g.before, g.last)
	}
	for _, b := range g.before {
		fmt.Fprintf(g.w, "l%d requires l%d\n", g.label, b)
	}
	g.last, g.before = g.label, g.before[:0]
}
