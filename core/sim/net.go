package sim

import (
	"fmt"
	"strconv"
	"strings"
)

// Net is the network between hosts: links, each of which carries one message at a time, and the way
// of a message from host to host.
type Net struct {
	hosts int
	nics  int // of a host; without effect where there are interfaces
	links []link
	// interfaces tells how many a host has; nil: each has nics.
	interfaces func(host int) int
	// way appends to a list the links of a way, in order. Which of several equal ways it takes depends
	// on the two ends alone.
	way func(to []int32, src, dst end) []int32
}

// end is where a message enters or leaves the network: a network interface of a host.
type end struct{ host, nic int }

// link carries messages in one direction.
type link struct {
	name  string
	gap   int64 // picoseconds a byte
	delay int64 // picoseconds until the first byte is at its other end
	free  int64 // when it has carried all that has entered it
	bytes int64 // that it has carried
}

// Limits of networks.
const (
	mostHosts   = 1 << 16
	mostNICs    = 64
	mostMbit    = 100_000_000 // 100 Tbit/s
	switchDelay = 500_000     // picoseconds that a switch after the first adds
	psPerMbit   = 8_000_000   // picoseconds a byte, at 1 Mbit/s
)

// ParseNet reads the name of a network that joins so many hosts:
//
//	star:25g                       a switch that carries all that the hosts' links do
//	fat-tree:25g,leaf=16,taper=2   switches of so many hosts each; joined by links of the same speed,
//	                               a taper-th as many as hosts; by default 16 and 1
//	rail:8x200g                    hosts with 8 interfaces; a switch joins those of the same number,
//	                               and a spine of full capacity the switches
//
// Speeds are of a link in one direction, in bits a second: 100m, 25g. A text that begins with "{"
// is that of a file, as docs/reference/goccl.net-1.schema.json has it.
func ParseNet(text string, hosts int) (*Net, error) {
	if strings.HasPrefix(strings.TrimLeft(text, " \t\r\n"), "{") {
		return parseTopology(text, hosts)
	}
	bad := func(format string, args ...any) (*Net, error) {
		return nil, fmt.Errorf("net is %.100q: "+format, append([]any{text}, args...)...)
	}
	if hosts < 1 || hosts > mostHosts {
		return bad("hosts are %d, allowed are 1 to %d", hosts, mostHosts)
	}
	kind, rest, _ := strings.Cut(text, ":")
	items := strings.Split(rest, ",")
	speed, nics := items[0], 1
	if kind == "rail" {
		count, of, ok := strings.Cut(speed, "x")
		n, err := strconv.Atoi(count)
		if !ok || err != nil || n < 1 || n > mostNICs {
			return bad("interfaces and speed are %q, allowed are 1 to %d interfaces, as in 8x200g",
				speed, mostNICs)
		}
		speed, nics = of, n
	}
	gap, err := parseSpeed(speed)
	if err != nil {
		return bad("%w", err)
	}
	leaf, taper := 16, 1
	for _, item := range items[1:] {
		name, value, _ := strings.Cut(item, "=")
		n, err := strconv.Atoi(value)
		field := map[string]*int{"leaf": &leaf, "taper": &taper}[name]
		if kind != "fat-tree" || field == nil {
			return bad("%q is not allowed; a fat-tree has leaf= and taper=, others have nothing", item)
		}
		if err != nil || n < 1 || n > mostHosts {
			return bad("%s is %q, allowed are 1 to %d", name, value, mostHosts)
		}
		*field = n
	}
	n := &Net{hosts: hosts, nics: nics}
	n.hostLinks(gap)
	switch kind {
	case "star":
		n.way = n.direct
	case "fat-tree":
		if taper > leaf {
			return bad("taper is %d, allowed are 1 to %d, the hosts of a switch", taper, leaf)
		}
		n.fatTree(gap, leaf, max(leaf/taper, 1))
	case "rail":
		n.rails()
	default:
		return bad("its kind is %q, allowed are star, fat-tree and rail", kind)
	}
	return n, nil
}

// Star returns a switch that carries all that the hosts' links do, of so many picoseconds a byte.
func Star(hosts int, gap int64) *Net {
	n := &Net{hosts: hosts, nics: 1}
	n.hostLinks(gap)
	n.way = n.direct
	return n
}

// NICs returns how many interfaces a host has.
func (n *Net) NICs(host int) int {
	if n.interfaces != nil {
		return n.interfaces(host)
	}
	return n.nics
}

