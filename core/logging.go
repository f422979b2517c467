package core

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/printable"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/order"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/tune"
	"github.com/goccl/goccl/core/work"
)

// tracers are where each call of a communicator is logged: nil where it is not. What is chosen when
// the communicator is made holds for its life. Sends and receives in C are not logged, so there are
// none then. Collectives in C are logged when they have run, from what the fast path notes.
type tracers struct {
	collectives, pointToPoint *slog.Logger
	told                      uint64 // the last collective that is logged; under Comm.mu
}

func newTracers(group *slog.Logger) tracers {
	tracer := func(s logs.Subsystem) *slog.Logger {
		if l := logs.For(group, s); l.Enabled(context.Background(), logs.Trace) {
			return l
		}
		return nil
	}
	return tracers{collectives: tracer(logs.Coll), pointToPoint: tracer(logs.P2P)}
}

func (c *epoch) log(s logs.Subsystem) *slog.Logger { return logs.For(c.logger, s) }

// traceStart logs what a work is to do, and has the end of its sends and receives logged.
func (c *epoch) traceStart(w *Work, operations []call.Operation) {
	var sends []string
	for i := range operations {
		if op := &operations[i]; op.PointToPoint() && c.trace.pointToPoint != nil {
			text := c.p2p.Title(op)
			c.trace.pointToPoint.Debug(text + " starts")
			sends = append(sends, text)
		}
	}
	if sends != nil {
		text := strings.Join(sends, ", ")
		w.OnEnd(func(err error) { traceEnd(c.trace.pointToPoint, text, err) })
	}
	if c.trace.collectives != nil {
		for _, p := range w.Parts() {
			c.trace.collectives.Debug(call.Describe(p.Message)+" starts", "sequence", p.Message.Sequence,
				"bytes", p.Operation.Total())
		}
	}
}

// traceRanEvery is how often the collectives are logged that have run in C.
const traceRanEvery = 20 * time.Millisecond

// traceRan logs the collectives that run in C, until the epoch ends.
func (c *epoch) traceRan() {
	t := time.NewTicker(traceRanEvery)
	defer t.Stop()
	for over := false; !over; {
		select {
		case <-t.C:
		case <-c.stopped:
			over = true
		}
		c.lockOrder()
		tell := c.ranInC()
		c.unlockOrder()
		tell()
	}
}

// ranInC finds the collectives that have run in C since the last ones that were logged, and returns
// what logs them. Those that have a number and have not run go through Go, and are logged there. It
// is called with the order locked. The fast path notes few of them.
func (c *epoch) ranInC() (tell func()) {
	first, last := c.trace.told+1, c.Sequence()
	c.trace.told = last
	missing := uint64(0)
	if kept := last - min(last, order.MaxRefusals); first <= kept {
		missing, first = kept+1-first, kept+1
	}
	type ran struct {
		plan.Message
		plan.Algorithm
	}
	var all []ran
	for s := first; s <= last; s++ {
		if a := c.fast.Algorithm(s); a != (plan.Algorithm(0)) {
			all = append(all, ran{c.fast.At(s), a})
		}
	}
	return func() {
		if missing > 0 {
			c.trace.collectives.Debug("earlier collectives ran by the fast path, too", "collectives",
				missing)
		}
		for _, r := range all {
			c.trace.collectives.Debug(call.Describe(r.Message)+" has run by the fast path", "sequence",
				r.Sequence, "algorithm", r.Algorithm.String())
		}
	}
}

// traceEnd logs the end of a collective.
func (c *epoch) traceEnd(p *work.Part, err *fault.Error) {
	if c.trace.collectives == nil {
		return
	}
	var cause error
	if err != nil {
		cause = err
	}
	traceEnd(c.trace.collectives, call.Describe(p.Message), cause,
		"sequence", p.Message.Sequence, "algorithm", c.runner.algorithm(p.Message).String())
}

func traceEnd(log *slog.Logger, what string, err error, attrs ...any) {
	if err != nil {
		log.Debug(what+" fails", append(attrs, "error", err)...)
		return
	}
	log.Debug(what+" ends", attrs...)
}

