package core

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/goccl/goccl/core/epoch"
	"github.com/goccl/goccl/core/internal/printable"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/roster"
	"github.com/goccl/goccl/core/tune"
)

// logMade tells how a new communicator moves data, and why so.
func (c *Comm) logMade() {
	e := c.present.Load()
	log := e.Log(logs.Init)
	if !log.Enabled(context.Background(), logs.Info) {
		return
	}
	d := c.Describe()
	attrs := []any{"size", d.Size, "hosts", hosts(&e.Roster, &d)}
	if e.Members.GlobalRanks != nil {
		attrs = append(attrs, "global_ranks", printable.Ranges(d.GlobalRanks))
	}
	if d.Size > 1 {
		attrs = append(attrs, "transports", joinedBy(&e.Roster, &d))
	}
	if end := e.Endpoint(); end != nil {
		attrs = append(attrs, "interface", d.Interface, "address", strings.Join(d.Addresses, ","))
		if port, ok := end.RDMAPort(); ok {
			attrs = append(attrs, "rdma", fmt.Sprintf("%s:%d", port.Device, port.Port))
		}
		if slices.Contains(e.Peers.Ports(), true) {
			attrs = append(attrs, "congestion", d.Congestion)
		}
	}
	if domains := domains(e, &d); domains != "" {
		attrs = append(attrs, "domains", domains)
	}
	if better := numbering(&e.Shape().Topology); better != "" {
		attrs = append(attrs, "numbering", better)
	}
	attrs = append(attrs, "oversubscribed", d.Oversubscribed,
		"alltoall_schedule", cmp.Or(d.Schedule, "by size"), "algorithms", cmp.Or(d.Algorithms, "any"),
		"thresholds", e.Shape().Thresholds.String(), "version", Version)
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
func hosts(r *roster.Roster, d *Description) string {
	return printable.Grouped(r.Size(), func(rank int) (string, string, bool) {
		return r.Peers[rank].Host, d.Hosts[rank], true
	})
}

// domains tells which ranks are in which domain of their host's CPUs, named by its first, as in
// "node-a, CPU 0: 0-3; node-a, CPU 8: 4-7"; "" where no host has several.
func domains(e *epoch.Epoch, d *Description) string {
	if max(e.Shape().Domain, e.Shape().OrderDomain) == 0 {
		return ""
	}
	return printable.Grouped(e.Size(), func(rank int) (string, string, bool) {
		host, cpu := d.Hosts[rank], e.Peers[rank].Domain-1
		return fmt.Sprint(e.Peers[rank].Host, cpu), fmt.Sprintf("%s, CPU %d", host, cpu), cpu >= 0
	})
}

// joinedBy tells what joins this rank to which others, and why. What is said of one pair alone
// stands after a colon, and is told of the first.
func joinedBy(r *roster.Roster, d *Description) string {
	return printable.Grouped(r.Size(), func(peer int) (string, string, bool) {
		kind, why := d.Transports[peer], d.Reasons[peer]
		general, _, _ := strings.Cut(why, ": ")
		return kind + general, kind + " (" + why + ")", peer != r.Rank
	})
}
