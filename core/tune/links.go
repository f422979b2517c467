package tune

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Link is what a message costs on a kind of channel, by LogGP (Alexandrov and others, 1995), in
// picoseconds.
type Link struct {
	Latency  int64 // from end to end
	Overhead int64 // of a CPU, at each end
	Gap      int64 // a byte
}

// Links are what messages cost between ranks that have a CPU each, by kind. `goccl tune` measures
// those of a host.
type Links struct {
	Memory   Link // of ranks that share memory
	Loopback Link // TCP within a host
	TCP      Link // TCP between hosts
	Verbs    Link // RDMA between hosts
}

// defaultLinks are those of a host as measured on two CPUs that share no cache: what a cache
// between them saves is no reason to choose otherwise. TCP is of 25 Gbit/s, RDMA of 200 Gbit/s.
var defaultLinks = Links{
	Memory:   Link{250_000, 100_000, 100},
	Loopback: Link{8_000_000, 2_000_000, 250},
	TCP:      Link{15_000_000, 4_000_000, 320},
	Verbs:    Link{2_000_000, 400_000, 40},
}

// Those of an oversubscribed host are of 8, 16 and 64 ranks on two CPUs, by turns: the time divided
// by how many ranks share a CPU, for all that is told apart by them takes in proportion. There a
// level waits until all ranks have had a turn.
var (
	oversubscribedMemory = Link{7_500_000, 300_000, 60}
	oversubscribedPort   = Link{15_000_000, 5_500_000, 300}
)

// domainLink is that of ranks whose CPUs share a cache. Its latency is an assumption, so it divides
// levels, and makes none: bytes cost what they do in memory.
var domainLink = Link{100_000, 100_000, 100}

// Figures up to these are allowed, so that no estimate overflows.
const (
	mostNanos = 10_000_000
	mostGap   = 100_000
)

// Set changes those that a text names, such as "memory=250:100:100,tcp=15000:4000:320": latency and
// overhead in nanoseconds, and the gap in picoseconds a byte.
func (l *Links) Set(text string) error {
	if text == "" {
		return nil
	}
	kinds := map[string]*Link{"memory": &l.Memory, "loopback": &l.Loopback, "tcp": &l.TCP,
		"verbs": &l.Verbs}
	for item := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(item, "=")
		kind, figures := kinds[name], strings.Split(value, ":")
		if kind == nil || len(figures) != 3 {
			return fmt.Errorf("%q, allowed are memory, loopback, tcp and verbs, each with "+
				"=latency:overhead:gap", item)
		}
		var k [3]int64
		for i, most := range []int64{mostNanos, mostNanos, mostGap} {
			n, err := strconv.ParseInt(figures[i], 10, 64)
			if err != nil || n < 0 || n > most {
				return fmt.Errorf("%q, latency and overhead must be 0 to %d nanoseconds, the gap 0 to %d "+
					"picoseconds a byte", item, mostNanos, mostGap)
			}
			k[i] = n
		}
		*kind = Link{1000 * k[0], 1000 * k[1], k[2]}
	}
	return nil
}

// linkAt is the link between ranks of a block of so many ranks. Those of a host share what joins it
// to others.
func (t *Topology) linkAt(block int) Link {
	within := !t.MultiHost || block <= t.Group
	switch memory := !t.Ports || t.Memory && t.MultiHost && within; {
	case memory && t.Oversubscribed:
		return oversubscribedMemory
	case memory && block <= t.Domain:
		return domainLink
	case memory:
		return t.links.Memory
	case within && t.Oversubscribed:
		return oversubscribedPort
	case within:
		return t.links.Loopback
	}
	between := t.links.TCP
	if t.RDMA {
		between = t.links.Verbs
	}
	between.Gap *= int64(max(t.Group, 1))
	return between
}

// LinkBetween returns what a message costs between two ranks, which differ. It is that of the
// smallest block of ranks that has both: a domain, a host, or all.
func (t *Topology) LinkBetween(a, b int) Link {
	group, domain := t.Group, t.Domain
	if t.Order != nil {
		a, b = slices.Index(t.Order, a), slices.Index(t.Order, b)
		group, domain = t.OrderGroup, t.OrderDomain
	}
	ordered := *t
	ordered.Group, ordered.Domain = group, domain
	for _, block := range []int{domain, group} {
		if block > 1 && a/block == b/block {
			return ordered.linkAt(block)
		}
	}
	return ordered.linkAt(t.Size)
}

// times is a product, or less where sums of such products would overflow. Neither is negative.
func times(a, b int64) int64 {
	const most = math.MaxInt64 / 4096
	if b > 0 && a > most/b {
		return most
	}
	return a * b
}