// parseSpeed returns the picoseconds a byte of a speed.
func parseSpeed(text string) (gap int64, err error) {
	digits, scale := text, int64(0)
	switch {
	case strings.HasSuffix(text, "g"):
		digits, scale = text[:len(text)-1], 1000
	case strings.HasSuffix(text, "m"):
		digits, scale = text[:len(text)-1], 1
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || scale == 0 || n < 1 || n > mostMbit/scale {
		return 0, fmt.Errorf("the speed is %q, allowed are 1m to 100000g, in bits a second", text)
	}
	return (psPerMbit + n*scale/2) / (n * scale), nil
}

// hostLinks makes the links of all interfaces: first those to the network, then those from it.
func (n *Net) hostLinks(gap int64) {
	for _, direction := range []string{"up", "down"} {
		for host := range n.hosts {
			for nic := range n.nics {
				name := fmt.Sprintf("host %d %s", host, direction)
				if n.nics > 1 {
					name = fmt.Sprintf("host %d, interface %d, %s", host, nic, direction)
				}
				n.links = append(n.links, link{name: name, gap: gap})
			}
		}
	}
}

func (n *Net) up(e end) int32   { return int32(e.host*n.nics + e.nic) }
func (n *Net) down(e end) int32 { return int32(n.hosts*n.nics) + n.up(e) }

// direct is the way over one switch.
func (n *Net) direct(to []int32, src, dst end) []int32 { return append(to, n.up(src), n.down(dst)) }

// fatTree joins switches of so many hosts by so many links each, in either direction, to a spine of
// full capacity.
func (n *Net) fatTree(gap int64, leaf, uplinks int) {
	first := int32(len(n.links))
	leaves := (n.hosts + leaf - 1) / leaf
	for _, direction := range []string{"up", "down"} {
		for at := range leaves {
			for i := range uplinks {
				n.links = append(n.links, link{name: fmt.Sprintf("switch %d, link %d, %s", at, i, direction),
					gap: gap, delay: switchDelay})
			}
		}
	}
	n.way = func(to []int32, src, dst end) []int32 {
		from, at := src.host/leaf, dst.host/leaf
		if from == at {
			return n.direct(to, src, dst)
		}
		which := pairHash(src.host, dst.host) % uint64(uplinks)
		return append(to, n.up(src), first+int32(from*uplinks)+int32(which),
			first+int32((leaves+at)*uplinks)+int32(which), n.down(dst))
	}
}

// rails lets messages between interfaces of the same number pass one switch, and others three.
func (n *Net) rails() {
	spine := int32(len(n.links))
	n.links = append(n.links, link{name: "spine", delay: 2 * switchDelay})
	n.way = func(to []int32, src, dst end) []int32 {
		if src.nic == dst.nic {
			return n.direct(to, src, dst)
		}
		return append(to, n.up(src), spine, n.down(dst))
	}
}

// pairHash spreads pairs of hosts over links that are equal (the finalizer of SplitMix64: Steele,
// Lea and Flood, 2014).
func pairHash(a, b int) uint64 {
	x := uint64(a)<<32 | uint64(b)
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// transit is how a message crosses the network.
type transit struct {
	arrival int64 // of its last byte
	wire    int64 // picoseconds that its bytes take on the slowest link
	queued  int64 // that it waits behind others
}

// passage is how far a message is on its way.
type passage struct {
	bytes           int64
	head, tail      int64 // when its first and its last byte come to the next link
	slowest, delays int64 // of the links so far
	hop             int32 // the next link
}

// carry has a message, whose head has come, pass the link. Messages are served in the order in
// which their heads come. The head goes on before the tail has come.
func (l *link) carry(p *passage) {
	start, takes := max(p.head, l.free), p.bytes*l.gap
	if l.gap > 0 {
		l.free = start + takes
	}
	l.bytes += p.bytes
	p.head, p.tail = start+l.delay, max(p.tail, start+takes)+l.delay
	p.slowest, p.delays, p.hop = max(p.slowest, takes), p.delays+l.delay, p.hop+1
}

// crossed is how a message has passed all links, which entered the network at a time.
func (p *passage) crossed(at int64) transit {
	wire := p.slowest + p.delays
	return transit{arrival: p.tail, wire: wire, queued: p.tail - at - wire}
}