// logMade tells how a new communicator moves data, and why so.
func (c *epoch) logMade() {
	log := c.log(logs.Init)
	if !log.Enabled(context.Background(), logs.Info) {
		return
	}
	d := c.Describe()
	attrs := []any{"size", d.Size, "hosts", c.hosts(&d)}
	if c.Members.GlobalRanks != nil {
		attrs = append(attrs, "global_ranks", printable.Ranges(d.GlobalRanks))
	}
	if d.Size > 1 {
		attrs = append(attrs, "transports", c.transports(&d))
	}
	if c.end != nil {
		attrs = append(attrs, "interface", d.Interface, "address", strings.Join(d.Addresses, ","))
		if port, ok := c.end.RDMAPort(); ok {
			attrs = append(attrs, "rdma", fmt.Sprintf("%s:%d", port.Device, port.Port))
		}
		if slices.Contains(c.Peers.Ports(), true) {
			attrs = append(attrs, "congestion", d.Congestion)
		}
	}
	if domains := c.domains(&d); domains != "" {
		attrs = append(attrs, "domains", domains)
	}
	if better := numbering(&c.shape.Topology); better != "" {
		attrs = append(attrs, "numbering", better)
	}
	attrs = append(attrs, "oversubscribed", d.Oversubscribed,
		"alltoall_schedule", cmp.Or(d.Schedule, "by size"), "algorithms", cmp.Or(d.Algorithms, "any"),
		"thresholds", c.shape.Thresholds.String(), "version", Version)
	log.Info("a group is made", attrs...)
}

// numbering tells what would be gained if ranks were numbered host by host, where there are so many
// in succession on each; "" where that is nothing. What these reduce goes to other hosts once.
func numbering(t *tune.Topology) string {
	now, better := max(t.Group, 1), t.OrderGroup
	if better <= now {
		return ""
	}
	return fmt.Sprintf("host by host, sums would go between hosts 1/%d as often: for each %d ranks, "+
		"not for each %d", better/now, better, now)
}

// hosts tells which ranks are on which host, as in "node-a: 0-3; node-b: 4-7".
func (c *epoch) hosts(d *Description) string {
	return grouped(c.Size(), func(rank int) (string, string, bool) {
		return c.Peers[rank].Host, d.Hosts[rank], true
	})
}

// domains tells which ranks are in which domain of their host's CPUs, named by its first, as in
// "node-a, CPU 0: 0-3; node-a, CPU 8: 4-7"; "" where no host has several.
func (c *epoch) domains(d *Description) string {
	if max(c.shape.Domain, c.shape.OrderDomain) == 0 {
		return ""
	}
	return grouped(c.Size(), func(rank int) (string, string, bool) {
		host, cpu := d.Hosts[rank], c.Peers[rank].Domain-1
		return fmt.Sprint(c.Peers[rank].Host, cpu), fmt.Sprintf("%s, CPU %d", host, cpu), cpu >= 0
	})
}

// transports tells what joins this rank to which others, and why. What is said of one pair alone
// stands after a colon, and is told of the first.
func (c *epoch) transports(d *Description) string {
	return grouped(c.Size(), func(peer int) (string, string, bool) {
		kind, why := d.Transports[peer], d.Reasons[peer]
		general, _, _ := strings.Cut(why, ": ")
		return kind + general, kind + " (" + why + ")", peer != c.Rank
	})
}

// grouped puts ranks with the same key together, under the name that the first of them has.
func grouped(size int, of func(rank int) (key, name string, ok bool)) string {
	var keys []string
	names, ranks := map[string]string{}, map[string][]int{}
	for rank := range size {
		key, name, ok := of(rank)
		if !ok {
			continue
		}
		if ranks[key] == nil {
			keys = append(keys, key)
			names[key] = name
		}
		ranks[key] = append(ranks[key], rank)
	}
	var parts []string
	for _, key := range keys {
		parts = append(parts, names[key]+": "+printable.Ranges(ranks[key]))
	}
	return strings.Join(parts, "; ")
}
