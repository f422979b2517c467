package epoch

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/trace"
	"github.com/goccl/goccl/core/work"
)

// tracers log each call of an epoch; nil where calls are not logged. The choice is made with the
// epoch, and holds for its life. Sends and receives in C cannot be logged, so none go there then.
// Collectives in C are logged when they have run, from what the fast path notes.
type tracers struct {
	collectives, pointToPoint *slog.Logger
	// Guarded by Epoch.mu.
	told      uint64          // the last collective that is logged
	sideSteps map[string]bool // those that were told once
}

func newTracers(group *slog.Logger) tracers {
	tracer := func(s logs.Subsystem) *slog.Logger {
		if l := logs.For(group, s); l.Enabled(context.Background(), logs.Trace) {
			return l
		}
		return nil
	}
	return tracers{collectives: tracer(logs.Coll), pointToPoint: tracer(logs.P2P),
		sideSteps: map[string]bool{}}
}

// tracedGroup returns who the ranks are, and what joins this rank to them.
func (e *Epoch) tracedGroup() (g trace.Group, via []trace.Transport) {
	g = trace.Group{ID: e.Identity.Group, Epoch: e.number, Name: e.Members.Name, Rank: e.Rank,
		Ranks: slices.Clone(e.Members.GlobalRanks)}
	for peer, a := range e.Peers {
		via = append(via, trace.TransportOf(e.Peers[peer].Kind))
		g.Hosts, g.PIDs = append(g.Hosts, a.Name), append(g.PIDs, a.PID)
		self := &e.Peers[e.Rank].Address
		g.Near = append(g.Near, self.Host == a.Host && self.SharesPIDs(&a.Address))
		if e.Members.GlobalRanks == nil {
			g.Ranks = append(g.Ranks, peer)
		}
	}
	return g, via
}

// Log returns the epoch's logger of a subsystem.
func (e *Epoch) Log(s logs.Subsystem) *slog.Logger { return logs.For(e.logger, s) }

// traceStart logs what a work is to do, and has the end of its sends and receives logged.
func (e *Epoch) traceStart(w *work.Work, operations []call.Operation) {
	var sends []string
	for i := range operations {
		if op := &operations[i]; op.PointToPoint() && e.trace.pointToPoint != nil {
			text := e.p2p.Title(op)
			e.trace.pointToPoint.Debug(text + " starts")
			sends = append(sends, text)
		}
	}
	if sends != nil {
		text := strings.Join(sends, ", ")
		w.OnEnd(func(err error) { logs.Ended(e.trace.pointToPoint, text, err) })
	}
	if e.trace.collectives != nil {
		for _, p := range w.Parts() {
			e.trace.collectives.Debug(call.Describe(p.Message)+" starts", "sequence", p.Message.Sequence,
				"bytes", p.Operation.Total())
		}
	}
}

// traceRanEvery is how often the collectives are logged that have run in C.
const traceRanEvery = 20 * time.Millisecond

// traceRan logs the collectives that run in C, until the epoch ends.
func (e *Epoch) traceRan() {
	t := time.NewTicker(traceRanEvery)
	defer t.Stop()
	for over := false; !over; {
		select {
		case <-t.C:
		case <-e.stopped:
			over = true
		}
		e.lockOrder()
		tell := e.ranInC()
		e.unlockOrder()
		tell()
	}
}

// ranInC finds the collectives that have run in C since the last ones that were logged, and returns
// what logs them. Those that have a number and have not run go through Go, and are logged there.
// The fast path notes only the last ones. It is called with mu held, by lockOrder.
func (e *Epoch) ranInC() (tell func()) {
	first, last := e.trace.told+1, e.fast.Sequence()
	e.trace.told = last
	missing := uint64(0)
	if kept := last - min(last, trace.Collectives); first <= kept {
		missing, first = kept+1-first, kept+1
	}
	type ran struct {
		plan.Message
		plan.Algorithm
	}
	var all []ran
	for s := first; s <= last; s++ {
		if a := e.fast.Algorithm(s); a != (plan.Algorithm(0)) {
			all = append(all, ran{e.fast.At(s), a})
		}
	}
	return func() {
		if missing > 0 {
			e.trace.collectives.Debug("earlier collectives ran by the fast path, too", "collectives",
				missing)
		}
		for _, r := range all {
			e.trace.collectives.Debug(call.Describe(r.Message)+" has run by the fast path", "sequence",
				r.Sequence, "algorithm", e.programs.algorithm(r.Algorithm))
		}
	}
}

// traceEnd logs the end of a collective.
func (e *Epoch) traceEnd(p *work.Part, err *fault.Error) {
	if e.trace.collectives == nil {
		return
	}
	var cause error
	if err != nil {
		cause = err
	}
	logs.Ended(e.trace.collectives, call.Describe(p.Message), cause,
		"sequence", p.Message.Sequence, "algorithm", e.programs.algorithm(e.runner.algorithm(p.Message)))
}
