// Package sim runs the plans of all ranks in virtual time, to tell how long a collective takes in a
// group that need not exist, and why.
//
// # The model
//
// Time is in whole picoseconds, so that the same input gives the same output on each machine.
//
//   - A rank does its steps in order, one at a time, each at a cost of its CPU by [Costs]: an
//     overhead for each message that it puts or takes, and a time for each byte that it copies or
//     reduces.
//   - Ranks that outnumber the CPUs of their host take turns on them. Who has waited longest is
//     next, and keeps the CPU until it waits for a message.
//   - A message to another host takes each link of its way through the [Net], for as long as its
//     bytes take there. A link serves messages one after the other, as their heads come. A message
//     within a host meets no link.
//   - A message is there a latency after its last byte has left the last link. A slot that is
//     released is known to be free a latency later; over ports releases are told in twos.
//   - A message for which a port finds its place in an output goes there, and is not copied again.
//
// Not in the model: loss, congestion control, packets, caches, other programs, and the bandwidth of
// a host's memory that its ranks share. LogGP's figures (Alexandrov and others, 1995) are those of
// package tune.
package sim

import (
	"fmt"
	"io"
	"slices"

	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/tune"
)

// Costs are what steps cost, in picoseconds.
type Costs struct {
	Links    tune.Links
	Between  tune.Link // of messages between hosts; its gap is not used, for the network has one
	OneSided bool      // the adapter moves their bytes, and no CPU
	Loopback bool      // ranks of a host share no memory
	Turn     int64     // to change to another rank on a CPU
}

// CostsOf are the costs of links.
func CostsOf(l tune.Links, rdma, loopback bool) Costs {
	c := Costs{Links: l, Between: l.TCP, OneSided: rdma, Loopback: loopback, Turn: 2_000_000}
	if rdma {
		c.Between = l.Verbs
	}
	return c
}

// Config is a group, and what it does.
type Config struct {
	Hosts []int // by rank: its host
	NICs  []int // by rank: the interface of its host that it uses; nil: all the first
	CPUs  int   // of a host
	Slots int   // of a ring
	Net   *Net
	Costs Costs
	// Plans returns those that a rank runs, one after the other.
	Plans func(rank int) ([]*plan.Plan, error)
	// Ports returns by rank to whom ports join a rank; nil: they join it to nobody.
	Ports func(rank int) []bool
	// Trace is where spans of ranks and arrows of messages are written as JSON, for Perfetto; Goal
	// where what ranks do is written for LogGOPSim. nil: nowhere.
	Trace, Goal io.Writer
}

// MostMessages is the most messages of a simulation, which keeps a hundred bytes for each.
const MostMessages = 20_000_000

// rank is a rank, and how far it is.
type rank struct {
	steps []step
	next  int32
	now   int64
	host  int32
	cpu   int32 // that it runs on; nobody: it waits, or has one of its own
	// sending is set where the message of the next step has cost its CPU, and enters the network when
	// all that happens before has happened.
	sending bool
	blocked int32 // the ring whose next message or release it waits for, or nobody
	peers   []int32
	rings   int32 // the first of the rings to its peers, which follow in their order
	waits   []wait
}

const nobody = -1

// mostTime is the longest time, to which a message, a step and a queue can be added.
const (
	mostTime = 1 << 62
	psPerDay = 86_400_000_000_000_000
)

// wait is one in which a rank lost time.
type wait struct {
	step        int32 // before which it waited
	on          Cause // Messages, Slots or Turns
	peer        int32 // the rank for which it waited
	peerStep    int32 // the step of that one, which ended it
	from, until int64
	sent        int64 // when the peer did that step
	crossing    transit
}

// simulation is a run of a group.
type simulation struct {
	*Config
	ranks  []rank
	rings  []ring
	hosts  []host
	events heap
	way    []int32 // reused
	counts [classes]Count
	late   bool // something is later than mostTime
}

// host is where ranks take turns.
type host struct {
	shared bool // there are more ranks than CPUs
	cpus   []cpu
	queue  []turn // ranks that wait for a CPU, the first first
}

type cpu struct {
	free int64 // since when nobody runs on it
	held bool
	last int32 // who ran on it
}

type turn struct {
	rank int32
	from int64
}

// Run runs the plans of all ranks.
func Run(c *Config) (*Result, error) {
	s, err := newSimulation(c)
	if err != nil {
		return nil, err
	}
	return s.run()
}

// newSimulation is a simulation before its first step.
func newSimulation(c *Config) (*simulation, error) {
	s := &simulation{Config: c, ranks: make([]rank, len(c.Hosts))}
	return s, s.load()
}

// run runs all ranks to their ends.
func (s *simulation) run() (*Result, error) {
	for r := range s.ranks {
		s.events.push(goesOn(0, int32(r)))
	}
	for len(s.events) > 0 {
		e := s.events.pop()
		if e.ring == nobody {
			s.resume(e.rank, e.at)
		} else {
			s.carry(e)
		}
		if s.late {
			return nil, fmt.Errorf("it takes more than %d days", mostTime/psPerDay)
		}
	}
	for r := range s.ranks {
		if k := &s.ranks[r]; int(k.next) < len(k.steps) {
			return nil, fmt.Errorf("deadlock: rank %d waits before step %d of %d", r, k.next, len(k.steps))
		}
	}
	found := s.result()
	if s.Trace != nil {
		var err error
		if found.Traced, err = s.writeTrace(s.Trace); err != nil {
			return nil, err
		}
	}
	if s.Goal != nil {
		if err := s.writeGOAL(s.Goal); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// load lays out ranks, rings and hosts.
func (s *simulation) load() error {
	messages, most := 0, 0
	for r := range s.ranks {
		k := &s.ranks[r]
		k.cpu, k.blocked, k.host = nobody, nobody, int32(s.Hosts[r])
		most = max(most, s.Hosts[r])
		plans, err := s.Plans(r)
		if err != nil {
			return err
		}
		var ports []bool
		if s.Ports != nil {
			ports = s.Ports(r)
		}
		total, puts := 0, map[int32]int32{}
		for _, p := range plans {
			total += len(p.Steps)
		}
		k.steps = make([]step, 0, total)
		for _, p := range plans {
			k.steps = compact(k.steps, p, puts, ports)
		}
		for _, n := range puts {
			messages += int(n)
		}
		if messages > MostMessages {
			return fmt.Errorf("the first %d of %d ranks send %d messages, allowed are %d", r+1,
				len(s.ranks), messages, MostMessages)
		}
	}
	s.hosts = make([]host, most+1)
	ranks := make([]int, most+1)
	for _, h := range s.Hosts {
		ranks[h]++
	}
	for h := range s.hosts {
		if s.hosts[h].shared = ranks[h] > s.CPUs; s.hosts[h].shared {
			s.hosts[h].cpus = slices.Repeat([]cpu{{last: nobody}}, s.CPUs)
		}
	}
	var err error
	s.rings, err = connect(s.ranks, s.Slots, func(a, b int32) bool {
		return s.Costs.Loopback || s.ranks[a].host != s.ranks[b].host
	})
	return err
}

// resume lets a rank go on, which an event was for.
func (s *simulation) resume(r int32, at int64) {
	k := &s.ranks[r]
	if s.hosts[k.host].shared && k.cpu == nobody && !s.takeTurn(r, at) {
		return
	}
	k.now = max(k.now, at)
	if s.advance(r) {
		s.endTurn(k)
	}
}

// takeTurn gives a rank a CPU of its host, or queues it.
func (s *simulation) takeTurn(r int32, at int64) bool {
	k := &s.ranks[r]
	h := &s.hosts[k.host]
	best := nobody
	for i := range h.cpus {
		if c := &h.cpus[i]; !c.held && (best == nobody || c.free < h.cpus[best].free ||
			c.free == h.cpus[best].free && c.last == r) {
			best = i
		}
	}
	if best == nobody {
		h.queue = append(h.queue, turn{r, at})
		return false
	}
	s.startTurn(r, best, at)
	return true
}

// startTurn has a rank run on a CPU that is free.
func (s *simulation) startTurn(r int32, i int, from int64) {
	k := &s.ranks[r]
	c := &s.hosts[k.host].cpus[i]
	at := max(from, c.free)
	if c.last != r && c.last != nobody {
		at += s.Costs.Turn
	}
	if at > from && int(k.next) < len(k.steps) {
		k.waits = append(k.waits, wait{step: k.next, on: Turns, peer: c.last, from: from, until: at})
	}
	c.held, c.last = true, r
	k.cpu, k.now = int32(i), max(k.now, at)
}

// endTurn takes the CPU of a rank that waits, for whom is next.
func (s *simulation) endTurn(k *rank) {
	if k.cpu == nobody {
		return
	}
	h, i := &s.hosts[k.host], int(k.cpu)
	h.cpus[i].held, h.cpus[i].free = false, k.now
	k.cpu = nobody
	if len(h.queue) > 0 {
		next := h.queue[0]
		h.queue = h.queue[1:]
		s.startTurn(next.rank, i, next.from)
		s.events.push(goesOn(s.ranks[next.rank].now, next.rank))
	}
}

// advance does steps of a rank. It reports whether the rank waits, or has ended; else it goes on
// after events that come before.
func (s *simulation) advance(r int32) (waits bool) {
	k := &s.ranks[r]
	for int(k.next) < len(k.steps) {
		p := &k.steps[k.next]
		switch p.op {
		case plan.Put, plan.Offer, plan.PutToAll:
			if !k.sending {
				if s.awaitSlots(r, p) {
					return true
				}
				k.now += s.cost(r, p).sum()
				k.sending = true
			}
			if s.entersNet(r, p) && s.yields(k.now, r) {
				return false
			}
			k.sending = false
			s.put(r, p)
		case plan.Wait:
			g := &s.rings[p.ring]
			if g.waited == g.arrives {
				if g.waited < g.put && s.yields(k.now, r) { // it may be there already
					return false
				}
				k.blocked = p.ring
				return true
			}
			if m := g.at(g.waited); s.awaits(r, g.wait(m), m.crossing.arrival) {
				return true
			}
			g.waited++
			k.now += s.cost(r, p).sum()
		case plan.Release:
			s.release(r, p.ring)
		case plan.Reclaim:
			if s.awaitRelease(r, p.ring, p.number) {
				return true
			}
		case plan.Expose:
			k.now += s.cost(r, p).sum()
			g := &s.rings[p.ring]
			g.exposed, g.exposure = true, message{from: k.next, sent: k.now,
				crossing: transit{arrival: k.now + s.latency(r, p.peer)}}
			s.wake(g.receiver, p.ring, g.wait(&g.exposure), g.exposure.crossing.arrival)
		case plan.Access:
			g := &s.rings[p.ring]
			if !g.exposed {
				k.blocked = p.ring
				return true
			}
			if s.awaits(r, g.wait(&g.exposure), g.exposure.crossing.arrival) {
				return true
			}
			k.now += s.cost(r, p).sum()
		default: // Copy, Combine, Get
			k.now += s.cost(r, p).sum()
		}
		k.next++
		s.late = s.late || k.now > mostTime
	}
	return true
}

// awaits has a rank wait until a time. It reports whether others come before: then the rank goes on
// by an event.
func (s *simulation) awaits(r int32, w wait, until int64) bool {
	k := &s.ranks[r]
	if until <= k.now {
		return false
	}
	w.step, w.from, w.until = k.next, k.now, until
	k.waits = append(k.waits, w)
	if !s.hosts[k.host].shared && !s.events.before(goesOn(until, r)) {
		k.now = until
		return false
	}
	s.events.push(goesOn(until, r))
	return true
}

// yields lets what comes before a rank's next step happen first, if there is something.
func (s *simulation) yields(now int64, r int32) bool {
	if !s.events.before(goesOn(now, r)) {
		return false
	}
	s.events.push(goesOn(now, r))
	return true
}

// wake lets a rank go on at a time if it waits for something of a ring.
func (s *simulation) wake(r, ring int32, w wait, at int64) {
	k := &s.ranks[r]
	if k.blocked != ring {
		return
	}
	k.blocked = nobody
	if at > k.now {
		w.step, w.from, w.until = k.next, k.now, at
		k.waits = append(k.waits, w)
	}
	s.events.push(goesOn(max(at, k.now), r))
}

// awaitSlots has a rank wait until it can put a message. It reports whether the rank goes on later.
func (s *simulation) awaitSlots(r int32, p *step) bool {
	if p.op != plan.PutToAll {
		return s.awaitRelease(r, p.ring, s.rings[p.ring].put-int32(s.Slots))
	}
	k := &s.ranks[r]
	for i := range k.peers {
		at := k.rings + int32(i)
		if s.awaitRelease(r, at, s.rings[at].put-int32(s.Slots)) {
			return true
		}
	}
	return false
}

// awaitRelease has a rank wait until it knows that a message has been released. It reports whether
// the rank goes on later.
func (s *simulation) awaitRelease(r, ring, number int32) bool {
	g := &s.rings[ring]
	if number < 0 || int(g.put-number) > len(g.messages) && number < g.known {
		return false // there was none, or another has its slot, whose put has heard of that
	}
	if number >= g.known {
		s.ranks[r].blocked, g.needed = ring, number
		return true
	}
	m := g.at(number)
	return s.awaits(r, g.release(m), m.knownAt)
}

// put sends a message, or one to each peer.
func (s *simulation) put(r int32, p *step) {
	if p.op != plan.PutToAll {
		s.send(r, p.ring, p.bytes)
		return
	}
	k := &s.ranks[r]
	for i := range k.peers {
		s.send(r, k.rings+int32(i), p.bytes)
	}
}

// send has a message of a rank leave now.
func (s *simulation) send(r, ring int32, bytes int64) {
	k, g := &s.ranks[r], &s.rings[ring]
	m := g.at(g.put)
	*m = message{from: k.next, sent: k.now}
	c := &s.counts[s.class(r, g.receiver)]
	c.Messages, c.Bytes = c.Messages+1, c.Bytes+bytes
	g.put++
	if s.far(r, g.receiver) {
		m.passage = passage{bytes: bytes, head: k.now, tail: k.now}
		s.carry(event{at: k.now, rank: r, ring: ring, number: g.put - 1})
		return
	}
	m.crossing.arrival = k.now
	s.arrives(ring, m)
}

// carry has a message pass the link to which its head has come.
func (s *simulation) carry(e event) {
	g := &s.rings[e.ring]
	m := g.at(e.number)
	s.way = s.Net.way(s.way[:0], s.end(e.rank), s.end(g.receiver))
	s.Net.links[s.way[m.passage.hop]].carry(&m.passage)
	if int(m.passage.hop) < len(s.way) {
		e.at = m.passage.head
		s.events.push(e)
		return
	}
	m.crossing = m.passage.crossed(m.sent)
	s.arrives(e.ring, m)
}

// arrives tells when the next message of a ring arrives, which has left the last link.
func (s *simulation) arrives(ring int32, m *message) {
	g := &s.rings[ring]
	m.crossing.arrival += s.latency(g.sender, g.receiver)
	s.late = s.late || m.crossing.arrival > mostTime
	g.arrives++
	s.wake(g.receiver, ring, g.wait(m), m.crossing.arrival)
}

// release gives the slot of a message back to its sender.
func (s *simulation) release(r, ring int32) {
	k, g := &s.ranks[r], &s.rings[ring]
	m := g.at(g.released)
	m.released, m.freed = k.next, k.now
	g.released++
	if g.port && g.released%2 == 1 {
		return // it is told together with the next one
	}
	at := k.now + s.latency(r, g.sender)
	for ; g.known < g.released; g.known++ {
		g.at(g.known).knownAt = at
	}
	if sender := &s.ranks[g.sender]; sender.blocked == ring && g.needed < g.known {
		s.wake(g.sender, ring, g.release(g.at(g.needed)), at)
	}
}

// at is the slot of a message.
func (g *ring) at(n int32) *message { return &g.messages[int(n)%len(g.messages)] }

// wait is one for a message of the ring.
func (g *ring) wait(m *message) wait {
	return wait{on: Messages, peer: g.sender, peerStep: m.from, sent: m.sent, crossing: m.crossing}
}

// release is a wait for the release of a message.
func (g *ring) release(m *message) wait {
	return wait{on: Slots, peer: g.receiver, peerStep: m.released, sent: m.freed}
}

// far reports whether two ranks are on two hosts.
func (s *simulation) far(a, b int32) bool { return s.ranks[a].host != s.ranks[b].host }

func (s *simulation) end(r int32) end {
	e := end{host: s.Hosts[r]}
	if s.NICs != nil {
		e.nic = s.NICs[r]
	}
	return e
}

// entersNet reports whether a step puts messages into the network.
func (s *simulation) entersNet(r int32, p *step) bool {
	return p.op != plan.PutToAll && s.far(r, p.peer)
}

// latency is how long the last byte of a message, or a word, is under way between two ranks, beside
// the links of the network.
func (s *simulation) latency(a, b int32) int64 { return s.link(a, b).Latency }

// link is what joins two ranks.
func (s *simulation) link(a, b int32) *tune.Link {
	switch {
	case s.far(a, b):
		return &s.Costs.Between
	case s.Costs.Loopback:
		return &s.Costs.Links.Loopback
	}
	return &s.Costs.Links.Memory
}

// cost is what a step costs the CPU of its rank.
func (s *simulation) cost(r int32, p *step) (c work) {
	switch p.op {
	case plan.Put, plan.Wait, plan.Offer, plan.Expose, plan.Access:
		k := s.link(r, p.peer)
		c.overhead = k.Overhead
		far := s.far(r, p.peer)
		switch {
		case p.op == plan.Expose || p.op == plan.Access:
		case far && s.Costs.OneSided:
			if !p.posted && p.op == plan.Put {
				c.copying = p.bytes * s.Costs.Links.Memory.Gap / 2
			}
		case far || s.Costs.Loopback:
			c.copying = p.bytes * s.Costs.Links.Loopback.Gap / 2
		case p.op == plan.Put:
			c.copying = p.bytes * k.Gap / 2
		}
	case plan.PutToAll:
		c.overhead = s.Costs.Links.Memory.Overhead
		c.copying = p.bytes * s.Costs.Links.Memory.Gap / 2
	case plan.Get:
		c.copying = p.bytes * s.Costs.Links.Memory.Gap
	case plan.Copy:
		if !p.posted {
			c.copying = p.bytes * s.Costs.Links.Memory.Gap / 2
		}
	case plan.Combine:
		c.reducing = p.bytes * int64(p.sources) * tune.ReduceGap
	}
	return c
}

// work is what a step costs, by kind.
type work struct{ overhead, copying, reducing int64 }

func (w work) sum() int64 { return w.overhead + w.copying + w.reducing }
